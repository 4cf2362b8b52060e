"""What a table of runs stands on: the tuned sweep of each workload, and intervals of confidence."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.regret.plan import Row, loss_of

__all__ = [
    "COLUMNS",
    "LOOKED_AT",
    "PEERS",
    "Tuned",
    "by_pair",
    "digits",
    "interval",
    "tuned",
]

#: The workloads that were looked at while the defaults were chosen: the first five from the beginning, the
#: others when the rule of 2026-11-16 was made (docs/log.md).
LOOKED_AT = (
    *("digits-mlp", "digits-cnn", "quadratic", "charlm", "images"),
    *("sentences", "bikes", "ratings", "wordlm", "few-images", "diffusion", "vae"),
    *("charlm-tuned", "charlm-lora"),
)
#: Arms in the order of the table, with their headings.
COLUMNS = {
    "default-onecycle": "default LR, OneCycle",
    "greedy": "GreedyLR",
    "prodigy": "Prodigy",
    "prodigy-schedulefree": "Prodigy + Schedule-Free",
    "schedule-free": "Schedule-Free",
    "autolr": "AutoLR",
}
#: What else asks for no learning rate.
PEERS = ("greedy", "prodigy", "prodigy-schedulefree", "schedule-free")

# Student's t, two-sided 95 %, for 1…20 degrees of freedom.
_T95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)


@dataclass(frozen=True)
class Tuned:
    """The best of a sweep: which it is, and its row for each seed."""

    lr: float
    schedule: str
    by_seed: Mapping[int, Row]

    def mean(self, metric: str) -> float:
        """The mean over its seeds of a final loss."""
        return _mean(loss_of(row, metric) for row in self.rows)

    @property
    def rows(self) -> list[Row]:
        """One for each seed."""
        return list(self.by_seed.values())


def tuned(rows: Iterable[Row], metric: str = "held_out") -> Tuned | None:
    """The learning rate and schedule with the lowest mean over the seeds; None if nothing was swept.

    Candidates are compared on the same seeds. One with fewer seeds than others is left out, unless it is the
    best on the seeds that all have: then those are all that counts.
    """
    candidates: dict[tuple[float, str], dict[int, Row]] = defaultdict(dict)
    for row in rows:
        if row["arm"] == "sweep":
            candidates[row["lr"], row["schedule"]][row["seed"]] = row
    if not candidates:
        return None
    shared = set.intersection(*(set(by_seed) for by_seed in candidates.values()))
    most = max(map(len, candidates.values()))

    def mean(candidate: tuple[float, str], seeds: Iterable[int]) -> float:
        return _mean(loss_of(candidates[candidate][seed], metric) for seed in seeds)

    if not shared:
        return None
    best = min(candidates, key=lambda candidate: mean(candidate, shared))
    if len(candidates[best]) == most:
        full = [candidate for candidate in candidates if set(candidates[candidate]) == set(candidates[best])]
        shared = set(candidates[best])
        best = min(full, key=lambda candidate: mean(candidate, shared))
    return Tuned(*best, {seed: candidates[best][seed] for seed in sorted(shared)})


def interval(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and half the width of its 95 % confidence interval where there are two values or more.

    >>> mean, half = interval([1.0, 2.0, 3.0])
    >>> mean, round(half, 3)
    (2.0, 2.484)
    """
    mean = _mean(values)
    if len(values) < 2 or not math.isfinite(mean):
        return mean, None
    freedom = len(values) - 1
    t = _T95[freedom - 1] if freedom <= len(_T95) else 1.96 + 2.4 / freedom
    return mean, t * statistics.stdev(values) / math.sqrt(len(values))


def by_pair(rows: Iterable[Row]) -> dict[tuple[str, str], list[Row]]:
    """The rows of each workload and optimizer."""
    found: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        found[row["workload"], row["optimizer"]].append(row)
    return found


def digits(value: float) -> str:
    """Two decimals below ten, one below a hundred, else none."""
    return f"{value:.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f}"


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)
