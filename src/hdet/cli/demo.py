"""``hdet demo``: digits trained with no learning rate given, beside guessed ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hdet.cli.show import console, plain_errors

__all__ = ["demo"]


def demo(
    steps: Annotated[int, typer.Option(min=40, help="Optimizer steps of each of the five runs.")] = 600,
    seed: Annotated[int, typer.Option(help="Seed of weights and batches.")] = 0,
    output: Annotated[
        Path, typer.Option(file_okay=False, help="Folder of AutoLR's history and of the schedule it finds.")
    ] = Path("runs/demo"),
) -> None:
    """Train the bundled digits with no learning rate given, beside guessed ones."""
    from hdet.demos.auto_lr import demo as show

    with plain_errors():
        show(console(), steps=steps, seed=seed, output=output)
