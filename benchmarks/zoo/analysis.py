"""From rows to the table: what each method costs beside the tuned sweep, per cell and per part.

*Excess* is (loss − the sweep's) / the sweep's loss, over means of all seeds: once against the sweep as it
ends, once against the sweep with the choice of weights. The unit is no smaller than the task's floor. A run
that leaves no finite loss counts as having stayed where it began. Where losses go to zero a single cell rules
a mean; ``mean_to_one`` counts no cell as more than 1.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.rows import Row, six_digits
from benchmarks.zoo.catalogue import TASKS
from benchmarks.zoo.families import PARTS, part_of
from benchmarks.zoo.others import OTHERS, others
from benchmarks.zoo.plan import PEERS, Cell, Plan, Run, best_settings, first_seed, loss_of
from hdet.autolr.prior import likely_rates

__all__ = ["MEASURES", "analyse", "excess", "excess_loss"]

#: As it ends, and with the choice of weights.
MEASURES = ("test", "test_chosen")
#: Which loss of a method is compared with each of the sweep's; "before" is AutoLR with the rule of 0.2.0.
_PLAIN = {"test": "test", "test_chosen": "test_chosen"}
_CHOOSES = {"test": "test_chosen", "test_chosen": "test_chosen"}
_LOSSES = {
    **{"autolr": _CHOOSES, "before": _CHOOSES, "default": _PLAIN},
    **dict.fromkeys((*PEERS, *OTHERS), _PLAIN),
}
#: Goals for AutoLR on the test families, with the choice of weights: a name, of which number, at most.
_GOALS = (
    ("mean excess at most 2 %", "mean", 0.02),
    ("median excess at most 1 %", "median", 0.01),
    ("nine of ten at most 5 %", "nine_of_ten", 0.05),
    ("worst excess at most 10 %", "worst", 0.1),
    ("at least: mean excess 3 %", "mean", 0.03),
    ("at least: median excess 1.5 %", "median", 0.015),
    ("at least: worst excess 20 %", "worst", 0.2),
)
#: A run is lost that ends so far above the sweep, or within so small a share of where it began.
_FAR, _NO_WAY = 0.25, 0.1


def excess(loss: float, best: float, floor: float = 0.0) -> float:
    """How far above the best, as a share.

    >>> excess(1.5, 1.0), excess(0.75, 0.25, floor=1.0), excess(-1.5, -2.0)
    (0.5, 0.5, 0.25)
    """
    return (loss - best) / max(abs(best), floor, 1e-12)


def analyse(plan: Plan, finished: Mapping[Run, Row]) -> dict[str, Any]:
    """One line for each cell whose sweep has begun, and what they come to in every part."""
    first = first_seed(plan, finished)
    instead = others(first)
    lines = [
        _line(plan, cell, swept, finished, instead[cell]) for cell, swept in first.items() if cell in instead
    ]
    parts = {part: [line for line in lines if line["part"] == part] for part in PARTS}
    summary = {
        part: six_digits({method: _summary(some, method) for method in _LOSSES})
        for part, some in {**parts, "all": lines}.items()
        if some
    }
    return {"cells": six_digits(lines), "summary": summary, "goals": _goals(summary.get("test"))}


def _goals(test: Mapping[str, Any] | None) -> dict[str, Any]:
    """What was to be reached on the test families, and was."""
    if test is None or not test["autolr"]["cells"]:
        return {}
    auto, default = test["autolr"], test["default"]
    measured = {name: (auto["test_chosen"][of], at_most) for name, of, at_most in _GOALS}
    measured["no run lost"] = auto["lost"], 0
    measured["at least: one run lost in 300"] = auto["lost"], auto["runs"] / 300
    goals = {
        name: {"measured": value, "at_most": at_most, "met": value <= at_most}
        for name, (value, at_most) in measured.items()
    }
    if default["cells"]:
        ahead = auto["test_chosen"]["ahead_of_default"] / auto["cells"]
        for name, share in (("two of three", 2 / 3), ("at least: every second", 1 / 2)):
            goals[f"ahead of the default rate in {name}"] = {
                **{"measured": ahead, "at_least": share, "met": ahead >= share}
            }
        mean = auto["test_chosen"]["mean"], default["test_chosen"]["mean"]
        goals["ahead of the default rate in the mean"] = {
            **{"measured": mean[0], "at_most": mean[1], "met": mean[0] <= mean[1]}
        }
    return six_digits(goals)  # type: ignore[no-any-return]


def _line(
    plan: Plan,
    cell: Cell,
    swept: Mapping[tuple[float, str], Row],
    finished: Mapping[Run, Row],
    instead: Mapping[str, Row],
) -> dict[str, Any]:
    task = TASKS[cell[0]]
    best = {
        setting: [finished.get(plan.fixed(cell, setting, seed)) for seed in range(plan.seeds)]
        for setting in best_settings(swept)
    }
    sweep = {measure: _better(best, measure) for measure in MEASURES}
    line: dict[str, Any] = {
        **{"task": cell[0], "optimizer": cell[1], "family": task.family, "part": part_of(task.family)},
        **{"steps": task.steps, "sweep": sweep, "start": next(iter(swept.values()))["start"]},
    }
    for method, seen in _LOSSES.items():
        if method in OTHERS:
            rows = [instead[method]] if method in instead else []
        else:
            own = [plan.run(method, cell, seed) for seed in range(plan.seeds)]
            rows = [finished[one] for one in own if one in finished]
        line[method] = _method(rows, seen, sweep, task.floor) if rows else None
    return line


def _method(
    rows: Sequence[Row], seen: Mapping[str, str], sweep: Mapping[str, Any], floor: float
) -> dict[str, Any]:
    told: dict[str, Any] = {"seeds": len(rows)}
    for measure in MEASURES:
        losses = [excess_loss(row, seen[measure]) for row in rows]
        told[f"excess_{measure}"] = excess(statistics.fmean(losses), sweep[measure]["loss"], floor)
    best = sweep["test_chosen"]["loss"]
    told["lost"] = sum(_lost(row, seen["test_chosen"], best, floor) for row in rows)
    told["reached"] = [row["reached"] for row in rows]
    told["likely"] = sum(_likely(row, sweep["test_chosen"]["rate"]) for row in rows)
    told["back"] = sum(row["back"] for row in rows)
    told["early"] = sum(row["taken"] < row["steps"] for row in rows)
    return told


def _lost(row: Row, name: str, best: float, floor: float) -> bool:
    loss = excess_loss(row, name)
    return excess(loss, best, floor) > _FAR or row["start"] - loss < _NO_WAY * (row["start"] - best)


def _likely(row: Row, tuned: float) -> bool:
    """Whether the tuned rate is one of those that a run would have told to expect."""
    low, high = likely_rates(row.get("found") or math.nan)
    return low <= tuned <= high


def _better(best: Mapping[tuple[float, str], Sequence[Row | None]], measure: str) -> dict[str, Any]:
    """The better of the two settings that seed 0 led to, by the seeds that both have."""
    both = [rows for rows in zip(*best.values(), strict=True) if None not in rows]
    means = {
        setting: statistics.fmean(excess_loss(rows[place], measure) for rows in both)
        for place, setting in enumerate(best)
    }
    rate, schedule = min(means, key=lambda setting: means[setting])
    return {"loss": means[rate, schedule], "rate": rate, "schedule": schedule, "seeds": len(both)}


def _summary(lines: Sequence[Mapping[str, Any]], method: str) -> dict[str, Any]:
    some = [line for line in lines if line[method] is not None]
    told: dict[str, Any] = {
        "cells": len(some),
        "runs": sum(line[method]["seeds"] for line in some),
        "lost": sum(line[method]["lost"] for line in some),
    }
    if method == "autolr" and some:
        told["likely"] = sum(line[method]["likely"] for line in some) / told["runs"]
    for measure in MEASURES if some else ():
        values = sorted(line[method][f"excess_{measure}"] for line in some)
        told[measure] = {
            "mean": statistics.fmean(values),
            "mean_to_one": statistics.fmean(min(value, 1.0) for value in values),
            "median": statistics.median(values),
            "nine_of_ten": values[math.ceil(0.9 * len(values)) - 1],
            "worst": values[-1],
            "ahead_of_default": sum(_ahead(line, method, measure) for line in some),
        }
        both = [line["autolr"][f"excess_{measure}"] for line in some if line["autolr"] is not None]
        if method in PEERS and both:  # which are not for every cell
            told[measure]["autolr_there"] = statistics.fmean(min(value, 1.0) for value in both)
    return told


def _ahead(line: Mapping[str, Any], method: str, measure: str) -> bool:
    other, name = line["default"], f"excess_{measure}"
    return other is not None and bool(line[method][name] < other[name])


def excess_loss(row: Row | None, name: str) -> float:
    """Where it began, if the run has left nothing finite."""
    assert row is not None
    loss = loss_of(row, name)
    return loss if math.isfinite(loss) else float(row["start"])
