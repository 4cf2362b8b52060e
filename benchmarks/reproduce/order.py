"""Whether the published order of learning rates emerges: transformer lowest, no_decay highest.

Each seed gives its parameter groups ranks, by how far auto-LR has brought them from where its decay alone
would be. If nothing were behind the ranks, every order would be as likely as any other: both tests count
orders, and need no approximation.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

from benchmarks.rows import Row

__all__ = ["binomial_tail", "friedman", "friedman_p", "order", "ranks"]

LOWEST, HIGHEST = "transformer", "no_decay"


def order(
    rows: Sequence[Row], control_from: int, steps: int, decay: str = "schedule"
) -> dict[str, Any] | None:
    """The groups' order in every seed's run, and both tests; None without a run whose factors are known.

    What counts is the geometric mean of a group's factor over the last half of the controlled part.
    """
    since = (control_from + steps) / 2
    means = [mean for row in rows if (mean := _mean_factors(row, since)) is not None]
    if not means:
        return None
    groups = list(means[0])
    ranked = [ranks([mean[group] for group in groups]) for mean in means]
    found: dict[str, Any] = {
        "seeds": len(means),
        "mean_factors": means,
        "by_seed": [sorted(groups, key=mean.__getitem__) for mean in means],
        "published": _published(means),
        "any_order": {
            "test": "Friedman",
            "statistic": friedman(ranked),
            "p": friedman_p(ranked),
            "method": "exact",
        },
        "median_abs_log_factor": {
            group: statistics.median(abs(math.log(mean[group])) for mean in means) for group in groups
        },
        # The last learning rate, in parts of the highest.
        "residual": [
            lrs[-1] / max(filter(None, lrs)) for row in rows for lrs in row["lrs"].values() if lrs[-1]
        ],
        "decay": decay,
    }
    return {**found, "sentence": _sentence(found)}


def _published(means: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """In how many seeds the two groups that the paper names stand where it says, against chance."""
    lowest = [_below_all_others(mean, LOWEST) for mean in means]
    highest = [_below_all_others({name: -value for name, value in mean.items()}, HIGHEST) for mean in means]
    both = sum(low and high for low, high in zip(lowest, highest, strict=True))
    groups = len(means[0])
    chance = 1 / (groups * (groups - 1))
    return {
        "both": both,
        "transformer_lowest": sum(lowest),
        "no_decay_highest": sum(highest),
        "of": len(means),
        "chance": chance,
        "p": binomial_tail(both, len(means), chance),
    }


def binomial_tail(successes: int, of: int, chance: float) -> float:
    """How likely at least so many successes are by chance.

    >>> binomial_tail(1, 2, 0.5)
    0.75
    """
    return sum(
        math.comb(of, count) * chance**count * (1 - chance) ** (of - count)
        for count in range(successes, of + 1)
    )


def ranks(values: Sequence[float]) -> tuple[float, ...]:
    """From 1 for the lowest; equals share the mean of their ranks.

    >>> ranks([0.3, 0.1, 0.3])
    (2.5, 1.0, 2.5)
    """
    return tuple(
        1 + sum(other < value for other in values) + (sum(other == value for other in values) - 1) / 2
        for value in values
    )


def friedman(ranked: Sequence[Sequence[float]]) -> float:
    """Friedman's statistic of a row of ranks for each seed: 0 if no column is ever ahead in the sum."""
    return _statistic(tuple(map(sum, zip(*ranked, strict=True))), len(ranked))


def friedman_p(ranked: Sequence[Sequence[float]]) -> float:
    """The share of all ways to permute the ranks within the rows whose statistic is as large or larger.

    Rows are added one by one. Since all orders of a row come, only the sorted sums are told apart.
    """
    sums: Counter[tuple[float, ...]] = Counter({(0.0,) * len(ranked[0]): 1})
    for row in ranked:
        orders = list(permutations(row))
        grown: Counter[tuple[float, ...]] = Counter()
        for so_far, ways in sums.items():
            for one in orders:
                grown[tuple(sorted(a + b for a, b in zip(so_far, one, strict=True)))] += ways
        sums = grown
    seen = friedman(ranked)
    extreme = sum(ways for found, ways in sums.items() if _statistic(found, len(ranked)) >= seen - 1e-9)
    return extreme / sums.total()


def _statistic(sums: Sequence[float], rows: int) -> float:
    columns = len(sums)
    middle = rows * (columns + 1) / 2
    return 12 / (rows * columns * (columns + 1)) * sum((found - middle) ** 2 for found in sums)


def _mean_factors(row: Row, since: float) -> dict[str, float] | None:
    means = {}
    for group, factors in row["factors"].items():
        late = [factor for step, factor in zip(row["lr_steps"], factors, strict=True) if step > since]
        if not late or not all(late):
            return None
        means[group] = statistics.geometric_mean(late)
    return means


def _below_all_others(values: Mapping[str, float], name: str) -> bool:
    return all(values[name] < value for other, value in values.items() if other != name)


def _sentence(found: Mapping[str, Any]) -> str:
    published, any_order = found["published"], found["any_order"]
    moved = found["median_abs_log_factor"].values()
    return (
        f"The published order ({LOWEST} lowest, {HIGHEST} highest) stood in {published['both']} of "
        f"{published['of']} seeds; chance alone would do as well with p = {published['p']:.2g}. For any "
        f"consistent order of the four groups (Friedman, exact) p = {any_order['p']:.2g}. Auto-LR moved the "
        f"groups' learning rates by {100 * math.expm1(min(moved)):.2g} to "
        f"{100 * math.expm1(max(moved)):.2g} % (medians over the seeds). {_residual_sentence(found)}"
    )


def _residual_sentence(found: Mapping[str, Any]) -> str:
    """Of the rate that the paper's Figure 3 has left at the end, about 0.22 of the peak."""
    if found["decay"] == "schedule":
        return "The schedule goes on to its floor, so no residual rate can be left (decay='schedule')."
    lowest, highest = min(found["residual"], default=0.0), max(found["residual"], default=0.0)
    return f"They ended at {lowest:.2g} to {highest:.2g} of their peak (decay={found['decay']!r})."
