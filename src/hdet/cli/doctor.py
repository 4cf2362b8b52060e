"""``hdet doctor``: what this machine offers, and whether replicas can diverge on it; of a run, whether it was
healthy, and of a checkpoint, whether it is whole."""

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
            help="Histories (.jsonl), folders that hold some, or checkpoints of hdet.save: what is to be "
            "said of these runs.",
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
        saved = [path for path in runs if (path / "manifest.json").exists()]
        others = [path for path in runs if path not in saved]
        well, last = _examined(histories(others), as_json=as_json) if others else (True, None)
        # All are told of, whatever is wrong with the first.
        if not all([well, *(_is_whole(path, last, as_json=as_json) for path in saved)]):
            raise typer.Exit(1)
        return
    from hdet.demos.doctor import doctor as examine

    if not examine(console(), timeout=timeout):
        raise typer.Exit(1)


def _is_whole(folder: Path, last: int | None, *, as_json: bool) -> bool:
    """Say of a checkpoint, and of the one before it, whether it can be loaded, and what would be lost."""
    from hdet.checkpoint import candidates, examined

    well = True
    for path in candidates(folder):
        if not path.exists():
            continue
        manifest, trouble = examined(path)
        well &= bool(path != folder or not trouble)
        step = manifest.get("steps")
        if as_json:
            about = {"checkpoint": str(path), "steps": step, "ranks": manifest.get("ranks")}
            typer.echo(as_line({**about, "trouble": trouble}))
        elif trouble:
            mend = "hdet.load takes the one before it" if path == folder else "it cannot be gone back to"
            typer.echo(f"{path}: error: {trouble}: {mend}.")
        else:
            of = "" if step is None else f" of step {step:,}"
            behind = (
                ""
                if step is None or last is None or last <= step
                else (f"; the history goes on to step {last:,}: {last - step:,} steps would be taken again")
            )
            typer.echo(f"{path}: whole, {manifest['ranks']} rank(s){of}, hdet {manifest['hdet']}{behind}.")
    return well


def _examined(paths: list[Path], *, as_json: bool) -> tuple[bool, int | None]:
    """Whether nothing is wrong, and the last step of the last run."""
    from hdet.report.health import examine
    from hdet.report.source import Source
    from hdet.report.verdict import facts_of, sentence

    well, last = True, None
    for path in paths:
        with plain_errors():
            source = Source(path).read()
        records = source.records()
        found = examine(records, source.about()["torn"])
        well &= all(finding.level != "error" for finding in found)
        facts = facts_of(records)
        verdict, last = sentence(facts), facts.steps
        if as_json:
            told = [{"level": f.level, "text": f.text, "mend": f.mend} for f in found]
            typer.echo(as_line({"run": source.name, "path": str(path), "verdict": verdict, "findings": told}))
            continue
        typer.echo(f"{source.name}: {verdict}")
        for finding in found:
            typer.echo(f"  {finding.level}: {finding}")
    return well, last
