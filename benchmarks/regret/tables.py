"""The excess of every arm as cells of a table, and AutoLR's in detail; from the JSON file alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.regret.analysis import COLUMNS, PEERS, digits
from benchmarks.regret.excess import TRIALS, excess_of, name_of

__all__ = ["detail", "leading", "matrix", "unpaired_note"]

_MEASURES = {
    "chosen": "chosen over chosen",
    "ends": "both as they end",
    "chosen_over_ends": "chosen over the sweep as it ends",
}
Grid = tuple[list[str], list[list[str]]]


def leading(found: Mapping[str, Any]) -> str:
    """The measure that a table shows first: chosen over chosen, or, of old files, both as they end."""
    pairs = found["pairs"]
    known = any(not math.isnan(excess_of(pair, arm, "chosen")) for pair in pairs for arm in pair["arms"])
    return "chosen" if known or not pairs else "ends"


def matrix(found: Mapping[str, Any], bold: Callable[[str], str]) -> Grid:
    """A line for each workload and optimizer, a column for each arm, then means and worst of each measure.

    A cell is the leading measure with its interval and, in brackets, both as they end. ``bold`` marks the
    best arm of a line that asks for no rate.
    """
    measure = leading(found)
    metric = "chosen" if measure == "chosen" else "held_out"
    shown = [arm for arm in COLUMNS if any(arm in pair["arms"] for pair in found["pairs"])]
    lines = []
    for pair in found["pairs"]:
        free = {arm: excess_of(pair, arm, measure) for arm in (*PEERS, "autolr")}
        known = {arm: value for arm, value in free.items() if not math.isnan(value)}
        first = min(known, key=lambda arm: known[arm], default=None)
        cells = [_cell(pair["arms"].get(arm), measure) for arm in shown]
        cells = [bold(cell) if arm == first else cell for arm, cell in zip(shown, cells, strict=True)]
        lines.append([name_of(pair), _tuned(pair["tuned"][metric]), *cells])
    for measure, words in _MEASURES.items():
        for which in ("mean", "worst"):
            cells = [_summary(found["overall"][arm][measure], which) for arm in shown]
            if set(cells) - {"–"}:
                lines.append([f"{which}, {words}", "", *cells])
    return ["workload, optimizer", "tuned: loss @ LR", *(COLUMNS[arm] for arm in shown)], lines


def detail(found: Mapping[str, Any], arm: str = "autolr") -> Grid:
    """One arm by every measure, and what its loss is worth: a rate off by so much, so many random rates."""
    measure = leading(found)
    metric = "chosen" if measure == "chosen" else "held_out"
    lines = []
    for pair in found["pairs"]:
        if arm not in pair["arms"]:
            continue
        cells, best = pair["arms"][arm], pair["tuned"][metric]
        random = best.get("best_of_random", {})
        lines.append(
            [
                name_of(pair),
                *(_excess(cells[name]) for name in _MEASURES),
                _off(cells[measure]),
                _trials(cells[measure]),
                *(_over(random.get(str(trials)), best["loss"]) for trials in TRIALS),
            ]
        )
    overall = found["overall"].get(arm)
    if overall is not None:
        over = overall[measure]
        medians = [_times(over["median_off"]), _number(over["median_trials"])]
        rest = [""] * len(TRIALS)
        means = [_summary(overall[name], "mean") for name in _MEASURES]
        lines.append(["mean; median of the factors and numbers", *means, *medians, *rest])
        lines.append(["worst", *(_summary(overall[name], "worst") for name in _MEASURES), "", "", *rest])
    best_of = [f"best of {trials} random, %" for trials in TRIALS]
    words = [f"{word}, %" for word in _MEASURES.values()]
    return ["workload, optimizer", *words, "as a rate off by", "worth random rates", *best_of], lines


def unpaired_note(found: Mapping[str, Any], arm: str = "autolr") -> str:
    """What pairing by seed leaves out, where sweeps have fewer seeds than the arm; else empty."""
    over = found["overall"].get(arm, {}).get(leading(found), {})
    if "mean_all_seeds" not in over:
        return ""
    mean, worst = (
        "∞" if over[name] is None else digits(over[name]) for name in ("mean_all_seeds", "worst_all_seeds")
    )
    return (
        f"Seeds that a sweep lacks are left out; with all of {COLUMNS[arm]}'s seeds, over the mean of the "
        f"tuned runs, the mean is {mean} and the worst {worst} %."
    )


def _tuned(best: Mapping[str, Any]) -> str:
    return "–" if best["loss"] is None else f"{best['loss']:.4g} @ {best['lr']:.2g} {best['schedule']}"


def _cell(cells: Mapping[str, Any] | None, measure: str) -> str:
    if cells is None:
        return "–"
    if measure == "ends":
        return _excess(cells["ends"])
    return f"{_excess(cells[measure])} ({_excess(cells['ends'], with_error=False)})"


def _excess(cell: Mapping[str, Any], *, with_error: bool = True) -> str:
    if cell["lost"]:
        return "∞"
    if cell["excess"] is None:
        return "–"
    half = cell["half_width"] if with_error else None
    return digits(cell["excess"]) + (f" ± {digits(half)}" if half is not None else "")


def _summary(over: Mapping[str, Any], which: str) -> str:
    if not over["pairs"]:
        return "–"
    return "∞" if over[which] is None else digits(over[which])


def _off(cell: Mapping[str, Any]) -> str:
    if "off" not in cell:
        return "–"
    factor, more_than = cell["off"]["factor"], cell["off"]["more_than"]
    if factor is None:
        return f"more than {_times(more_than)}"
    return _times(factor) if more_than is None else f"{_times(more_than)} to {_times(factor)}"


def _times(factor: float | None) -> str:
    return "beyond the sweep" if factor is None else f"× {factor:.3g}"


def _trials(cell: Mapping[str, Any]) -> str:
    return _number(cell["trials"]) if "off" in cell else "–"


def _number(trials: float | None) -> str:
    """None is as good as the best of the sweep, or better."""
    return "all" if trials is None else f"{trials:.2g}" if trials < 10 else f"{trials:.0f}"


def _over(loss: float | None, best: float | None) -> str:
    return "–" if loss is None or best is None or best <= 0 else digits(100 * (loss / best - 1))
