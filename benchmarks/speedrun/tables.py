"""What became of the runs: each arm's means, and its difference to the rates tuned by hand."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.rows import Row, six_digits
from benchmarks.speedrun.runs import ARMS, RECIPE, Run

__all__ = ["PUBLISHED", "analyse", "markdown", "z_test"]

#: Accuracy of airbench94_muon by its authors, mean of 200 runs.
PUBLISHED = 0.9401
_NEAR, _ALPHA, _MARGIN = 0.005, 0.001, 0.002
_MEASURES = ("accuracy_augmented", "accuracy", "loss")
_HAND = "hand"


def z_test(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """The difference of the means, half the width of its 95 % interval, and p, two-sided.

    >>> [round(value, 3) for value in z_test([1.0, 2.0, 3.0], [1.0, 1.5, 2.0])]
    [0.5, 1.265, 0.439]
    """
    difference = statistics.fmean(ours) - statistics.fmean(theirs)
    error = math.sqrt(sum(statistics.variance(values) / len(values) for values in (ours, theirs)))
    if not error:
        return difference, 0.0, float(difference == 0)
    return difference, 1.96 * error, math.erfc(abs(difference) / error / math.sqrt(2))


def analyse(rows: Mapping[Run, Row]) -> dict[str, Any]:
    """By arm; differences are to the rates tuned by hand."""
    by_arm = {arm: [row for run, row in rows.items() if run.arm == arm] for arm in ARMS}
    told = {arm: _told(of_arm, by_arm[_HAND]) for arm, of_arm in by_arm.items() if of_arm}
    hand = told.get(_HAND, {}).get("accuracy_augmented", {}).get("mean", math.nan)
    result = {
        "settings": {**RECIPE, "rates": ARMS},
        "published": PUBLISHED,
        "reproduced": abs(hand - PUBLISHED) <= _NEAR,
        "arms": told,
        "rows": list(rows.values()),
    }
    return six_digits(result)  # type: ignore[no-any-return]


def _told(rows: Sequence[Row], hand: Sequence[Row]) -> dict[str, Any]:
    told: dict[str, Any] = {
        "runs": len(rows),
        "seconds": statistics.median(row["seconds"] for row in rows),
        "trained_on": rows[0]["trained_on"],
        "taken": sorted({row["taken"] for row in rows}),
    }
    for name in _MEASURES:
        ours, theirs = ([row[name] for row in some if row[name] is not None] for some in (rows, hand))
        if not ours:
            continue
        told[name] = {"mean": statistics.fmean(ours), "finite": len(ours)}
        if len(ours) > 1:
            told[name]["deviation"] = statistics.stdev(ours)
        if rows is not hand and min(len(ours), len(theirs)) > 1:
            told[name] |= _against(ours, theirs, name)
    return told


def _against(ours: Sequence[float], theirs: Sequence[float], name: str) -> dict[str, Any]:
    difference, half, p = z_test(ours, theirs)
    if p < _ALPHA:
        verdict = "better" if (difference < 0) == (name == "loss") else "worse"
    else:
        near = name != "loss" and abs(difference) + half <= _MARGIN
        verdict = "equal" if near else "not told apart"
    return {"difference": difference, "half_width": half, "p": p, "verdict": verdict}


_NAMES = {
    "hand": "by hand",
    "autolr": "AutoLR, no rate",
    "default": "default rates",
    "hand, fewer": "by hand, AutoLR's images",
}


def markdown(result: Mapping[str, Any]) -> str:
    """One row for each arm; accuracies in per cent. Differences in the other measures are in the JSON."""
    heads = ["arm", "runs", "images", "accuracy, augmented", "against *by hand*", "accuracy", "test loss"]
    lines = [_line(heads), "|" + " --- |" * len(heads)]
    for arm, told in result["arms"].items():
        augmented, accuracy, loss = (told.get(name) for name in _MEASURES)
        cells = [_NAMES[arm], str(told["runs"]), f"{told['trained_on']:,}", _mean(augmented, 100)]
        lines.append(_line([*cells, _difference(augmented), _mean(accuracy, 100), _mean(loss, 1)]))
    return "\n".join(lines)


def _mean(told: Mapping[str, Any] | None, unit: int) -> str:
    if told is None:
        return "not finite"
    digits = 2 if unit == 100 else 3
    spread = f" ± {unit * told['deviation']:.{digits}f}" if "deviation" in told else ""
    return f"{unit * told['mean']:.{digits}f}{spread}"


def _difference(told: Mapping[str, Any] | None) -> str:
    if told is None or "difference" not in told:
        return "–"
    p = "p < 0.001" if told["p"] < _ALPHA else f"p = {told['p']:.3f}"
    return f"{100 * told['difference']:+.2f} ± {100 * told['half_width']:.2f}, {p}: {told['verdict']}"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
