"""From the runs to the table: what each arm lost against the tuned sweep, and against one replica alone.

Regret is (L − L_tuned)/(L_init − L_tuned) in per cent, each run against the tuned one of its seed: of the
loss that the run ends with, over the sweep as it ends, and of the weights that the probe chose, over the
sweep's.
What replicas add is a difference of regrets, of the same workload, optimizer and seed, from the run of one
replica; its interval is over all of these. All of it is arithmetic on rows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.fan_out.plan import PROBES, SWEEP
from benchmarks.regret.analysis import Tuned, interval, tuned
from benchmarks.rows import Row

__all__ = ["METRICS", "analyse", "exponent", "follows"]

METRICS = ("held_out", "chosen")
_Pair = tuple[str, str, int]


def analyse(rows: Sequence[Row]) -> dict[str, Any]:
    """A line for each N, what each workload says, and what follows in words; plain JSON."""
    pairs = list(dict.fromkeys((row["workload"], row["optimizer"]) for row in rows))
    yardsticks = {pair: {metric: _tuned(rows, pair, metric) for metric in METRICS} for pair in pairs}
    measured = [row for row in rows if row["arm"] != SWEEP]
    by_size: dict[int, dict[_Pair, Row]] = {}
    for row in measured:
        by_size.setdefault(row["replicas"], {})[row["workload"], row["optimizer"], row["seed"]] = row
    regrets = {
        size: {metric: _regrets(found, yardsticks, metric) for metric in METRICS}
        for size, found in by_size.items()
    }
    lines = [
        _line(size, by_size[size], regrets[size], by_size.get(1, {}), regrets.get(1, {}))
        for size in sorted(by_size)
    ]
    return {
        "lines": lines,
        "pairs": [_pair(pair, yardsticks[pair], regrets) for pair in pairs],
        "follows": follows(lines),
    }


def _tuned(rows: Sequence[Row], pair: tuple[str, str], metric: str) -> Tuned | None:
    swept = [
        row
        for row in rows
        if (row["workload"], row["optimizer"]) == pair and row["arm"] == SWEEP and row.get(metric) is not None
    ]
    best = tuned(swept, metric)
    return best if best is not None and math.isfinite(_loss(best, metric)) else None


def _loss(best: Tuned, metric: str) -> float:
    return statistics.fmean(float(row[metric]) for row in best.rows)


def _regrets(
    found: Mapping[_Pair, Row],
    yardsticks: Mapping[tuple[str, str], Mapping[str, Tuned | None]],
    metric: str,
) -> dict[_Pair, float]:
    """In per cent; infinite where a run diverged; without those whose sweep has not got so far."""
    regrets = {}
    for (workload, optimizer, seed), row in found.items():
        best = yardsticks[workload, optimizer][metric]
        twin = None if best is None else best.by_seed.get(seed)
        if twin is None or not twin["init"] > twin[metric]:
            continue
        loss = math.inf if row["diverged"] or row[metric] is None else row[metric]
        regrets[workload, optimizer, seed] = 100 * (loss - twin[metric]) / (twin["init"] - twin[metric])
    return regrets


def _line(
    replicas: int,
    found: Mapping[_Pair, Row],
    regrets: Mapping[str, Mapping[_Pair, float]],
    alone: Mapping[_Pair, Row],
    regrets_alone: Mapping[str, Mapping[_Pair, float]],
) -> dict[str, Any]:
    line: dict[str, Any] = {
        "arm": PROBES,
        "replicas": replicas,
        "runs": len(found),
        "diverged": sum(row["diverged"] for row in found.values()),
    }
    for metric in METRICS:
        own, others = regrets[metric], regrets_alone.get(metric, {})
        differences = [own[key] - others[key] for key in own if key in others]
        line[metric] = {
            **_interval("regret", list(own.values())),
            **({} if replicas == 1 else _interval("difference", differences)),
            "median_difference": statistics.median(differences) if differences and replicas > 1 else None,
            "better": sum(d < 0 for d in differences),
            "compared": len(differences),
        }
    line["progress_error_ratio"] = _ratio(found, alone, "progress_error")
    line["decision_error"] = _mean([row["decision_error"] for row in found.values()])
    return line


def _interval(name: str, values: Sequence[float]) -> dict[str, float | None]:
    if not values or not all(map(math.isfinite, values)):
        return {name: None, f"{name}_half_width": None}
    mean, half = interval(values)
    return {name: mean, f"{name}_half_width": half}


def _ratio(found: Mapping[_Pair, Row], alone: Mapping[_Pair, Row], what: str) -> float | None:
    """The geometric mean of its ratio to what one replica alone has."""
    ratios = [
        row[what] / alone[key][what]
        for key, row in found.items()
        if key in alone and row[what] and alone[key][what]
    ]
    return statistics.geometric_mean(ratios) if ratios else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _pair(
    pair: tuple[str, str],
    yardstick: Mapping[str, Tuned | None],
    regrets: Mapping[int, Mapping[str, Mapping[_Pair, float]]],
) -> dict[str, Any]:
    """Of one workload and optimizer: the yardstick, and the regret of each N over the seeds."""
    found: dict[str, Any] = {"workload": pair[0], "optimizer": pair[1]}
    for metric, best in yardstick.items():
        found[f"tuned_{metric}"] = (
            None if best is None else {"loss": _loss(best, metric), "lr": best.lr, "schedule": best.schedule}
        )
    found["arms"] = [
        {
            "arm": PROBES,
            "replicas": replicas,
            **{
                metric: _interval("regret", [x for key, x in of_size[metric].items() if key[:2] == pair])
                for metric in METRICS
            },
        }
        for replicas, of_size in regrets.items()
    ]
    return found


# ---------------------------------------------------------------------- in words


def exponent(lines: Sequence[Mapping[str, Any]]) -> float | None:
    """The power of N that the error of the progress falls with: −½ is expected."""
    known = [
        (math.log(line["replicas"]), math.log(line["progress_error_ratio"]))
        for line in lines
        if line["progress_error_ratio"]
    ]
    if len({x for x, _ in known}) < 2:
        return None
    slope, _ = statistics.linear_regression([x for x, _ in known], [y for _, y in known])
    return slope


def follows(lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the table says, one sentence for each N, and one for the noise."""
    said = []
    power = exponent(lines)
    if power is not None:
        said.append(f"probing in parallel, the error of the progress falls like N^{power:.2f}")
    for line in lines:
        if line["replicas"] > 1:
            name = f"N = {line['replicas']}"
            verdicts = [
                f"{'the end' if metric == 'held_out' else 'the choice'} {_verdict(line[metric])}"
                for metric in METRICS
            ]
            said.append(f"{name}: {'; '.join(verdicts)}")
    return said


def _verdict(found: Mapping[str, Any]) -> str:
    mean, half = found["difference"], found["difference_half_width"]
    if not found["compared"]:
        return "has not been compared"
    of = f"better in {found['better']} of {found['compared']}"
    if mean is None:
        return f"is lost in some runs ({of})"
    if half is None:
        return f"differs from one replica's by {mean:+.2f} points, of one run"
    what = "is better than" if mean + half < 0 else "is worse than" if mean - half > 0 else "is not told from"
    return f"{what} one replica's: {mean:+.2f} ± {half:.2f} points ({of})"
