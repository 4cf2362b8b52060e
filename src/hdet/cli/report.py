"""``hdet report``: histories as one page that opens from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hdet.cli.show import as_line, console, histories, plain_errors, stopped

__all__ = ["report"]


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Histories (.jsonl), or folders that hold some.", show_default=False
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", dir_okay=False, help="The page to write.")] = Path(
        "report.html"
    ),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print verdicts and alerts as JSON lines instead of prose.")
    ] = False,
) -> None:
    """Write one page that argues: a verdict for each run, and the charts behind it. It needs no network."""
    from hdet.report.page import sources, write
    from hdet.report.terminal import summary

    screen = console()
    found = sources(histories(runs))
    with plain_errors(), stopped("nothing was written: run it again"):
        with screen.status("reading") as status:
            for source in found:
                if screen.is_terminal:
                    status.update(f"reading {source.path}")
                source.read()
        write(found, output)
    for source in found:
        told = summary(source.name, source.records())
        if as_json:
            typer.echo(as_line({"path": str(source.path), **told}))
        else:
            typer.echo(f"{source.name}: {told['verdict']}")
    if not as_json:
        typer.echo(f"Written to {output}")
