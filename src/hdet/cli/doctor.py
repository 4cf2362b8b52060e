"""``hdet doctor``: whether runs were healthy, whether checkpoints are whole, and without either, whether
replicas can diverge on this machine."""

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
            metavar="RUN",
            help="Histories (.jsonl), folders that hold some, or checkpoints of hdet.save.",
            show_default="the machine itself",
        ),
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the other ranks.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Of runs, print JSON lines.")] = False,
) -> None:
    """Say whether runs were healthy, and what to do about it.

    Without a run, whether replicas can diverge on this machine.

    Exit status 1 where something is wrong: an error in a run, or replicas that cannot diverge.
    """
    if not runs:
        from hdet.cli.machine_check import check_machine

        if not check_machine(console(), timeout=timeout):
            raise typer.Exit(1)
        return
    checkpoints = [path for path in runs if (path / "manifest.json").exists()]
    others = [path for path in runs if path not in checkpoints]
    healthy, last_step = True, 0
    for path in histories(others):
        well, last_step = _check_run(path, as_json=as_json)
        healthy &= well
    for path in checkpoints:
        healthy &= _check_checkpoint(path, last_step, as_json=as_json)
    if not healthy:
        raise typer.Exit(1)


def _check_run(path: Path, *, as_json: bool) -> tuple[bool, int]:
    """Print a run's verdict and findings; whether there was no error, and its last step."""
    from dataclasses import asdict

    from hdet.report.health import examine
    from hdet.report.records import HistoryFile
    from hdet.report.verdict import facts_of, sentence

    with plain_errors():
        file = HistoryFile(path).read()
    records = file.records()
    found, facts = examine(records, file.about()["torn"]), facts_of(records)
    verdict = sentence(facts)
    if as_json:
        findings = [asdict(finding) for finding in found]
        typer.echo(as_line({"run": file.name, "path": str(path), "verdict": verdict, "findings": findings}))
    else:
        typer.echo("\n".join([f"{file.name}: {verdict}", *(f"  {one.level}: {one}" for one in found)]))
    return all(finding.level != "error" for finding in found), facts.steps


def _check_checkpoint(folder: Path, last_step: int, *, as_json: bool) -> bool:
    """Print whether a checkpoint and the one before it can be loaded; returns whether the newest can."""
    from hdet.saving import candidates, examined

    healthy = True
    for path in filter(Path.exists, candidates(folder)):
        manifest, trouble = examined(path)
        healthy &= path != folder or not trouble
        step = manifest.get("steps")
        if as_json:
            about = {"checkpoint": str(path), "steps": step, "ranks": manifest.get("ranks")}
            typer.echo(as_line({**about, "trouble": trouble}))
        elif trouble:
            then = "hdet.load uses the one before it" if path == folder else "it cannot be loaded"
            typer.echo(_printable(f"{path}: error: {trouble}: {then}."))
        else:
            text = f"{path}: whole, {manifest['ranks']} rank(s)"
            text += "" if step is None else f" of step {step:,}"
            text += f", hdet {manifest.get('hdet')}"
            if step is not None and last_step > step:
                repeats = last_step - step
                text += f"; the history goes on to step {last_step:,}: resuming repeats {repeats:,} steps"
            typer.echo(_printable(f"{text}."))
    return healthy


def _printable(text: str) -> str:
    """A manifest is anybody's: what it holds must not steer the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
