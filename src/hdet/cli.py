"""The command line. Every command imports what it needs when it is called."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from rich.console import Console
    from rich.status import Status
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
    regret = "regret"
    autolr = "autolr"
    hyperparameters = "hyperparameters"
    feed = "feed"
    stacked = "stacked"
    replicas = "replicas"


class Experiment(str, Enum):
    """What of the paper can be repeated."""

    table1 = "table1"
    figure2 = "figure2"
    figure3 = "figure3"
    pretraining = "pretraining"


class Device(str, Enum):
    """Where it can be measured."""

    cpu = "cpu"
    cuda = "cuda"


class Scale(str, Enum):
    """How large the tasks are."""

    cpu = "cpu"
    gpu = "gpu"


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
    steps: Annotated[int, typer.Option(min=40, help="Optimizer steps of each of the five runs.")] = 600,
    seed: Annotated[int, typer.Option(help="Seed of weights and batches.")] = 0,
    output: Annotated[
        Path, typer.Option(file_okay=False, help="Folder of AutoLR's history and of the schedule it finds.")
    ] = Path("runs/demo"),
) -> None:
    """Train the bundled digits with no learning rate given, beside guessed ones."""
    from hdet.demo import demo as show

    with _plain_errors():
        show(Console(), steps=steps, seed=seed, output=output)


@app.command()
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
    from hdet.demo_published import demo as show

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


def _known_workloads(names: str | None) -> str | None:
    from hdet.workloads import WORKLOADS

    unknown = [name for name in (names or "").split(",") if names is not None and name not in WORKLOADS]
    if unknown:
        raise typer.BadParameter(f"must be some of {', '.join(WORKLOADS)}, got {names}")
    return names


# What only those benchmarks are asked that are made of hundreds of runs, done in parts.
_Scale = Annotated[
    Scale | None, typer.Option(help="Of regret: the size of its tasks; that of the device if not given.")
]
_Workloads = Annotated[
    str | None,
    typer.Option(
        callback=_known_workloads,
        help="Of regret: names of tasks, between commas; those of the table if not given.",
    ),
]
_Seeds = Annotated[
    int | None, typer.Option(min=1, help="Of regret, hyperparameters and replicas: how many; 3 if not given.")
]
_Rows = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False,
        help="Of regret, hyperparameters and replicas: the file of finished runs, which are not run again; "
        "runs/regret-SCALE-DEVICE.jsonl, runs/hyperparameters.jsonl or runs/replicas-DEVICE.jsonl if not "
        "given.",
    ),
]
_Processes = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Of regret and replicas: runs at a time. Of hyperparameters: replicas. One on each core if not "
        "given.",
    ),
]
_Minutes = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Of regret, hyperparameters and replicas: after so long start no further run, and end.",
    ),
]
_Published = Annotated[
    bool, typer.Option("--published", help="Of regret: also the published controller, on four processes.")
]
_Chart = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False,
        help="Of regret and hyperparameters: the SVG file to write; beside the JSON if not given.",
    ),
]


_IN_PARTS = frozenset({"seeds", "rows", "processes", "minutes", "chart"})
#: Which options a benchmark has beside those that all have.
_TAKES = {
    Benchmark.regret: _IN_PARTS | {"scale", "workloads", "with_published"},
    Benchmark.hyperparameters: _IN_PARTS,
    Benchmark.replicas: _IN_PARTS - {"chart"},
}


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
    scale: _Scale = None,
    workloads: _Workloads = None,
    seeds: _Seeds = None,
    rows: _Rows = None,
    processes: _Processes = None,
    minutes: _Minutes = None,
    published: _Published = False,
    chart: _Chart = None,
) -> None:
    """Measure one claim of the package, print it and write it down as JSON."""
    given: dict[str, Any] = {"seeds": seeds, "rows": rows, "processes": processes, "minutes": minutes}
    given |= {"scale": scale and scale.value, "workloads": workloads and workloads.split(",")}
    given |= {"with_published": published or None}
    options = {option: value for option, value in given.items() if value is not None}
    known = _TAKES.get(name, frozenset())
    if refused := [option for option in (*options, *(["chart"] if chart else [])) if option not in known]:
        who = " or ".join(other.value for other, takes in _TAKES.items() if takes >= set(refused))
        raise typer.BadParameter(f"only {who} takes {', '.join(refused)}, not {name.value}")
    experiment = import_module(f"hdet.experiments.{name.value}")
    console = Console()
    with _plain_errors(), console.status(name.value) as status:
        say = _progress(console, status)
        result = experiment.run(quick=quick, device=device.value, on_progress=say, **options)
    path = output or _evidence_folder() / f"{name.value}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_as_json(result), encoding="utf-8")
    console.print(experiment.table(result))
    console.print(f"Written to {path}", soft_wrap=True, highlight=False)
    if hasattr(experiment, "chart"):
        drawing = chart or path.with_suffix(".svg")
        drawing.write_text(experiment.chart(result), encoding="utf-8")
        console.print(f"Drawn in {drawing}", soft_wrap=True, highlight=False)


@app.command()
def reproduce(
    name: Annotated[Experiment, typer.Argument(help="What of the paper to repeat.")],
    scale: Annotated[
        Scale, typer.Option(help="The size: minutes a seed on two cores, or one GPU.")
    ] = Scale.cpu,
    device: Annotated[
        Device | None, typer.Option(help="Where to train; where the scale belongs if not given.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="KuaiRand's file, or its folder, instead of the synthetic feed."),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many runs of each kind.")] = 3,
    rows: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="The file of finished runs, which are not run again; runs/reproduce-TASK-SCALE.jsonl if not "
            "given.",
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; one on each core if not given.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="After so long start no further run, and end.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="The folder to write to; runs/reproduce if not given.",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Tiny runs, to see that it works.")] = False,
) -> None:
    """Repeat an experiment of the paper at a size that one machine holds; stopped, it goes on from there."""
    from hdet.experiments import reproduce as experiment

    console = Console()
    folder = output or Path("runs/reproduce")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise typer.BadParameter(f"--output must be a folder that can be made: {error}") from error
    with _plain_errors(), console.status(name.value) as status:
        try:
            result = experiment.run(
                name.value,
                scale=scale.value,
                device=device and device.value,
                data=data,
                seeds=seeds,
                rows=rows,
                processes=processes,
                minutes=minutes,
                quick=quick,
                on_progress=_progress(console, status),
            )
        except (ValueError, FileNotFoundError) as error:
            raise typer.BadParameter(str(error)) from error
    console.print(experiment.said(result), markup=False, highlight=False, soft_wrap=True)
    with _plain_errors():
        files = experiment.write(result, folder, _as_json(result))
    console.print(f"Written to {', '.join(map(str, files))}", soft_wrap=True, highlight=False)


def _progress(console: Console, status: Status) -> Callable[[str], None]:
    """Where a status line cannot be drawn anew, a log must still show where it stands."""
    return status.update if console.is_terminal else partial(console.print, markup=False, highlight=False)


def _as_json(result: object) -> str:
    """Indented, with every list of plain values on one line. No string of JSON holds a line break."""
    text = json.dumps(result, indent=1)
    return re.sub(r"\[[^][{}]*\]", lambda found: re.sub(r"\n *", " ", found[0]), text) + "\n"


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
