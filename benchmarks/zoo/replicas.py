"""When replicas on data of their own beat one large batch: ``python -m benchmarks.zoo.replicas``.

Four ways to spend the same samples on the zoo's tasks, all without a learning rate: one process on a batch N
times as large; N processes that train apart and are averaged at every window, nothing explored; the same with
what ``explore="auto"`` finds; and one replica, with an N-th of the samples. Only tasks count whose loss is a
mean over rows and whose batch, N times as large, is not more than all of them.
"""

from __future__ import annotations

import argparse
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch

import hdet
from benchmarks.pool import Say, shared_gpu
from benchmarks.regret.optimizers import build
from benchmarks.rows import KeptRows, Row, environment
from benchmarks.workloads.base import Batch, seeded
from benchmarks.zoo.catalogue import TASKS, cells
from benchmarks.zoo.command import can_run
from benchmarks.zoo.families import PARTS
from benchmarks.zoo.plan import DEFAULT_RATES
from benchmarks.zoo.runs import mean_loss
from benchmarks.zoo.task import Setting
from hdet.history import SyncRecord
from hdet.replicas.launch import LocalProcesses

__all__ = ["ARMS", "Run", "execute", "main"]

ROWS = Path(__file__).with_name("rows-replicas.jsonl")
ONE, LARGE, AVERAGED, TUNED = "one", "large", "averaged", "tuned"
ARMS = (LARGE, AVERAGED, TUNED, ONE)
#: A rank's seed is that of the run and so many times its number: its batches are its own.
_STRIDE = 1000
#: Of one run, in seconds.
_LIMIT = 300.0


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
        return self.replicas if self.arm in (AVERAGED, TUNED) else 1

    def __str__(self) -> str:
        return f"{self.task} {self.optimizer} {self.arm} {self.replicas} seed {self.seed}"


def execute(rank: int, run: Run, steps: int | None = None) -> Row | None:
    """The run on one of its ranks; the first has the row."""
    torch.set_num_threads(1)
    seed = run.seed + _STRIDE * rank
    with seeded(seed):
        if torch.device(run.device).type == "cuda":
            torch.cuda.manual_seed(seed)
        row = _train(run, seed, TASKS[run.task].steps if steps is None else steps)
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
    probe = hdet.Probe(setting.loss_fn, setting.held_out, model=model)
    seen: list[SyncRecord] = []
    if run.processes > 1:
        explore: Any = [] if run.arm == AVERAGED else "auto"
        auto: Any = hdet.AutoTune(
            optimizer, explore, probe=probe, total_steps=steps, gradients="none", seed=run.seed
        )
    else:
        auto = hdet.AutoLR(optimizer, probe=probe, total_steps=steps)
    start, began = mean_loss(setting, setting.test), time.perf_counter()
    for taken in range(1, steps + 1):
        batch = batches()
        optimizer.zero_grad()
        setting.loss_fn(batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if (record := auto.step()) is not None:
            seen.append(record)
        if auto.finished:
            break
    seconds = time.perf_counter() - began
    end = mean_loss(setting, setting.test)
    best = auto.finish_()
    values = {} if run.arm != TUNED else dict(auto.values)
    return {
        "start": _finite(start),
        "test": _finite(end),
        "test_chosen": _finite(mean_loss(setting, setting.test)),
        "probe_chosen": _finite(mean_loss(setting, setting.held_out)),
        "rate": _finite(best.rate),
        "chosen_step": best.step,
        "taken": taken,
        "steps": steps,
        "batch": len(batch[0]),
        "rows": setting.rows,
        "values": values,
        "windows": [_window(record) for record in seen if record.horizon],
        "seconds": round(seconds, 3),
    }


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


def _window(record: SyncRecord) -> list[float | None]:
    """Step, rate, lag, what is tolerated, gap, progress; and each replica's loss at its own mean above that of
    all."""
    seen = record.horizon[0]
    own = [loss for loss in record.losses if loss is not None]
    apart = sum(own) / len(own) - seen.loss_mean if own and seen.loss_mean is not None else math.nan
    rate = record.hyperparameters[0].base_before
    found = (record.step, rate, seen.lag, seen.tolerated, seen.gap, seen.progress, seen.loss_mean, apart)
    return [None if value is None else _finite(float(value)) for value in found]


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def fits(task: str, replicas: int) -> bool:
    """Whether so many batches of a task can be one."""
    setting = TASKS[task].build(0, "cpu")
    return setting.additive and replicas * len(setting.batches()[0]) <= setting.rows


def run_all(
    runs: Sequence[Run], rows: Path, *, cores: int, minutes: float | None, device: str, say: Say = print
) -> None:
    """Run what is not in ``rows`` yet, on as many processes as there are cores, those of one run together."""
    done: KeptRows[Run] = KeptRows(rows, lambda row: Run(**{f.name: row[f.name] for f in fields(Run)}))
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    missing = [run for run in runs if run not in done.finished]
    lock = threading.Lock()
    with ExitStack() as stack:
        stack.enter_context(environment({"OMP_NUM_THREADS": "1"}))
        if torch.device(device).type == "cuda":
            stack.enter_context(shared_gpu(say))
        for processes in sorted({run.processes for run in missing}):
            jobs: queue.SimpleQueue[Run] = queue.SimpleQueue()
            for run in missing:
                if run.processes == processes:
                    jobs.put(run)

            def work(jobs: queue.SimpleQueue[Run] = jobs, processes: int = processes) -> None:
                with LocalProcesses(processes) as ranks:
                    for run in _until(jobs, deadline):
                        try:
                            row: Row = ranks.run(execute, run, timeout=_LIMIT)[0]
                        except Exception as error:
                            row = {**asdict(run), "error": f"{type(error).__name__}: {error}"[:2000]}
                        with lock:
                            done.add(row)
                            say(f"{run}: {row.get('error') or row['test_chosen']}")

            threads = [threading.Thread(target=work) for _ in range(max(1, cores // processes))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()


def _until(jobs: queue.SimpleQueue[Run], deadline: float) -> Iterator[Run]:
    while time.monotonic() < deadline:
        try:
            yield jobs.get_nowait()
        except queue.Empty:
            return


def main() -> None:
    """Run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="which families")
    parser.add_argument("--tasks", default="", help="names, between commas")
    parser.add_argument("--optimizers", default="adamw")
    parser.add_argument("--arms", default=",".join(ARMS[:3]))
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--rows", type=Path, default=ROWS)
    given = parser.parse_args()
    chosen = [cell for part in given.part or PARTS for cell in cells(part)]
    chosen = [c for c in can_run(chosen, print) if c[1] in given.optimizers.split(",")]
    if given.tasks:
        chosen = [cell for cell in chosen if cell[0] in given.tasks.split(",")]
    chosen = [cell for cell in chosen if fits(cell[0], given.replicas)]
    runs = [
        Run(*cell, arm, given.replicas, seed, given.device)
        for seed in range(given.seeds)
        for arm in given.arms.split(",")
        for cell in sorted(chosen, key=lambda cell: -TASKS[cell[0]].steps)
    ]
    print(len(runs), "runs of", len(chosen), "cells")
    run_all(runs, given.rows, cores=given.cores, minutes=given.minutes, device=given.device)


if __name__ == "__main__":
    main()
