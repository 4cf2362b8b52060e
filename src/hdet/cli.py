"""The command line. Every command imports what it needs when it is called."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Annotated

try:
    import typer
    from rich.console import Console
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("the hdet command needs typer and rich: pip install 'hdet[cli]'") from error

from hdet import __version__

__all__ = ["app"]

app = typer.Typer(
    help="Data-parallel replicas that find your hyperparameters while they train.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


class Benchmark(str, Enum):
    """What can be measured."""

    converge = "converge"
    step = "step"


class Device(str, Enum):
    """Where it can be measured."""

    cpu = "cpu"
    cuda = "cuda"


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


@app.command()
def demo(
    replicas: Annotated[int, typer.Option(min=2, max=64, help="How many processes train together.")] = 4,
    steps: Annotated[int, typer.Option(min=20, help="Optimizer steps of each of the six runs.")] = 240,
    spread: Annotated[
        float, typer.Option(min=0.01, max=0.99, help="How far the replicas' learning rates lie apart (α).")
    ] = 1 / 9,
    seed: Annotated[int, typer.Option(help="Seed of weights, batches and reassignments.")] = 0,
    output: Annotated[
        Path, typer.Option(file_okay=False, help="Folder of the histories; older ones in it are replaced.")
    ] = Path("runs/demo"),
    timeout: Annotated[float, typer.Option(min=1, help="Seconds after which one run is given up.")] = 120.0,
) -> None:
    """Train the bundled digits with OneCycleLR and with OneCycleAutoLR, at three learning rates."""
    from hdet.demo import demo as show

    with _plain_errors():
        show(
            Console(),
            replicas=replicas,
            steps=steps,
            spread=spread,
            seed=seed,
            output=output,
            timeout=timeout,
        )


@app.command()
def doctor(
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the other ranks.")] = 60.0,
) -> None:
    """Say what this machine offers, and find out whether replicas can diverge on it."""
    from hdet.doctor import doctor as examine

    if not examine(Console(), timeout=timeout):
        raise typer.Exit(1)


@app.command()
def bench(
    name: Annotated[Benchmark, typer.Argument(help="What to measure.")],
    quick: Annotated[bool, typer.Option("--quick", help="Measure less, to see that it works.")] = False,
    device: Annotated[Device, typer.Option(help="Where to measure.")] = Device.cpu,
    output: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="The JSON file to write; docs/evidence/NAME.json where that folder is, else runs/NAME.json.",
        ),
    ] = None,
) -> None:
    """Measure one claim of speed, print it and write it down as JSON."""
    experiment = import_module(f"hdet.experiments.{name.value}")
    console = Console()
    with _plain_errors(), console.status(name.value) as status:
        result = experiment.run(quick=quick, device=device.value, on_progress=status.update)
    path = output or _evidence_folder() / f"{name.value}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    console.print(experiment.table(result))
    console.print(f"Written to {path}", soft_wrap=True, highlight=False)


def _evidence_folder() -> Path:
    evidence = Path("docs/evidence")
    return evidence if evidence.is_dir() else Path("runs")


@contextmanager
def _plain_errors() -> Iterator[None]:
    """What a user can mend, or what a rank already said in full, needs no traceback of ours."""
    from hdet.replicas.launch import ReplicaError

    try:
        yield
    except (ReplicaError, TimeoutError, ModuleNotFoundError) as error:
        typer.echo(f"hdet: {error}", err=True)
        raise typer.Exit(1) from error
