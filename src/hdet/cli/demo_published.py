"""``hdet demo-published``: digits trained by the published method, beside plain OneCycleLR."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hdet.cli.show import console, plain_errors

__all__ = ["demo_published"]


def demo_published(
    replicas: Annotated[int, typer.Option(min=2, max=64, help="How many processes train together.")] = 4,
    steps: Annotated[int, typer.Option(min=20, help="Optimizer steps of each of the six runs.")] = 240,
    spread: Annotated[
        float, typer.Option(min=0.01, max=0.99, help="How far the replicas' learning rates lie apart (α).")
    ] = 1 / 9,
    seed: Annotated[int, typer.Option(help="Seed of weights, batches and reassignments.")] = 0,
    output: Annotated[
        Path, typer.Option(file_okay=False, help="Folder of the histories; older ones in it are replaced.")
    ] = Path("runs/demo-published"),
    timeout: Annotated[float, typer.Option(min=1, help="Seconds after which one run is given up.")] = 120.0,
) -> None:
    """Train the bundled digits with OneCycleLR and with OneCycleAutoLR, at three learning rates."""
    from hdet.demos.published import demo as show

    with plain_errors():
        show(
            console(),
            replicas=replicas,
            steps=steps,
            spread=spread,
            seed=seed,
            output=output,
            timeout=timeout,
        )
