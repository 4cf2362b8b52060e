"""What a learning rate that nobody gave costs.

*Excess* is
L/L_tuned − 1 in per cent, seed by seed against the tuned run of the same seed; beside it stand the factor by
which a hand-picked rate would have to be off to do as badly, and how many random rates one would have to try
to expect as much (:mod:`benchmarks.regret.curve`). All of it is arithmetic on rows.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.regret.analysis import COLUMNS, PEERS, Tuned, by_pair, interval, tuned
from benchmarks.regret.curve import Curve
from benchmarks.regret.plan import Row, knows, loss_of

__all__ = ["MEASURES", "TRIALS", "compare", "excess_of", "name_of"]

#: What is compared: an arm's loss with the best of the sweep by that loss, or by another one.
MEASURES = {
    "chosen": ("chosen", "chosen"),
    "ends": ("held_out", "held_out"),
    "chosen_over_ends": ("chosen", "held_out"),
}
#: How many random rates.
TRIALS = (1, 3, 10, 30)
#: Goals on AutoLR's excess, chosen over chosen: name, of which number, per cent.
_LIMITS = (
    ("mean excess of AutoLR, chosen over chosen, at most 2 %", "mean", 2.0),
    ("worst excess at most 5 %", "worst", 5.0),
    ("at least: mean excess 4 %", "mean", 4.0),
    ("at least: worst excess 10 %", "worst", 10.0),
)


@dataclass(frozen=True)
class _Yardstick:
    """The best of a sweep by one loss, and the sweep under its schedule as a curve."""

    metric: str
    best: Tuned | None
    curve: Curve | None
    #: Why there is no best.
    reason: str = ""


def compare(rows: Sequence[Row], failed: Sequence[Row] = ()) -> dict[str, Any]:
    """Each workload and optimizer, each arm over all of them, and the goals; plain JSON.

    ``failed`` are the rows of runs that raised: they have no loss, but count against the goals.
    """
    pairs = [found for pair, its in by_pair(rows).items() if (found := _pair(*pair, its)) is not None]
    arms = list(dict.fromkeys(arm for pair in pairs for arm in pair["arms"]))
    overall = {arm: {measure: _overall(pairs, arm, measure) for measure in MEASURES} for arm in arms}
    return {"pairs": pairs, "overall": overall, "goals": _goals(pairs, overall, [*rows, *failed])}


# ---------------------------------------------------------------------- one workload and optimizer


def _pair(workload: str, optimizer: str, rows: Sequence[Row]) -> dict[str, Any] | None:
    swept = [row for row in rows if row["arm"] == "sweep"]
    if not swept:
        return None
    yardsticks = {metric: _yardstick(swept, metric) for metric in ("held_out", "chosen")}
    by_arm: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["arm"] != "sweep":
            by_arm[row["arm"]].append(row)
    arms = {
        arm: {name: _cell(its_rows, mine, yardsticks[theirs]) for name, (mine, theirs) in MEASURES.items()}
        for arm, its_rows in by_arm.items()
    }
    told = {metric: _told(yardstick) for metric, yardstick in yardsticks.items()}
    return {"workload": workload, "optimizer": optimizer, "tuned": told, "arms": arms}


def _yardstick(swept: Sequence[Row], metric: str) -> _Yardstick:
    unknown = sum(not knows(row, metric) for row in swept)
    if unknown:
        return _Yardstick(metric, None, None, f"{unknown} of {len(swept)} swept runs tell no {metric} loss")
    best = tuned(swept, metric)
    if best is None:
        return _Yardstick(metric, None, None, "no seed is common to the whole sweep")
    if not math.isfinite(best.mean(metric)):
        return _Yardstick(metric, None, None, "every run of the sweep diverged")
    return _Yardstick(metric, best, _curve(swept, best, metric))


def _curve(swept: Iterable[Row], best: Tuned, metric: str) -> Curve | None:
    """The sweep under the schedule of its best, on that one's seeds; None of a single rate.

    A rate that has some of the seeds alone is compared with the best on those.
    """
    differences: dict[float, list[float]] = defaultdict(list)
    for row in swept:
        if row["schedule"] == best.schedule and (twin := best.by_seed.get(row["seed"])) is not None:
            differences[row["lr"]].append(_capped(row, metric) - _capped(twin, metric))
    if len(differences) < 2:
        return None
    level = _level(best, metric)
    return Curve({lr: level + statistics.fmean(values) for lr, values in differences.items()}, best.lr)


def _level(best: Tuned, metric: str) -> float:
    return statistics.fmean(_capped(row, metric) for row in best.rows)


def _capped(row: Row, metric: str) -> float:
    """Who ends worse than he began, or diverges, still has the untrained model."""
    return min(loss_of(row, metric), float(row["init"]))


def _told(yardstick: _Yardstick) -> dict[str, Any]:
    best, curve = yardstick.best, yardstick.curve
    if best is None:
        return {"loss": None, "reason": yardstick.reason}
    told = {
        "loss": best.mean(yardstick.metric),
        "lr": best.lr,
        "schedule": best.schedule,
        "seeds": len(best.rows),
    }
    if curve is None:
        return told
    return {**told, "best_of_random": {str(trials): curve.best_of(trials) for trials in TRIALS}}


def _cell(rows: Sequence[Row], metric: str, yardstick: _Yardstick) -> dict[str, Any]:
    """One arm by one measure; where a number is None, ``reason`` says why."""
    found: dict[str, Any] = {"excess": None, "half_width": None, "seeds": 0, "lost": 0}
    best = yardstick.best
    if best is None:
        return {**found, "reason": yardstick.reason}
    if unknown := sum(not knows(row, metric) for row in rows):
        return {**found, "reason": f"{unknown} of {len(rows)} runs tell no {metric} loss"}
    paired = [(row, best.by_seed[row["seed"]]) for row in rows if row["seed"] in best.by_seed]
    if not paired:
        return {**found, "reason": "no seed in common with the tuned run"}
    losses = [(loss_of(row, metric), loss_of(twin, yardstick.metric)) for row, twin in paired]
    found |= {"seeds": len(paired), "lost": sum(math.isinf(loss) for loss, _ in losses)}
    lowest = min(min(both) for both in losses)
    if lowest <= 0:
        found["reason"] = f"a ratio of losses needs positive ones, got {lowest:.4g}"
    else:
        mean, half = interval([100 * (loss / target - 1) for loss, target in losses])
        found |= {"excess": mean if math.isfinite(mean) else None, "half_width": half}
        if found["lost"]:
            found["reason"] = f"{found['lost']} of {len(paired)} runs have no finite loss"
        if len(rows) > len(paired):
            found["all_seeds"] = _of_all_seeds(rows, best, metric, yardstick.metric)
    if yardstick.curve is not None:
        gaps = [_capped(row, metric) - _capped(twin, yardstick.metric) for row, twin in paired]
        found |= _off(yardstick.curve, _level(best, yardstick.metric) + statistics.fmean(gaps))
    return found


def _of_all_seeds(rows: Iterable[Row], best: Tuned, metric: str, theirs: str) -> float | None:
    """The mean over all seeds of an arm over the yardstick's, which has fewer: unpaired."""
    mean = statistics.fmean(loss_of(row, metric) for row in rows)
    return 100 * (mean / best.mean(theirs) - 1) if math.isfinite(mean) else None


def _off(curve: Curve, loss: float) -> dict[str, Any]:
    off, trials = curve.off(loss), curve.trials(loss)
    return {
        "off": {"factor": off.factor, "above": off.above, "below": off.below, "more_than": off.more_than},
        # None: at or below the lowest of the sweep, which no number of its rates is.
        "trials": trials if math.isfinite(trials) else None,
    }


# ---------------------------------------------------------------------- all of them


def name_of(pair: Mapping[str, Any]) -> str:
    """Workload and optimizer."""
    return f"{pair['workload']} {pair['optimizer']}"


def excess_of(pair: Mapping[str, Any], arm: str, measure: str) -> float:
    """Infinity where a run has no finite loss, not a number where it is not known or the arm not there."""
    cell = pair["arms"].get(arm, {}).get(measure)
    if cell is None or not (cell["lost"] or cell["excess"] is not None):
        return math.nan
    return math.inf if cell["lost"] else float(cell["excess"])


def _overall(pairs: Sequence[dict[str, Any]], arm: str, measure: str) -> dict[str, Any]:
    """Mean and worst over the pairs that know it; None stands for infinity where a run has no finite loss."""
    known = {name_of(pair): value for pair in pairs if not math.isnan(value := excess_of(pair, arm, measure))}
    worst = max(known, key=lambda name: known[name], default=None)
    cells = [pair["arms"][arm][measure] for pair in pairs if arm in pair["arms"]]
    read = [cell for cell in cells if "off" in cell]
    of_all = [
        cell.get("all_seeds", cell["excess"]) for cell in cells if cell["lost"] or cell["excess"] is not None
    ]
    # Who is off by more than the sweep reached, or worth more trials than any, is above every number.
    factors = [_above(cell["off"]["factor"]) for cell in read]
    trials = [_above(cell["trials"]) for cell in read]
    return {
        "pairs": len(known),
        "lost": sum(math.isinf(value) for value in known.values()),
        "mean": _finite(statistics.fmean(known.values())) if known else None,
        "worst": _finite(known[worst]) if worst else None,
        "worst_on": worst,
        # Where a sweep has fewer seeds than the arm: what pairing leaves out.
        **(_unpaired(of_all) if any("all_seeds" in cell for cell in cells) else {}),
        "median_off": _finite(statistics.median(factors)) if factors else None,
        "median_trials": _finite(statistics.median(trials)) if trials else None,
    }


def _unpaired(values: Sequence[float | None]) -> dict[str, Any]:
    known = [_above(value) for value in values]
    return {"mean_all_seeds": _finite(statistics.fmean(known)), "worst_all_seeds": _finite(max(known))}


def _goals(
    pairs: Sequence[dict[str, Any]], overall: Mapping[str, dict[str, Any]], rows: Iterable[Row]
) -> dict[str, Any]:
    ours = overall.get("autolr", {})
    goals: dict[str, Any] = {}
    for name, which, limit in _LIMITS:
        goals[name] = _at_most(ours.get("chosen", {}).get(which), limit)
    goals["ahead of the default rate, in mean and in worst"] = _ahead(pairs, ("default-onecycle",))
    goals["ahead of every peer that asks for no rate, in mean and in worst"] = _ahead(pairs, PEERS)
    goals["mean excess, chosen over the sweep as it ends, at most 0 %"] = _at_most(
        ours.get("chosen_over_ends", {}).get("mean"), 0.0
    )
    runs = [row for row in rows if row["arm"] == "autolr"]
    worse = [
        f"{row['workload']} {row['optimizer']} {row['arm']} seed {row['seed']}"
        for row in runs
        if row.get("error") or not _handed_over(row) <= row["init"]
    ]
    goals["nothing ends worse than it began"] = {
        "at_most": 0,
        "measured": len(worse),
        "of": len(runs),
        "behind": worse,
        "met": bool(runs) and not worse,
    }
    return goals


def _at_most(value: float | None, limit: float) -> dict[str, Any]:
    return {"at_most": limit, "measured": value, "met": value is not None and value <= limit}


def _ahead(pairs: Sequence[dict[str, Any]], others: Iterable[str]) -> dict[str, Any]:
    """AutoLR against each of the others, on the pairs that know both, chosen over chosen."""
    behind: list[str] = []
    compared = 0
    for other in others:
        both = [(excess_of(pair, "autolr", "chosen"), excess_of(pair, other, "chosen")) for pair in pairs]
        both = [known for known in both if not any(map(math.isnan, known))]
        if not both:
            continue
        ours, theirs = zip(*both, strict=True)
        for name, of in (("mean", statistics.fmean), ("worst", max)):
            compared += 1
            if not of(ours) < of(theirs):
                text = f"{of(ours):.1f} against {of(theirs):.1f} %"
                behind.append(f"{COLUMNS[other]}: {name} {text} on {len(both)}")
    return {
        "at_most": 0,
        "measured": len(behind),
        "of": compared,
        "behind": behind,
        "met": bool(compared) and not behind,
    }


def _handed_over(row: Row) -> float:
    return loss_of(row, "held_out" if row.get("chosen_step") is None else "chosen")


def _above(value: float | None) -> float:
    return math.inf if value is None else float(value)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
