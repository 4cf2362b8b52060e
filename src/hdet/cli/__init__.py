"""The command line, one file for each command. Commands import what they need (torch) when they are
called, so that ``hdet --help`` is fast."""

from __future__ import annotations

import os
from typing import Annotated

try:
    import typer
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("the hdet command needs typer and rich: pip install 'hdet[cli]'") from error

from hdet import __version__
from hdet.cli.demo import demo
from hdet.cli.doctor import doctor
from hdet.cli.find import find
from hdet.cli.report import report
from hdet.cli.show import OneLineErrors
from hdet.cli.watch import watch

__all__ = ["app"]

app = typer.Typer(
    name="hdet",
    cls=OneLineErrors,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # rich's help shows a type for every flag
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"hdet {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit."),
    ] = False,
) -> None:
    """Training finds its own hyperparameters while it runs, on the replicas you already pay for."""
    os.environ.setdefault("HDET_QUIET", "1")  # a command prints what its runs found; ranks inherit it


for command in (demo, find, report, watch, doctor):
    app.command()(command)
