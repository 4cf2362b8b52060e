"""``hdet demo``: a language model with no learning rate given, then replicas that find the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hdet.cli.show import console, plain_errors, stopped

__all__ = ["demo"]


def demo(
    steps: Annotated[int, typer.Option(min=40, help="Steps of each run of the language model.")] = 400,
    replica_steps: Annotated[
        int, typer.Option(min=40, help="The budget on the digits; the replicas may end earlier.")
    ] = 1000,
    seed: Annotated[int, typer.Option(help="Seed of weights and batches.")] = 0,
    output: Annotated[
        Path, typer.Option(file_okay=False, help="Folder of the histories and the report; written anew.")
    ] = Path("runs/demo"),
) -> None:
    """Train with a bad guess, with the tuned rate and with none; then let four replicas find the rest."""
    from hdet.demos.tour import demo as show

    again = f"`hdet report {output}` shows what was trained so far, and the same command begins anew"
    with stopped(again), plain_errors():
        show(console(), steps=steps, replica_steps=replica_steps, seed=seed, output=output)
