"""The command line: one file a command, each with its arguments and its help. What a command needs (torch
among it) is imported when it is called, so that ``hdet --help`` answers at once."""

from __future__ import annotations

from typing import Annotated

try:
    import typer
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("the hdet command needs typer and rich: pip install 'hdet[cli]'") from error

from hdet import __version__
from hdet.cli.bench import bench
from hdet.cli.demo import demo
from hdet.cli.demo_published import demo_published
from hdet.cli.doctor import doctor
from hdet.cli.find import find
from hdet.cli.one_line import OneLineErrors
from hdet.cli.report import report
from hdet.cli.reproduce import reproduce
from hdet.cli.watch import watch

__all__ = ["app"]

app = typer.Typer(
    name="hdet",
    cls=OneLineErrors,
    help="Data-parallel replicas that find your hyperparameters while they train.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
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
    """Data-parallel replicas that find your hyperparameters while they train."""


for command in (demo, find, report, watch, doctor, demo_published, reproduce):
    app.command()(command)
app.add_typer(bench, name="bench")
