"""``python -m benchmarks``: a command for each claim that can be measured, with the options it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.reproduce.cli import reproduce
from benchmarks.show import Device, Scale, as_json, evidence_folder, progress
from hdet.cli.show import OneLineErrors, console, plain_errors, stopped

__all__ = ["BENCHMARKS", "Benchmark", "app"]

app = typer.Typer(
    name="benchmarks",
    cls=OneLineErrors,
    help="Measure one claim of the package, print it and write it down as JSON.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _some_of(known: Callable[[], Any]) -> Callable[[str | None], str | None]:
    """Names between commas, each of which must be known."""

    def check(names: str | None) -> str | None:
        if names is not None and not set(names.split(",")) <= set(known()):
            raise typer.BadParameter(f"must be some of {', '.join(known())} between commas, got {names}")
        return names

    return check


def _workloads() -> Any:
    from benchmarks.workloads import WORKLOADS

    return WORKLOADS


def _optimizers() -> Any:
    from benchmarks.regret.plan import OPTIMIZERS

    return OPTIMIZERS


class Part(str, Enum):
    """A part of the zoo's families."""

    fit = "fit"
    dev = "dev"
    test = "test"


_SCALE = Annotated[
    Scale | None, typer.Option(help="The size of the tasks.", show_default="that of the device")
]
_WORKLOADS = Annotated[
    str | None,
    typer.Option(
        callback=_some_of(_workloads),
        help="Names of tasks, between commas.",
        show_default="those of the table",
    ),
]
_OPTIMIZERS = Annotated[
    str | None,
    typer.Option(
        callback=_some_of(_optimizers),
        help="Some of adamw, sgd, lion, muon, between commas.",
        show_default="adamw,sgd",
    ),
]
_MERGE = Annotated[
    list[Path] | None,
    typer.Option(
        exists=True,
        dir_okay=False,
        help="Another file of finished runs, which is only read; can be given several times.",
        show_default="none",
    ),
]
_SEEDS = Annotated[int | None, typer.Option(min=1, help="How many seeds.", show_default="3")]
_CHART = Annotated[
    Path | None,
    typer.Option(dir_okay=False, help="The SVG file to write.", show_default="beside the JSON"),
]
_PROBLEMS = Annotated[
    str | None, typer.Option(help="Names of problems, between commas.", show_default="all of them")
]
_PART = Annotated[Part | None, typer.Option(help="Which families.", show_default="all of them")]
_METHODS = Annotated[
    str | None,
    typer.Option(
        help="Some of sweep, default, autolr, prodigy, schedule-free, greedy, greedy-bounds, between commas.",
        show_default="all of them",
    ),
]
_TASKS = Annotated[str | None, typer.Option(help="Names of tasks, between commas.", show_default="all")]
_STEPS = Annotated[int | None, typer.Option(min=40, help="The cap of steps.", show_default="20,000")]


def _in_parts(rows: str, processes: str = "Runs at a time.") -> dict[str, Any]:
    """What those are asked that are made of hundreds of runs, done in parts."""
    return {
        "rows": Annotated[
            Path | None,
            typer.Option(
                dir_okay=False, help="The file of finished runs, which are not run again.", show_default=rows
            ),
        ],
        "processes": Annotated[
            int | None, typer.Option(min=1, help=processes, show_default="one on each core")
        ],
        "minutes": Annotated[
            float | None,
            typer.Option(
                min=0,
                help="After so long start no further run, and end; 0 makes the table of what there is.",
                show_default="until all are done",
            ),
        ],
    }


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One claim: where it is measured, in a sentence what it is, and its own options."""

    module: str
    about: str
    options: Mapping[str, Any] = field(default_factory=dict)


#: What can be measured. Names of options are those of the module's ``run``; chart is ours.
BENCHMARKS = {
    "regret": Benchmark(
        "regret.command",
        "What a learning rate that nobody gave costs, beside a tuned sweep and what else asks for none.",
        {
            **{"scale": _SCALE, "workloads": _WORKLOADS, "optimizers": _OPTIMIZERS, "seeds": _SEEDS},
            **_in_parts("runs/regret-SCALE-DEVICE.jsonl"),
            "merge": _MERGE,
        },
    ),
    "autotune": Benchmark(
        "autotune.command",
        "One run that tunes everything, against searches at the same budget of samples.",
        {
            **{"scale": _SCALE, "problems": _PROBLEMS, "seeds": _SEEDS},
            **_in_parts("runs/autotune-SCALE-DEVICE.jsonl", "Runs, or replicas, at a time."),
        },
    ),
    "lightbench": Benchmark(
        "lightbench.command",
        "How many of LightBench's problems one run solves.",
        {"problems": _PROBLEMS, "steps": _STEPS, **_in_parts("runs/lightbench-DEVICE.jsonl")},
    ),
    "zoo": Benchmark(
        "zoo.command",
        "What AutoLR and a default rate cost beside tuned sweeps, on many small tasks of many kinds.",
        {
            **{"part": _PART, "methods": _METHODS, "tasks": _TASKS, "seeds": _SEEDS},
            **_in_parts("runs/zoo-DEVICE.jsonl"),
            "chart": _CHART,
        },
    ),
    "autolr": Benchmark("speed.autolr", "What AutoLR costs, beside plain training."),
    "large": Benchmark("speed.large", "What AutoLR costs around a transformer of a billion parameters."),
    "step": Benchmark("speed.step", "What hdet adds to a training step."),
    "converge": Benchmark("speed.converge", "What a mean of weights over ranks costs, against the limit."),
    "stacked": Benchmark("speed.stacked", "What replicas stacked in one process gain over processes."),
}

_COMMON = {
    "quick": (Annotated[bool, typer.Option("--quick", help="Measure less, to see that it works.")], False),
    "device": (Annotated[Device, typer.Option(help="Where to measure.")], Device.cpu),
}


def _output(name: str) -> Any:
    told = f"docs/evidence/{name}.json where that folder is, else runs/{name}.json"
    return Annotated[
        Path | None, typer.Option(dir_okay=False, help="The JSON file to write.", show_default=told)
    ]


def _measure(name: str, given: dict[str, Any]) -> None:
    quick, device, output = given.pop("quick"), given.pop("device"), given.pop("output")
    chart = given.pop("chart", None)
    for key in ("workloads", "optimizers", "problems", "methods", "tasks"):
        given[key] = given.get(key) and given[key].split(",")
    for key in ("scale", "part"):
        given[key] = given.get(key) and given[key].value
    options = {key: value for key, value in given.items() if value}
    if given.get("minutes") == 0:
        options["minutes"] = 0.0
    experiment = import_module(f"benchmarks.{BENCHMARKS[name].module}")
    screen = console()
    kept = "runs that were done are kept: the same command goes on from there"
    again = kept if "rows" in BENCHMARKS[name].options else "nothing was written: run it again"
    with stopped(again), plain_errors(), screen.status(name) as status:
        say = progress(screen, status)
        result = experiment.run(quick=quick, device=device.value, on_progress=say, **options)
    path = output or evidence_folder() / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(as_json(result), encoding="utf-8")
    screen.print(experiment.table(result))
    screen.print(f"Written to {path}", soft_wrap=True, highlight=False)
    if hasattr(experiment, "chart"):
        drawing = chart or path.with_suffix(".svg")
        drawing.write_text(experiment.chart(result), encoding="utf-8")
        screen.print(f"Drawn in {drawing}", soft_wrap=True, highlight=False)


def _command(name: str, about: Benchmark) -> Callable[..., None]:
    """A function with the parameters of one benchmark, from which typer makes its options."""

    def measure(**given: Any) -> None:
        _measure(name, given)

    taken = {**_COMMON, "output": (_output(name), None)}
    taken |= {key: (kind, None) for key, kind in about.options.items()}
    measure.__doc__ = about.about
    measure.__annotations__ = {key: kind for key, (kind, _) in taken.items()}
    measure.__signature__ = Signature(  # type: ignore[attr-defined]
        [
            Parameter(key, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for key, (kind, default) in taken.items()
        ]
    )
    return measure


for _name, _about in BENCHMARKS.items():
    app.command(_name)(_command(_name, _about))
app.command()(reproduce)
