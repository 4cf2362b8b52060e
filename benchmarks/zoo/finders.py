"""By what factor a rate found before training is off: ``python -m benchmarks.zoo.finders``.

:func:`hdet.find` and a range test, as Lightning does it, beside the sweeps of the zoo that are committed;
benchmarks/pretrained/PROTOCOL.md, part 5, says what is compared.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch

import hdet
from benchmarks import machine
from benchmarks.pool import complete, workers
from benchmarks.regret.arms import prepare
from benchmarks.regret.optimizers import build
from benchmarks.rows import KeptRows, Row, failure, six_digits
from benchmarks.workloads.base import Batch, seeded
from benchmarks.zoo.analysis import excess
from benchmarks.zoo.catalogue import TASKS, cells
from benchmarks.zoo.command import can_run, write_table
from benchmarks.zoo.families import PARTS
from benchmarks.zoo.plan import DEFAULT_RATES, Cell, loss_of, run_of
from benchmarks.zoo.prior import ROWS as COMMITTED
from benchmarks.zoo.task import Setting

__all__ = ["FINDERS", "ROWS", "Run", "compare", "execute", "main", "range_test", "steepest", "truth"]

ROWS = Path(__file__).with_name("rows-finders.jsonl")
_STEPS = 400
#: Of Lightning's Tuner.lr_find.
_LOWEST, _HIGHEST, _TESTED, _SMOOTH, _STOP, _SKIPPED = 1e-8, 1.0, 100, 0.98, 4.0, (10, 1)


@dataclass(frozen=True, slots=True)
class Run:
    """One search on a cell."""

    task: str
    optimizer: str
    finder: str
    seed: int = 0
    device: str = "cpu"


def execute(run: Run) -> Row:
    """The rate found, or an error; never raises."""
    try:
        began = time.perf_counter()
        with seeded(run.seed):
            setting = TASKS[run.task].build(run.seed, run.device)
            setting.model.train()
            (optimizer,) = build(run.optimizer, setting.model, DEFAULT_RATES[run.optimizer])
            rate = FINDERS[run.finder](setting, optimizer)
        return {**asdict(run), "rate": rate, "seconds": round(time.perf_counter() - began, 2)}
    except Exception as error:
        return failure(run, error)


class _Batches:
    """The task's batches without an end, as a loader that can be begun again."""

    def __init__(self, setting: Setting) -> None:
        self._next = setting.batches

    def __iter__(self) -> Iterator[Batch]:
        return (self._next() for _ in count())


def _find(setting: Setting, optimizer: Any) -> float:
    return hdet.find(setting.model, optimizer, setting.loss_fn, _Batches(setting), steps=_STEPS).lr[0]


def range_test(setting: Setting, optimizer: Any) -> float | None:
    """The rate rises step by step; the one at which the smoothed loss falls most steeply. None where the loss
    is no number before there are enough."""
    rates: list[float] = []
    losses: list[float] = []
    mean, best = 0.0, math.inf
    for step in range(_TESTED):
        rate = _LOWEST * (_HIGHEST / _LOWEST) ** (step / _TESTED)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        loss = setting.loss_fn(setting.batches())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        mean = _SMOOTH * mean + (1 - _SMOOTH) * float(loss.detach())
        smooth = mean / (1 - _SMOOTH ** (step + 1))
        if not math.isfinite(smooth) or (step > 1 and smooth > _STOP * best):
            break
        best = min(best, smooth)
        rates.append(rate)
        losses.append(smooth)
    return steepest(rates, losses)


def steepest(rates: Sequence[float], losses: Sequence[float]) -> float | None:
    """Without the first ten and the last.

    >>> steepest([*range(15)], [9.0] * 11 + [8.0, 5.0, 4.0, 0.0])
    11
    """
    first, last = _SKIPPED
    kept = torch.tensor(losses[first : len(losses) - last], dtype=torch.float64)
    return rates[first + int(torch.gradient(kept)[0].argmin())] if len(kept) > 1 else None


FINDERS: Mapping[str, Callable[[Setting, Any], float | None]] = {
    "hdet.find": _find,
    "range test": range_test,
    "default": lambda setting, optimizer: float(optimizer.param_groups[0]["lr"]),
}


def truth(rows: Sequence[Row]) -> dict[Cell, dict[float, Row]]:
    """Of each cell, the sweep's runs at a constant rate that decays at the end, by rate."""
    found: dict[Cell, dict[float, Row]] = {}
    for row in rows:
        if row["method"] == "fixed" and row["schedule"] == "wsd" and row["seed"] == 0:
            found.setdefault((row["task"], row["optimizer"]), {})[row["rate"]] = row
    return found


def compare(rows: Sequence[Row], sweeps: Mapping[Cell, Mapping[float, Row]]) -> dict[str, Any]:
    """By finder: the factor between its rate and the sweep's best, and what the sweep's rate next to it ends
    above the best, no cell counted for more than 100 %. A search without a result is off by more than all."""
    found: dict[str, Any] = {}
    for finder in FINDERS:
        factors, signed, above = [], [], []
        for row in (row for row in rows if row["finder"] == finder):
            sweep = sweeps[row["task"], row["optimizer"]]
            best = min(sweep, key=lambda rate: loss_of(sweep[rate], "probe_chosen"))
            if row["rate"] is None:
                factors.append(math.inf)
                above.append(1.0)
                continue
            off = math.log10(row["rate"] / best)
            signed.append(off)
            factors.append(10 ** abs(off))
            near = min(sweep, key=lambda rate: abs(math.log(rate / row["rate"])))
            lowest = loss_of(sweep[best], "test_chosen")
            ends = excess(loss_of(sweep[near], "test_chosen"), lowest, TASKS[row["task"]].floor)
            above.append(min(1.0, ends))
        if factors:
            ordered = sorted(factors)
            found[finder] = {
                "cells": len(factors),
                "median_factor": _finite(statistics.median(factors)),
                "nine_in_ten": _finite(ordered[math.ceil(0.9 * len(ordered)) - 1]),
                "within_3.2": sum(factor <= 3.2 for factor in factors),
                "within_10": sum(factor <= 10 for factor in factors),
                "median_signed": 10 ** statistics.median(signed) if signed else None,
                "mean_above": statistics.fmean(above),
                "nothing_found": sum(factor == math.inf for factor in factors),
            }
    return found


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def run(part: str, processes: int | None, minutes: float | None, rows: Path) -> dict[str, Any]:
    """Search what has not been searched, and compare all that has."""
    sweeps = truth(list(KeptRows(COMMITTED, run_of).finished.values()))
    usual = [cell for cell in cells(part) if cell[1] in ("adamw", "sgd") and cell in sweeps]
    plan = [Run(*cell, finder) for cell in can_run(usual, print) for finder in FINDERS]
    done = KeptRows(rows, lambda row: Run(row["task"], row["optimizer"], row["finder"], row["seed"]))
    at_once = processes or os.cpu_count() or 1
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    with workers("cpu", at_once, print, prepare) as pool:
        complete(
            lambda: plan,
            done,
            pool,
            execute,
            at_once=at_once,
            deadline=deadline,
            say=lambda text: print(text, flush=True),
            told=str,
        )
    finished = [
        done.finished.get(one, {**asdict(one), "rate": None})  # one that raised has found nothing
        for one in plan
        if one in done.finished or one in done.failed
    ]
    return {
        **machine.about("zoo-finders", quick=False, device="cpu"),
        "command": f"python -m benchmarks.zoo.finders --part {part}",
        "part": part,
        "steps": {"hdet.find": _STEPS, "range test": _TESTED, "default": 0},
        "raised": [row["error"] for row in done.failed.values()],
        "finders": six_digits(compare(finished, sweeps)),
    }


def main() -> None:
    """Search, and write what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=PARTS, default="test", help="which families")
    write_table("zoo-finders", parser, run, ROWS)


if __name__ == "__main__":
    main()
