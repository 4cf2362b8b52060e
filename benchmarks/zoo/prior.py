"""Fits hdet's prior, ``python -m benchmarks.zoo.prior``: from how far the first steps carry to the best rate.

On the fit families alone: log10 of the best rate is a line in log10 of the pace. The best rate of a cell is
the mean of the sweep's, in logarithms, each weighted by exp(−excess / 0.03). What is left out by turns is a
family.
``--measure`` takes the first steps of every cell again and writes ``paces.json``.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.rows import Row
from benchmarks.zoo.catalogue import TASKS, cells
from benchmarks.zoo.others import PACES, paces
from benchmarks.zoo.plan import Cell, Plan, first_seed, loss_of, run_of
from benchmarks.zoo.runs import pace_of

__all__ = ["best_rates", "fit", "main"]

ROWS = Path(__file__).with_name("rows-cuda.jsonl")
_UNIT = 0.03

Line = tuple[float, float]


def best_rates(rows: Path = ROWS, device: str = "cuda") -> dict[Cell, float]:
    """log10 of the best rate under warmup-stable-decay, for each cell, by its first seed."""
    kept = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    finished = {run_of(row): row for row in kept if "error" not in row}
    first = first_seed(Plan(cells(), device=device), finished)
    return {cell: _best(TASKS[cell[0]].floor, swept) for cell, swept in first.items() if swept}


def _best(floor: float, swept: Mapping[tuple[float, str], Row]) -> float:
    losses = {rate: loss_of(row, "test_chosen") for (rate, how), row in swept.items() if how == "wsd"}
    lowest = min(losses.values())
    weights = {
        rate: math.exp(-(loss - lowest) / max(abs(lowest), floor, 1e-12) / _UNIT)
        for rate, loss in losses.items()
    }
    return math.fsum(w * math.log10(rate) for rate, w in weights.items()) / math.fsum(weights.values())


def fit(points: Sequence[tuple[float, float]]) -> Line:
    """Least squares: the height at 0 and the slope."""
    x, y = zip(*points, strict=True)
    slope, height = statistics.linear_regression(x, y)
    return height, slope


def _points(part: str) -> dict[Cell, tuple[float, float]]:
    known, best = paces(), best_rates()
    return {
        cell: (math.log10(known[cell]), best[cell]) for cell in cells(part) if cell in known and cell in best
    }


def _error(line: Line, points: Sequence[tuple[float, float]]) -> float:
    return math.sqrt(statistics.fmean((line[0] + line[1] * x - y) ** 2 for x, y in points))


def _left_out(points: Mapping[Cell, tuple[float, float]]) -> dict[str, float]:
    """For each family the error, in decades, of a line fitted without it; and of a constant."""
    families = sorted({TASKS[cell[0]].family for cell in points})
    squares: dict[str, list[float]] = {"line": [], "constant": []}
    for family in families:
        rest = [point for cell, point in points.items() if TASKS[cell[0]].family != family]
        height, slope = fit(rest)
        mean = statistics.fmean(y for _, y in rest)
        for cell, (x, y) in points.items():
            if TASKS[cell[0]].family == family:
                squares["line"].append((height + slope * x - y) ** 2)
                squares["constant"].append((mean - y) ** 2)
    return {name: math.sqrt(statistics.fmean(some)) for name, some in squares.items()}


def main() -> dict[str, Any]:
    """Print the two coefficients, their error on each part, and leave-one-family-out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", action="store_true", help="take the first steps of every cell again")
    if parser.parse_args().measure:
        measured = [[*cell, pace] for cell in cells() if (pace := pace_of(*cell)) is not None]
        told = {**machine.about("paces", quick=False, device="cpu"), "paces": measured}
        PACES.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    points = {part: _points(part) for part in ("fit", "dev")}
    line = fit(list(points["fit"].values()))
    found = {
        "height": line[0],
        "slope": line[1],
        "cells": len(points["fit"]),
        "error": {part: _error(line, list(some.values())) for part, some in points.items()},
        "left_out": _left_out(points["fit"]),
    }
    print(json.dumps(found, indent=1))
    return found


if __name__ == "__main__":
    main()
