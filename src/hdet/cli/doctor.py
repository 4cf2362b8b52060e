"""``hdet doctor``: what this machine offers, and whether replicas can diverge on it; of a run, whether it was
healthy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hdet.cli.show import as_line, console, histories, plain_errors

__all__ = ["doctor"]


def doctor(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Histories (.jsonl), or folders that hold some: what is to be said of these runs.",
            show_default="the machine itself",
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the other ranks.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Of runs, print JSON lines.")] = False,
) -> None:
    """Say whether runs were healthy and what to do; without one, whether replicas can diverge here.

    Exit status 1 where something is wrong: an error in a run, or replicas that cannot diverge.
    """
    if runs:
        if not _examined(histories(runs), as_json=as_json):
            raise typer.Exit(1)
        return
    from hdet.demos.doctor import doctor as examine

    if not examine(console(), timeout=timeout):
        raise typer.Exit(1)


def _examined(paths: list[Path], *, as_json: bool) -> bool:
    from hdet.report.health import examine
    from hdet.report.source import Source
    from hdet.report.verdict import facts_of, sentence

    well = True
    for path in paths:
        with plain_errors():
            source = Source(path).read()
        records = source.records()
        found = examine(records, source.about()["torn"])
        well &= all(finding.level != "error" for finding in found)
        verdict = sentence(facts_of(records))
        if as_json:
            told = [{"level": f.level, "text": f.text, "mend": f.mend} for f in found]
            typer.echo(as_line({"run": source.name, "path": str(path), "verdict": verdict, "findings": told}))
            continue
        typer.echo(f"{source.name}: {verdict}")
        for finding in found:
            typer.echo(f"  {finding.level}: {finding}")
    return well
