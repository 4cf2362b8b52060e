"""``hdet demo``: a language model with no learning rate given; then HDET as published and AutoTune on four
replicas."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hdet.cli.show import console, plain_errors, stopped

__all__ = ["demo"]


def demo(
    steps: Annotated[int, typer.Option(min=40, help="Steps of each run of the language model.")] = 800,
    replica_steps: Annotated[
        int, typer.Option(min=40, help="Most steps of each run of four replicas; AutoTune may stop earlier.")
    ] = 600,
    seed: Annotated[int, typer.Option(help="Seed of weights and batches.")] = 0,
    output: Annotated[
        Path,
        typer.Option(file_okay=False, help="Folder of the histories and the report; replaces older ones."),
    ] = Path("runs/demo"),
) -> None:
    """Train with a bad rate, a tuned one, none, and on four replicas.

    A language model with AutoLR; then HDET as published and AutoTune, on four processes. A minute or so.
    """
    from hdet.cli.demo_runs import demo as show

    again = f"`hdet report {output}` shows what was trained so far; the same command starts again"
    with stopped(again), plain_errors():
        show(console(), steps=steps, replica_steps=replica_steps, seed=seed, output=output)
