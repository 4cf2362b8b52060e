"""What a user would do instead, read from the sweep's rows: no run of its own.

One rate for each optimizer, chosen on the fit families; the usual rate of hdet's prior; and the best by the
probe of a few rates drawn at random. All with OneCycle, each at the half-decade of the sweep that is nearest.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from math import comb
from pathlib import Path
from typing import Any

from benchmarks.rows import Row
from benchmarks.zoo.catalogue import TASKS
from benchmarks.zoo.families import part_of
from benchmarks.zoo.plan import Cell, loss_of
from hdet.autolr.prior import usual_rate

__all__ = ["OTHERS", "PACES", "others", "paces"]

Swept = Mapping[tuple[float, str], Row]
#: By how much of their norm a unit of rate moves the weights in a step, at first: for each cell, measured.
PACES = Path(__file__).with_name("paces.json")
OTHERS = ("one rate", "prior", "random 4", "random 8")


def paces() -> dict[Cell, float]:
    """For each cell."""
    told = json.loads(PACES.read_text(encoding="utf-8"))["paces"]
    return {(task, optimizer): pace for task, optimizer, pace in told}


def others(first: Mapping[Cell, Swept]) -> dict[Cell, dict[str, Row]]:
    """For each cell whose sweep has begun, the row that each of them would have led to."""
    swept = {cell: _one_cycle(rows) for cell, rows in first.items()}
    swept = {cell: rows for cell, rows in swept.items() if rows}
    fixed, known = _one_rate(swept), paces()
    found: dict[Cell, dict[str, Row]] = {}
    for cell, rows in swept.items():
        found[cell] = {"random 4": _random(rows, 4), "random 8": _random(rows, 8)}
        if cell[1] in fixed:
            found[cell]["one rate"] = _nearest(rows, fixed[cell[1]])
        if cell in known:
            found[cell]["prior"] = _nearest(rows, usual_rate(known[cell]))
    return found


def _one_cycle(rows: Swept) -> dict[float, Row]:
    return {rate: row for (rate, schedule), row in rows.items() if schedule == "onecycle"}


def _nearest(rows: Mapping[float, Row], rate: float) -> Row:
    return rows[min(rows, key=lambda known: abs(math.log(known / rate)))]


def _one_rate(swept: Mapping[Cell, Mapping[float, Row]]) -> dict[str, float]:
    """The rate with the lowest mean excess, no more than 1 counted, over the fit cells of an optimizer."""
    fit = {cell: rows for cell, rows in swept.items() if part_of(TASKS[cell[0]].family) == "fit"}
    chosen = {}
    for optimizer in sorted({cell[1] for cell in fit}):
        own = {cell: rows for cell, rows in fit.items() if cell[1] == optimizer}
        rates = sorted({rate for rows in own.values() for rate in rows})

        def cost(rate: float, own: Mapping[Cell, Mapping[float, Row]] = own) -> float:
            return statistics.fmean(_cost(TASKS[cell[0]].floor, rows, rate) for cell, rows in own.items())

        chosen[optimizer] = min(rates, key=cost)
    return chosen


def _cost(floor: float, rows: Mapping[float, Row], rate: float) -> float:
    losses = {known: loss_of(row, "test_chosen") for known, row in rows.items()}
    best = min(losses.values())
    return min((losses.get(rate, math.inf) - best) / max(abs(best), floor, 1e-12), 1.0)


def _random(rows: Mapping[float, Row], count: int) -> Row:
    """What to expect of the best by the probe among ``count`` rates drawn from the sweep's without return."""
    count = min(count, len(rows))

    def expected(test: str, probe: str) -> float:
        def rank(row: Row) -> float:
            return loss_of(row, probe)

        ordered = sorted(rows.values(), key=rank)
        draws = comb(len(ordered), count)
        shares = [comb(len(ordered) - 1 - place, count - 1) / draws for place in range(len(ordered))]
        return sum(share * _left(row, test) for share, row in zip(shares, ordered, strict=True) if share)

    some = next(iter(rows.values()))
    told: dict[str, Any] = {"test": expected("test", "probe")}
    told["test_chosen"] = expected("test_chosen", "probe_chosen")
    return {**some, **told, "reached": None, "back": 0}


def _left(row: Row, name: str) -> float:
    """Where it began, if nothing finite is left."""
    loss = loss_of(row, name)
    return loss if math.isfinite(loss) else float(row["start"])
