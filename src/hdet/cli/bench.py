"""``hdet bench``: one claim of the package, measured, printed and written down as JSON."""

from __future__ import annotations

from enum import Enum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from hdet.cli.choices import Device, Scale
from hdet.cli.show import as_json, console, evidence_folder, plain_errors, progress

__all__ = ["Benchmark", "bench", "module_of"]


class Benchmark(str, Enum):
    """What can be measured."""

    converge = "converge"
    step = "step"
    regret = "regret"
    autolr = "autolr"
    hyperparameters = "hyperparameters"
    delay = "delay"
    feed = "feed"
    stacked = "stacked"
    replicas = "replicas"
    fan_out = "fan-out"
    deepobs = "deepobs"
    lightbench = "lightbench"
    autotune = "autotune"
    islands = "islands"
    scale = "scale"


#: Where each is measured.
_MODULES = {
    Benchmark.regret: "hdet.bench.regret.command",
    Benchmark.hyperparameters: "hdet.bench.hyperparameters.command",
    Benchmark.delay: "hdet.bench.hyperparameters.delay",
    Benchmark.replicas: "hdet.bench.replicas.command",
    Benchmark.fan_out: "hdet.bench.fan_out.command",
    Benchmark.deepobs: "hdet.bench.deepobs.command",
    Benchmark.lightbench: "hdet.bench.lightbench.command",
    Benchmark.autotune: "hdet.bench.autotune.command",
    Benchmark.islands: "hdet.bench.islands.command",
    Benchmark.scale: "hdet.bench.scale.command",
}


def module_of(name: Benchmark) -> str:
    """The module that measures it: ``run``, ``table`` and, where there is one, ``chart``."""
    return _MODULES.get(name, f"hdet.bench.speed.{name.value}")


def _known_workloads(names: str | None) -> str | None:
    from hdet.bench.workloads import WORKLOADS

    unknown = [name for name in (names or "").split(",") if names is not None and name not in WORKLOADS]
    if unknown:
        raise typer.BadParameter(f"must be some of {', '.join(WORKLOADS)}, got {names}")
    return names


def _known_optimizers(names: str | None) -> str | None:
    from hdet.bench.regret.plan import OPTIMIZERS

    unknown = [name for name in (names or "").split(",") if names is not None and name not in OPTIMIZERS]
    if unknown:
        raise typer.BadParameter(f"must be some of {', '.join(OPTIMIZERS)}, got {names}")
    return names


class Shown(str, Enum):
    """Which table of the regret benchmark is printed; the JSON file holds both."""

    regret = "regret"
    excess = "excess"


# What only those benchmarks are asked that are made of hundreds of runs, done in parts.
_Scale = Annotated[
    Scale | None,
    typer.Option(help="Of regret and autotune: the size of its tasks; that of the device if not given."),
]
_Workloads = Annotated[
    str | None,
    typer.Option(
        callback=_known_workloads,
        help="Of regret, fan-out and islands: names of tasks, between commas; those of the table if not "
        "given.",
    ),
]
_Optimizers = Annotated[
    str | None,
    typer.Option(
        callback=_known_optimizers,
        help="Of regret: some of adamw, sgd, lion, muon, between commas; the first two if not given.",
    ),
]
_Merge = Annotated[
    list[Path] | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        help="Of regret: another file of finished runs, which is only read; can be given several times.",
    ),
]
_Table = Annotated[Shown | None, typer.Option(help="Of regret: which table to print; regret if not given.")]
_Seeds = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Of regret, hyperparameters, replicas, fan-out, autotune, islands and scale: how many; 3 if not "
        "given.",
    ),
]
_Rows = Annotated[
    Path | None,
    typer.Option(
        dir_okay=False,
        help="Of regret, hyperparameters, replicas, fan-out, lightbench, autotune and islands: the file of "
        "finished runs, which are not run again; runs/regret-SCALE-DEVICE.jsonl, runs/hyperparameters.jsonl, "
        "runs/replicas-DEVICE.jsonl, runs/fan-out.jsonl, runs/lightbench-DEVICE.jsonl, "
        "runs/autotune-SCALE-DEVICE.jsonl or runs/islands.jsonl if not given.",
    ),
]
_Processes = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Of regret, replicas and lightbench: runs at a time. Of hyperparameters: replicas. Of fan-out: "
        "replicas. Of islands: replicas. Of autotune: runs, or replicas, at a time. One on each core if not "
        "given.",
    ),
]
_Minutes = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Of regret, hyperparameters, replicas, fan-out, lightbench, autotune and islands: after so long "
        "start no further run, and end; with 0, regret and autotune make the table of the runs there are.",
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
_Problems = Annotated[
    str | None,
    typer.Option(help="Of lightbench and autotune: names of problems, between commas; all if not given."),
]
_Steps = Annotated[
    int | None, typer.Option(min=40, help="Of lightbench: the cap of steps; 20,000 if not given.")
]


_IN_PARTS = frozenset({"seeds", "rows", "processes", "minutes", "chart"})
#: Which options a benchmark has beside those that all have.
_TAKES = {
    Benchmark.regret: _IN_PARTS | {"scale", "workloads", "optimizers", "merge", "table", "with_published"},
    Benchmark.hyperparameters: _IN_PARTS,
    Benchmark.replicas: _IN_PARTS - {"chart"},
    Benchmark.fan_out: _IN_PARTS - {"chart"} | {"workloads"},
    Benchmark.lightbench: _IN_PARTS - {"chart", "seeds"} | {"problems", "steps"},
    Benchmark.autotune: _IN_PARTS - {"chart"} | {"scale", "problems"},
    Benchmark.islands: _IN_PARTS - {"chart"} | {"workloads"},
    Benchmark.scale: frozenset({"seeds"}),
}


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
    optimizers: _Optimizers = None,
    seeds: _Seeds = None,
    rows: _Rows = None,
    merge: _Merge = None,
    processes: _Processes = None,
    minutes: _Minutes = None,
    published: _Published = False,
    table: _Table = None,
    chart: _Chart = None,
    problems: _Problems = None,
    steps: _Steps = None,
) -> None:
    """Measure one claim of the package, print it and write it down as JSON."""
    given: dict[str, Any] = {"seeds": seeds, "rows": rows, "processes": processes, "minutes": minutes}
    given |= {"scale": scale and scale.value, "workloads": workloads and workloads.split(",")}
    given |= {"optimizers": optimizers and optimizers.split(","), "merge": merge or None}
    given |= {"with_published": published or None, "steps": steps}
    given |= {"problems": problems and problems.split(",")}
    options = {option: value for option, value in given.items() if value is not None}
    known = _TAKES.get(name, frozenset())
    shown = [option for option, value in (("chart", chart), ("table", table)) if value is not None]
    if refused := [option for option in (*options, *shown) if option not in known]:
        who = " or ".join(other.value for other, takes in _TAKES.items() if takes >= set(refused))
        raise typer.BadParameter(f"only {who} takes {', '.join(refused)}, not {name.value}")
    experiment = import_module(module_of(name))
    screen = console()
    with plain_errors(), screen.status(name.value) as status:
        say = progress(screen, status)
        result = experiment.run(quick=quick, device=device.value, on_progress=say, **options)
    path = output or evidence_folder() / f"{name.value}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_json(result), encoding="utf-8")
    screen.print(experiment.table(result, table.value) if table else experiment.table(result))
    screen.print(f"Written to {path}", soft_wrap=True, highlight=False)
    if hasattr(experiment, "chart"):
        drawing = chart or path.with_suffix(".svg")
        drawing.write_text(experiment.chart(result), encoding="utf-8")
        screen.print(f"Drawn in {drawing}", soft_wrap=True, highlight=False)
