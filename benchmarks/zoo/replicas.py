"""When replicas on data of their own beat one large batch: ``python -m benchmarks.zoo.replicas``.

Ways to spend the same samples in the same steps on the zoo's tasks, all without a learning rate: one
process on a batch N times as large; N processes that train apart and are averaged at every window, nothing
explored; the same with what ``explore="auto"`` finds; and the variants of :data:`ARMS`. Only tasks count
whose loss is a mean over rows and whose batch, N times as large, is not more than all of them.
PROTOCOL.md says what is compared.
"""

from __future__ import annotations

import argparse
import math
import os
import queue
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.optim import Optimizer

import hdet
from benchmarks import machine
from benchmarks.gradients import average_gradients
from benchmarks.pool import Say, shared_gpu
from benchmarks.regret.optimizers import build
from benchmarks.rows import KeptRows, Row, environment, six_digits
from benchmarks.workloads.base import Batch, seeded
from benchmarks.zoo.analysis import excess
from benchmarks.zoo.catalogue import TASKS, cells
from benchmarks.zoo.chart import HEIGHT, LEFT, RIGHT, WIDTH, axis, document, height
from benchmarks.zoo.command import can_run, write_table
from benchmarks.zoo.families import PARTS, part_of
from benchmarks.zoo.plan import DEFAULT_RATES
from benchmarks.zoo.runs import mean_loss
from benchmarks.zoo.task import Setting
from hdet.hyperparameters import has_dropout
from hdet.replicas.launch import LocalProcesses

__all__ = ["ARMS", "ROWS", "Run", "chart", "compare", "execute", "fits", "main", "run"]

_AHEAD, _BEHIND = "#2c9c6a", "#e8590c"
ROWS = Path(__file__).with_name("rows-replicas.jsonl")
LARGE, AVERAGED, TUNED = "large", "averaged", "tuned"
MAIN = (LARGE, AVERAGED, TUNED)
REPLICAS = 4


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to train. ``explore``: what replicas differ in; None where there is one process. ``decay``,
    ``dropout``: what they begin with, unless what the task has. ``shares``: when gradients are averaged over
    the replicas all the same. ``alone``: one process on the batch of one replica, for the same steps, or for
    the same samples, which are N times as many steps."""

    explore: Literal["nothing", "auto", "rate"] | None
    decay: float | None = None
    dropout: float | None = None
    shares: Literal["never", "until it stands", "in the decay"] = "never"
    alone: Literal["same steps", "same samples"] | None = None


ARMS = {
    LARGE: Arm(None),
    "alone": Arm(None, alone="same steps"),
    "alone, N times as long": Arm(None, alone="same samples"),
    AVERAGED: Arm("nothing"),
    TUNED: Arm("auto", shares="until it stands"),
    "tuned apart": Arm("auto"),
    "shared, then own": Arm("nothing", shares="until it stands"),
    "own, then shared": Arm("nothing", shares="in the decay"),
    "rates": Arm("rate"),
    **{f"decay {decay:g}": Arm("nothing", decay=decay) for decay in (0.1, 0.5, 2.0)},
    **{f"dropout {p:g}": Arm("nothing", dropout=p) for p in (0.0, 0.3, 0.5)},
}
#: How far apart learning rates are that replicas differ in, as a logarithm.
_RATES = 0.5
#: A rank's seed is that of the run and so many times its number: its batches are its own.
_STRIDE = 1000
#: Of one run, in seconds.
_LIMIT = 300.0
#: Where the large batch was best before this share of the run, it overfits.
_EARLY = 0.9


@dataclass(frozen=True, slots=True)
class Run:
    """One run: all that its result depends on."""

    task: str
    optimizer: str
    arm: str
    replicas: int
    seed: int
    device: str = "cpu"

    @property
    def processes(self) -> int:
        """How many train."""
        return 1 if ARMS[self.arm].explore is None else self.replicas

    def __str__(self) -> str:
        return f"{self.task} {self.optimizer} {self.arm} {self.replicas} seed {self.seed}"


def execute(rank: int, run: Run, steps: int | None = None) -> Row | None:
    """The run on one of its ranks; the first has the row."""
    torch.set_num_threads(1)
    seed = run.seed + _STRIDE * rank
    with seeded(seed):
        if torch.device(run.device).type == "cuda":
            torch.cuda.manual_seed(seed)
        longer = run.replicas if ARMS[run.arm].alone == "same samples" else 1
        row = _train(run, seed, longer * (TASKS[run.task].steps if steps is None else steps))
    return None if rank else {**asdict(run), **row}


def _train(run: Run, seed: int, steps: int) -> Row:
    setting = TASKS[run.task].build(seed, run.device)
    batches: Callable[[], Batch] = setting.batches
    if run.arm == LARGE:
        batches = _joined(run, setting)
    model = setting.model
    if run.processes > 1:
        hdet.Arms(run.processes).wrap(model)  # all begin with the first one's weights
    model.train()
    (optimizer,) = build(run.optimizer, model, DEFAULT_RATES[run.optimizer])
    arm = ARMS[run.arm]
    _put(arm, model, optimizer)
    probe = hdet.Probe(setting.loss_fn, setting.held_out, model=model)
    auto: Any
    factor = _RateFactor()
    if run.processes > 1:
        auto = hdet.AutoTune(
            optimizer,
            _explored(arm, factor),
            probe=probe,
            total_steps=steps,
            gradients="switch" if arm.shares == "until it stands" else "none",
            seed=run.seed,
        )
        if arm.explore == "rate":
            factor.attach(optimizer)
    else:
        auto = hdet.AutoLR(optimizer, probe=probe, total_steps=steps)
    start, began = mean_loss(setting, setting.test), time.perf_counter()
    for _ in range(steps):
        batch = batches()
        optimizer.zero_grad()
        setting.loss_fn(batch).backward()  # type: ignore[no-untyped-call]
        late = arm.shares == "in the decay" and not auto.searching
        if late or (auto.switches and not auto.trains_alone):
            average_gradients(model)
        optimizer.step()
        auto.step()
        if auto.finished:
            break
    seconds = time.perf_counter() - began
    end = mean_loss(setting, setting.test)
    best = auto.finish_()
    values = {name: value for name, value in auto.values.items() if run.processes > 1 and name[:3] != "lr/"}
    return {
        "start": _finite(start),
        "test": _finite(end),
        "test_chosen": _finite(mean_loss(setting, setting.test)),
        "probe_chosen": _finite(mean_loss(setting, setting.held_out)),
        "rate": _finite(best.rate),
        "chosen_step": best.step,
        "taken": auto.steps,
        "steps": steps,
        "batch": len(batch[0]),
        "rows": setting.rows,
        "values": values,
        "seconds": round(seconds, 3),
    }


def _put(arm: Arm, model: nn.Module, optimizer: Optimizer) -> None:
    """What the replicas begin with."""
    if arm.decay is not None:
        for group in optimizer.param_groups:
            group["weight_decay"] = arm.decay
    if arm.dropout is not None:
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = arm.dropout


def _explored(arm: Arm, factor: _RateFactor) -> Any:
    if arm.explore == "rate":
        return [factor.hyperparameter]
    return "auto" if arm.explore == "auto" else []


class _RateFactor:
    """A factor on AutoTune's learning rate, by which replicas differ: HDET's fan-out, judged by a probe."""

    def __init__(self) -> None:
        self.value = 1.0
        self.hyperparameter = hdet.Hyperparameter(
            "rate",
            lambda: self.value,
            lambda value: setattr(self, "value", float(value)),
            scale="log",
            bounds=(0.1, 10.0),
            spread=_RATES,
        )

    def attach(self, optimizer: Optimizer) -> None:
        """Within every step the learning rate is times the factor."""
        before: list[float] = []

        def enter(*_: object) -> None:
            before[:] = [group["lr"] for group in optimizer.param_groups]
            for group in optimizer.param_groups:
                group["lr"] *= self.value

        def leave(*_: object) -> None:
            for group, lr in zip(optimizer.param_groups, before, strict=True):
                group["lr"] = lr

        optimizer.register_step_pre_hook(enter)
        optimizer.register_step_post_hook(leave)


def _joined(run: Run, setting: Setting) -> Callable[[], Batch]:
    """The batches that the replicas would have, as one."""
    others = [
        TASKS[run.task].build(run.seed + _STRIDE * rank, run.device).batches
        for rank in range(1, run.replicas)
    ]

    def joined() -> Batch:
        parts = [setting.batches(), *(other() for other in others)]
        return tuple(torch.cat(some) for some in zip(*parts, strict=True))

    return joined


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def fits(task: str, replicas: int) -> bool:
    """Whether so many batches of a task can be one."""
    setting = TASKS[task].build(0, "cpu")
    return setting.additive and replicas * len(setting.batches()[0]) <= setting.rows


def compare(rows: Sequence[Row]) -> dict[str, Any]:
    """Of four replicas, for each cell how far AutoTune and averaging ended above the large batch of the same
    seeds, as a share of its loss, and when that was best; and what came of each arm against averaging, in the
    cells where the large batch overfits, in the others, and in all. Of other numbers of replicas, AutoTune
    against the large batch."""
    sizes: dict[int, list[Row]] = {}
    for row in rows:
        sizes.setdefault(row["replicas"], []).append(row)
    others = {size: _against_large(some) for size, some in sorted(sizes.items()) if size != REPLICAS}
    found = _compare(sizes.get(REPLICAS, []))
    return {**found, "sizes": six_digits({str(size): told for size, told in others.items() if told})}


def _cells(rows: Sequence[Row]) -> dict[tuple[str, str], dict[tuple[str, int], Row]]:
    by_cell: dict[tuple[str, str], dict[tuple[str, int], Row]] = {}
    for row in rows:
        by_cell.setdefault((row["task"], row["optimizer"]), {})[row["arm"], row["seed"]] = row
    return by_cell


def _against_large(rows: Sequence[Row]) -> dict[str, Any]:
    kinds: dict[str, list[float]] = {"overfits": [], "does not": [], "all": []}
    for (task, _), known in sorted(_cells(rows).items()):
        above = _above(TASKS[task].floor, known, TUNED, LARGE)
        if above is not None:
            kinds[_kind(_best_at(known, [seed for arm, seed in known if arm == LARGE]))].append(above)
            kinds["all"].append(above)
    return {kind: _told(some) for kind, some in kinds.items() if some}


def _best_at(known: Mapping[tuple[str, int], Row], seeds: Sequence[int]) -> float:
    """The share of the run at which the large batch was best."""
    return statistics.fmean(known[LARGE, seed]["chosen_step"] / known[LARGE, seed]["steps"] for seed in seeds)


def _kind(best_at: float) -> str:
    return "overfits" if best_at < _EARLY else "does not"


def _compare(rows: Sequence[Row]) -> dict[str, Any]:
    lines = []
    for (task, optimizer), known in sorted(_cells(rows).items()):
        seeds = [s for s in sorted({seed for _, seed in known}) if all((arm, s) in known for arm in MAIN)]
        if not seeds:
            continue
        one = known[AVERAGED, seeds[0]]
        floor = TASKS[task].floor
        lines.append(
            {
                "task": task,
                "optimizer": optimizer,
                "part": part_of(TASKS[task].family),
                "seeds": len(seeds),
                "epochs": one["replicas"] * one["batch"] * one["steps"] / one["rows"],
                "best_at": _best_at(known, seeds),
                **{arm: _above(floor, known, arm, LARGE) for arm in (AVERAGED, TUNED)},
                "parts": {
                    arm: above for arm in ARMS if (above := _above(floor, known, arm, AVERAGED)) is not None
                },
            }
        )
    kinds = {
        kind: [line for line in lines if kind in ("all", _kind(line["best_at"]))]
        for kind in ("overfits", "does not", "all")
    }
    told = {
        kind: {arm: _told([line[arm] for line in some]) for arm in (AVERAGED, TUNED)}
        for kind, some in kinds.items()
        if some
    }
    parts = {
        arm: {
            kind: _told(values)
            for kind, some in kinds.items()
            if (values := [line["parts"][arm] for line in some if arm in line["parts"]])
        }
        for arm in ARMS
        if any(arm in line["parts"] for line in lines)
    }
    return {"cells": six_digits(lines), "summary": six_digits(told), "parts": six_digits(parts)}


def _above(floor: float, known: Mapping[tuple[str, int], Row], arm: str, other: str) -> float | None:
    """The mean over the seeds that both have, none beyond 100 %; None where there is none. A run that left
    nothing finite counts as having stayed where it began."""
    seeds = [seed for name, seed in known if name == arm and (other, seed) in known]
    if arm == other or not seeds:
        return None
    above = [excess(_left(known[arm, seed]), _left(known[other, seed]), floor) for seed in seeds]
    return min(statistics.fmean(above), 1.0)


def _left(row: Row) -> float:
    loss = row["start"] if row["test_chosen"] is None else row["test_chosen"]
    return float(loss)


def _told(values: Sequence[float]) -> dict[str, float | None]:
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return {
        "cells": len(values),
        "ahead": sum(value < 0 for value in values),
        "mean": statistics.fmean(values),
        "interval": None if error is None else 2 * error,
        "median": statistics.median(values),
    }


def run(
    part: Sequence[str] | None = None,
    tasks: str = "",
    optimizers: str = "adamw",
    replicas: int = REPLICAS,
    seeds: int = 2,
    arms: str = ";".join(MAIN),
    device: str = "cpu",
    processes: int | None = None,
    minutes: float | None = None,
    rows: Path = ROWS,
    say: Say = print,
) -> dict[str, Any]:
    """Run what is not in ``rows`` yet, for so many ``minutes``, and compare all that is; plain JSON."""
    done: KeptRows[Run] = KeptRows(rows, lambda row: Run(**{f.name: row[f.name] for f in fields(Run)}))
    if minutes != 0:
        some = [cell for one in part or ("fit", "dev") for cell in cells(one)]
        some = [cell for cell in can_run(some, say) if cell[1] in optimizers.split(",")]
        some = [cell for cell in some if cell[0] in (tasks.split(",") if tasks else TASKS)]
        some = sorted((c for c in some if fits(c[0], replicas)), key=lambda cell: -TASKS[cell[0]].steps)
        wanted = [
            Run(*cell, arm, replicas, seed, device)
            for seed in range(seeds)
            for arm in _named(arms)
            for cell in some
            if ARMS[arm].dropout is None or has_dropout(TASKS[cell[0]].build(0, "cpu").model)
        ]
        _run_missing(wanted, done, processes or os.cpu_count() or 1, minutes, device, say)
    return {
        **machine.about("zoo-replicas", quick=False, device=device),
        "command": f"python -m benchmarks.zoo.replicas --device {device}",
        "note": "rates: run by the rule before, which explored from the first window on (commit dee8abe)",
        "errors": sorted(f"{one}: {row['error']}" for one, row in done.failed.items()),
        **compare([*done.finished.values()]),
    }


def _named(arms: str) -> list[str]:
    """The arms of a list between semicolons; their own names have commas."""
    names = [name.strip() for name in arms.split(";")]
    if unknown := [name for name in names if name not in ARMS]:
        raise ValueError(f"--arms must be names of {list(ARMS)}, between semicolons, got {unknown}")
    return names


def _run_missing(
    runs: Sequence[Run], done: KeptRows[Run], cores: int, minutes: float | None, device: str, say: Say
) -> None:
    """The processes of a run together, as many runs at a time as there are cores for."""
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    missing = [run for run in runs if run not in done.finished]
    lock = threading.Lock()

    def work(jobs: queue.SimpleQueue[Run], together: int) -> None:
        with LocalProcesses(together) as ranks:
            while time.monotonic() < deadline:
                try:
                    run = jobs.get_nowait()
                except queue.Empty:
                    return
                try:
                    row: Row = ranks.run(execute, run, timeout=_LIMIT)[0]
                except Exception as error:
                    row = {**asdict(run), "error": f"{type(error).__name__}: {error}"}
                with lock:
                    done.add(row)
                    say(f"{run}: {row.get('error') or row['test_chosen']}")

    with ExitStack() as stack:
        stack.enter_context(environment({"OMP_NUM_THREADS": "1"}))
        if torch.device(device).type == "cuda":
            stack.enter_context(shared_gpu(say))
        for together in sorted({run.processes for run in missing}):
            jobs: queue.SimpleQueue[Run] = queue.SimpleQueue()
            for run in missing:
                if run.processes == together:
                    jobs.put(run)
            threads = [
                threading.Thread(target=work, args=(jobs, together)) for _ in range(max(1, cores // together))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()


def chart(result: Mapping[str, Any]) -> str:
    """An SVG document: when the large batch was best, and how far AutoTune ended above or below it."""
    lines = result["cells"]
    title = "AutoTune on four replicas against one large batch, per cent of its loss"
    parts = axis()
    for line in lines:
        x = LEFT + line["best_at"] * (WIDTH - LEFT - RIGHT)
        name = f"{line['task']}: {100 * line[TUNED]:+.1f} %"
        colour = _AHEAD if line[TUNED] < 0 else _BEHIND
        parts.append(
            f'<circle cx="{x:.1f}" cy="{height(100 * line[TUNED]):.1f}" r="5" fill="{colour}" '
            f'fill-opacity="0.7"><title>{name}</title></circle>'
        )
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x = LEFT + share * (WIDTH - LEFT - RIGHT)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 34}" text-anchor="middle">{100 * share:.0f} %</text>')
    return document(
        title, "Share of the run at which the large batch was best: before the end it overfits", parts
    )


def main() -> None:
    """Run, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--part", choices=PARTS, action="append", help="which families; fit and dev unless given"
    )
    parser.add_argument("--tasks", default="", help="names, between commas; all unless given")
    parser.add_argument("--optimizers", default="adamw", help="between commas")
    parser.add_argument("--replicas", type=int, default=REPLICAS, help="N")
    parser.add_argument("--seeds", type=int, default=2, help="how many")
    parser.add_argument("--arms", default=";".join(MAIN), help=f"between semicolons, of {list(ARMS)}")
    parser.add_argument("--device", default="cpu", help="where to train")
    write_table("zoo-replicas", parser, run, ROWS, chart)


if __name__ == "__main__":
    main()
