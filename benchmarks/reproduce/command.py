"""The paper's experiments at a size that one machine holds: Table 1, Figures 2 and 3, and pre-training.

What is run is in :mod:`benchmarks.reproduce.plan`, how in :mod:`benchmarks.reproduce.runs`, on
what in :mod:`benchmarks.reproduce.tasks`. Every run is written down when it is done, and all commands
of one task and scale share the file: a figure after the table runs nothing anew.
"""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import machine
from benchmarks.pool import Say, complete, workers
from benchmarks.regret.arms import prepare
from benchmarks.reproduce.analysis import CURVES, curves, learning_rates, table
from benchmarks.reproduce.crash import RULE, judged
from benchmarks.reproduce.plan import CONFIGURATIONS, Plan, Row, Rows, Settings, planned
from benchmarks.reproduce.runs import PRETRAINING_LR, SETTINGS, execute
from benchmarks.reproduce.tasks import FEEDS, REPLICAS, SCALES, Task, data_file, digest, language, make
from benchmarks.reproduce.text import said

__all__ = ["NAMES", "run", "said", "write"]

#: What can be repeated, and the lines of the table it takes.
NAMES = {
    "table1": tuple(CONFIGURATIONS),
    "figure2": CURVES,
    "figure3": ("HDET (full)",),
    "pretraining": tuple(CONFIGURATIONS),
}
_TITLES = {
    "table1": "Table 1 of the paper",
    "figure2": "Figure 2 of the paper",
    "figure3": "Figure 3 of the paper",
    "pretraining": "The table's configurations",
}
_ON = {
    "feed": "on a synthetic feed that never repeats",
    "kuairand": "on one epoch of KuaiRand",
    "charlm": "in pre-training a character language model over several epochs",
    "helptexts": "in pre-training a character language model on Python's help texts over several epochs",
}
_TINY = "These were tiny runs, to see that it works: nothing can be concluded from their numbers."
_QUICK_SCALE, _QUICK_EXPONENTS = "tiny", (-8, -3, 2)


def run(
    name: str,
    *,
    scale: str = "cpu",
    device: str | None = None,
    data: Path | None = None,
    seeds: int = 3,
    rows: Path | None = None,
    processes: int | None = None,
    minutes: float | None = None,
    settings: Settings = Settings(),  # noqa: B008
    quick: bool = False,
    on_progress: Say | None = None,
) -> dict[str, Any]:
    """Run what is not in ``rows`` yet, and put together all that is; the result is plain JSON.

    Args:
        name: one of :data:`NAMES`.
        scale: ``"cpu"`` or ``"gpu"``, the size of the task.
        device: ``"cpu"`` or ``"cuda"``; that of the scale if None.
        data: KuaiRand's file, or its folder, instead of the synthetic feed.
        seeds: how many; a smaller number than before leaves the others out.
        rows: the file that finished runs are appended to, ``runs/reproduce-TASK-SCALE.jsonl`` if None.
        processes: how many runs go on at a time, as many as there are cores if None.
        minutes: after so long no further run is started.
        settings: σ, T, and what brings the learning rate down.
        quick: tiny runs and a short sweep, to see that it works; kept in memory unless ``rows`` is given.
    """
    task_name, file = _checked(name, scale, data, seeds)
    device = device or ("cuda" if scale == "gpu" else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "reproduce: device must be one that this machine has, got 'cuda': torch finds no GPU. With "
            "--scale cpu it takes minutes on two cores; --device cpu runs the larger size there, for hours"
        )
    say = on_progress or (lambda _: None)
    size = _QUICK_SCALE if quick else scale
    # Each Python has help texts of its own.
    data_id = digest(file) if file else platform.python_version() if task_name == "helptexts" else ""
    plan = Plan(task_name, size, seeds, device, data_id, NAMES[name], settings=settings)
    if quick:
        plan = replace(plan, exponents=_QUICK_EXPONENTS)
    elif rows is None:
        rows = Path("runs") / f"reproduce-{task_name}-{scale}.jsonl"
    # Made here as well, and first: a file that cannot be read is an error before anything is run.
    task = make(task_name, size, "cpu", file)
    done = Rows(rows)
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    at_once = processes or os.cpu_count() or 1
    with workers(device, at_once, say, prepare) as pool:
        complete(
            lambda: planned(plan, judged(done.finished, task.blind_loss)),
            done,
            pool,
            partial(execute, data=file, folder=rows and rows.with_suffix("")),
            at_once=at_once,
            deadline=deadline,
            say=say,
            told=_told,
        )
    about = machine.about("reproduce", quick=quick, device=device)
    about["command"] = _command(name, scale, device, file, seeds, settings, quick)
    return _result(name, plan, done, task, about)


def _checked(name: str, scale: str, data: Path | None, seeds: int) -> tuple[str, Path | None]:
    """The task and its file, once everything that was asked for makes sense."""
    if name not in NAMES:
        raise ValueError(f"reproduce: name must be one of {', '.join(map(repr, NAMES))}, got {name!r}")
    if scale not in SCALES:
        raise ValueError(f"reproduce: scale must be one of {', '.join(map(repr, SCALES))}, got {scale!r}")
    if seeds < 1:
        raise ValueError(f"reproduce: seeds must be at least 1, got {seeds}")
    if name == "pretraining":
        if data is not None:
            raise ValueError(f"reproduce: pretraining reads no feed, got data={str(data)!r}: leave it out")
        return language(), None
    return ("feed", None) if data is None else ("kuairand", data_file(data))


def _told(row: Row) -> str:
    rate = "" if row["lr"] is None else f" at {row['lr']:g}"
    who = f"{row['configuration']}{rate}, seed {row['seed']}"
    if row.get("error"):
        return f"{who}: {row['error']}"
    loss = "not finite" if row["train"] is None else f"{row['train']:.4f}"
    return f"{who}: {loss} in {row['seconds']:.1f} s"


def _command(
    name: str, scale: str, device: str, file: Path | None, seeds: int, settings: Settings, quick: bool
) -> str:
    options = f" --scale {scale}"
    options += "" if (scale == "gpu") == (device == "cuda") else f" --device {device}"
    options += f" --data {file.name}" if file else ""
    options += "" if seeds == 3 else f" --seeds {seeds}"
    options += f" {settings.options}" if settings.options else ""
    return f"python -m benchmarks reproduce {name}{options}{' --quick' if quick else ''}"


def _result(name: str, plan: Plan, done: Rows, task: Task, about: Mapping[str, Any]) -> dict[str, Any]:
    options = plan.settings.options
    known = judged(done.finished, task.blind_loss)
    asked_for = set(planned(plan, known))
    # The file may hold runs of an earlier plan as well.
    finished = {run: row for run, row in known.items() if run in asked_for}
    made: dict[str, Any]
    if name == "figure2":
        made = curves(plan, finished)
    elif name == "figure3":
        made = learning_rates(plan, finished, steps=task.workload.steps, control_from=task.warm_up)
    else:
        made = table(plan, finished)
    return {
        **about,
        "name": name,
        "title": f"{_TITLES[name]}, {_ON[plan.task]}" + (f", with {options}" if options else ""),
        "options": options,
        "task": plan.task,
        "scale": plan.scale,
        "seeds": plan.seeds,
        "loss_unit": task.loss_unit,
        "crash_rule": RULE,
        "caveats": [*task.caveats, *_caveats(plan, task)],
        "settings": _settings(task, plan.settings),
        "reference": machine.rounded({"base_rate_loss": task.blind_loss, "bayes_loss": task.bayes_loss}),
        "missing_runs": sum(run not in finished for run in planned(plan, finished)),
        "failed": [
            {part: row[part] for part in ("configuration", "lr", "seed", "error")}
            for run, row in done.failed.items()
            if plan.holds(run)
        ],
        **made,
    }


def _settings(task: Task, chosen: Settings) -> dict[str, Any]:
    sizes = {
        "replicas": REPLICAS,
        "steps": task.workload.steps,
        "batch_per_replica": task.batch_per_replica,
        "sync_every": chosen.sync_every or task.sync_every,
        "auto_lr_warmup_steps": task.warm_up,
        "optimizer": "Adam",
        "pretraining_steps": task.pretraining_steps,
        "pretraining_lr": PRETRAINING_LR,
    }
    auto_lr = {"loss_scale": chosen.sigma, "decay": chosen.decay, "final_div_factor": chosen.final_div}
    return {**sizes, **machine.rounded(SETTINGS), **auto_lr}


def _caveats(plan: Plan, task: Task) -> list[str]:
    samples = "samples that the cold starts never see" if plan.task in FEEDS else "the same text"
    found = [_TINY] if plan.scale == _QUICK_SCALE else []
    found += [
        f"A warm start comes from a checkpoint of {task.pretraining_steps} steps at {PRETRAINING_LR:g}, on "
        f"{samples}: it has been trained for longer.",
    ]
    if "AutoLR" in plan.lines:
        found.append("Only AutoLR reads the samples of the probe, on which nobody trains.")
    if plan.task in FEEDS:
        found.append(
            "The paper's losses are of other data, on another scale: compare signs and crashes, not values."
        )
    return found


# ---------------------------------------------------------------------- what is written


def file_name(result: Mapping[str, Any]) -> str:
    """The name, without a suffix, of the files that the result is written to."""
    task = {"kuairand": "-kuairand", "helptexts": "-helptexts"}.get(result["task"], "")
    return f"{result['name']}{task}" + "".join(f"-{word.lstrip('-')}" for word in result["options"].split())


def write(result: dict[str, Any], folder: Path, as_json: str) -> list[Path]:
    """The numbers, and of a figure the drawing; those files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{file_name(result)}.json"]
    files[0].write_text(as_json, encoding="utf-8")
    if result["name"].startswith("figure"):
        # Imported here, for nobody else needs what draws; and by now the numbers are written.
        from benchmarks.reproduce.figures import svg

        files.append(folder / f"{file_name(result)}.svg")
        files[1].write_text(svg(result), encoding="utf-8")
    return files
