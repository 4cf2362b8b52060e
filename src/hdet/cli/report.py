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
            metavar="RUN", help="Histories (.jsonl), or folders that hold some.", show_default=False
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", dir_okay=False, help="The page to write.")] = Path(
        "report.html"
    ),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print verdicts and alerts as JSON lines instead of text.")
    ] = False,
) -> None:
    """Write one page: a verdict for each run, and the charts behind it.

    Runs of models with equally many parameters share their charts. The page needs no network.
    """
    from hdet.report import Report

    paths = histories(runs)
    with plain_errors(), stopped("nothing was written: run it again"), console().status("reading"):
        made = Report(*paths)
        made.write(output)
    for path, found in zip(paths, made.summaries(), strict=True):
        text = as_line({"path": str(path), **found}) if as_json else f"{found['run']}: {found['verdict']}"
        typer.echo(text)
    if not as_json:
        typer.echo(f"Written to {output}")
