"""From the runs to the table: what each arm would have handed over, beside the best setting of the sweep.

Of all weights that an arm could hand over, the probe chooses; what is reported is their loss on the test's
samples. Excess is that loss over the truth's of the same seed, in per cent. All of it is arithmetic on
rows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.autotune.plan import ARMS, AUTOTUNE, SWEEP
from benchmarks.regret.analysis import interval
from benchmarks.rows import Row

__all__ = ["BEHIND", "NEAR", "REACHED", "Outcome", "analyse", "outcome", "truth"]

#: What counts as reached, and what as near: so far above the truth, in per cent.
REACHED, NEAR = 2.0, 3.0
#: From so many per cent on AutoTune counts as behind.
BEHIND = 2.0


@dataclass(frozen=True)
class Outcome:
    """What one arm came to on one task with one seed."""

    probe: float
    test: float
    samples: int
    core_seconds: float
    trials: int
    pruned: int
    #: Each improvement by the probe: samples spent by then, loss on the probe, loss on the test.
    points: tuple[tuple[int, float, float], ...]

    def samples_to(self, loss: float) -> int | None:
        """After how many samples the weights that the probe chose were as good on the test's samples."""
        return next((samples for samples, _, test in self.points if test <= loss), None)


def outcome(rows: Iterable[Row]) -> Outcome:
    """The rows of one arm, task and seed as one search, a run after the other by their numbers."""
    points: list[tuple[int, float, float]] = []
    spent, seconds, trials, pruned = 0, 0.0, 0, 0
    for row in sorted(rows, key=lambda row: int(row["number"])):
        for samples, probe, test in row["points"] or [(row["samples"], row["probe"], row["test"])]:
            if not points or probe < points[-1][1]:
                points.append((spent + samples, probe, test))
        spent += row["samples"]
        seconds += row["seconds"] * row["cores"]
        trials += row["trials"]
        pruned += row["pruned"]
    _, probe, test = points[-1]
    return Outcome(probe, test, spent, seconds, trials, pruned, tuple(points))


def truth(rows: Iterable[Row]) -> dict[int, Row]:
    """Of the sweep's settings that most seeds have tried, the one with the best mean probe loss; by seed."""
    by_number: dict[int, dict[int, Row]] = {}
    for row in rows:
        by_number.setdefault(row["number"], {})[row["seed"]] = row
    if not by_number:
        return {}
    most = max(map(len, by_number.values()))
    tried = [found for found in by_number.values() if len(found) == most]
    return min(tried, key=lambda found: statistics.fmean(row["probe"] for row in found.values()))


def analyse(rows: Sequence[Row], single: Mapping[str, int]) -> dict[str, Any]:
    """A line for each task and arm, and the verdicts; plain JSON.

    Args:
        rows: of all finished runs.
        single: of each task, the samples of a single run.
    """
    tasks = [_task(task, [row for row in rows if row["task"] == task], size) for task, size in single.items()]
    return {"tasks": tasks, "verdicts": verdicts(tasks)}


def _task(task: str, rows: Sequence[Row], single: int) -> dict[str, Any]:
    swept = [row for row in rows if row["arm"] == SWEEP]
    best = truth(swept)
    losses = {seed: float(row["test"]) for seed, row in best.items()}
    first = next(iter(best.values()), {})
    mean, half = _interval(list(losses.values()))
    lines = []
    for arm in ARMS:
        by_seed: dict[int, list[Row]] = {}
        for row in rows:
            if row["arm"] == arm:
                by_seed.setdefault(row["seed"], []).append(row)
        if by_seed:
            found = {seed: outcome(some) for seed, some in sorted(by_seed.items())}
            lines.append(_line(arm, found, losses, single))
    return {
        "task": task,
        "single_run_samples": single,
        "truth": {
            "test": mean,
            "test_half_width": half,
            "swept": len({row["number"] for row in swept}),
            "seeds": len(losses),
            "setting": {name: first.get(name) for name in _SETTING} if first else None,
        },
        "arms": lines,
    }


_SETTING = ("lr", "weight_decay", "dropout", "label_smoothing")


def _line(arm: str, found: Mapping[int, Outcome], truths: Mapping[int, float], single: int) -> dict[str, Any]:
    mean, half = _interval([one.test for one in found.values()])
    line: dict[str, Any] = {"arm": arm, "seeds": len(found), "test": mean, "test_half_width": half}
    line["by_seed"] = {str(seed): one.test for seed, one in found.items()}
    # A seed that the truth has not been confirmed by yet is held against the mean of those that it has.
    usual = statistics.fmean(truths.values()) if truths else math.nan
    against = {seed: truths.get(seed, usual) for seed in found}
    excess = [100 * (one.test / against[seed] - 1) for seed, one in found.items()] if truths else []
    line["excess"], line["excess_half_width"] = _interval(excess)
    limits = {seed: (1 + REACHED / 100) * loss for seed, loss in against.items()}
    reached = [one.samples_to(limits[seed]) for seed, one in found.items()] if truths else []
    runs = [samples / single for samples in reached if samples is not None]
    # The middle of all seeds, where those that never got there come last.
    order = sorted(runs) + [math.inf] * (len(found) - len(runs))
    middle = statistics.median(order) if truths else math.inf
    line["runs_to_reach"] = middle if math.isfinite(middle) else None
    line["reached"] = len(runs)
    line["runs_spent"] = statistics.fmean(one.samples for one in found.values()) / single
    line["core_seconds"] = statistics.fmean(one.core_seconds for one in found.values())
    line["trials"] = statistics.fmean(one.trials for one in found.values())
    line["pruned"] = statistics.fmean(one.pruned for one in found.values())
    return line


def verdicts(tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """On how many tasks AutoTune is ahead of each other arm, and on how many each is near the truth."""
    by_task = [{line["arm"]: line for line in task["arms"]} for task in tasks]
    ahead: dict[str, Any] = {}
    near: dict[str, Any] = {}
    for arm in ARMS:
        both = [(lines[AUTOTUNE], lines[arm]) for lines in by_task if arm in lines and AUTOTUNE in lines]
        if arm != AUTOTUNE and both:
            ahead[arm] = {
                "ahead": sum(_mean_difference(*pair) < 0 for pair in both),
                "clearly": sum(_is_clear(*pair) for pair in both),
                "of": len(both),
                "by": statistics.fmean(_lead(*pair) for pair in both),
                "behind": sum(_is_behind(*pair) for pair in both),
            }
        judged = [lines[arm]["excess"] for lines in by_task if arm in lines]
        judged = [excess for excess in judged if excess is not None]
        if judged:
            within = sum(excess <= NEAR for excess in judged)
            near[arm] = {"near": within, "of": len(judged), "excess": statistics.fmean(judged)}
    return {"autotune_ahead_of": ahead, "near_the_truth": near}


def _differences(mine: Mapping[str, Any], other: Mapping[str, Any]) -> list[float]:
    """Seed by seed, where both have it."""
    return [
        loss - other["by_seed"][seed] for seed, loss in mine["by_seed"].items() if seed in other["by_seed"]
    ]


def _mean_difference(mine: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    differences = _differences(mine, other)
    return statistics.fmean(differences) if differences else float(mine["test"] - other["test"])


def _lead(mine: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """How far below the other one it ends, in per cent of the other's loss."""
    return float(-100 * _mean_difference(mine, other) / other["test"])


def _is_behind(mine: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the whole interval of the differences is more than 2 % of the other's loss above it."""
    mean, half = _interval(_differences(mine, other))
    return mean is not None and half is not None and mean - half > BEHIND / 100 * other["test"]


def _is_clear(mine: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether the whole interval of the differences is on AutoTune's side."""
    mean, half = _interval(_differences(mine, other))
    return mean is not None and half is not None and mean + half < 0


def _interval(values: Sequence[float]) -> tuple[float | None, float | None]:
    return interval(values) if values else (None, None)
