"""From the runs to the table: normalised regret of every arm, with its confidence, and the goals.

Regret is (L − L_tuned)/(L_init − L_tuned), in per cent: the share of the achievable improvement that was
lost. All of it is arithmetic on rows, so a table can be made anew from those that its JSON file keeps.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.regret.plan import Row, loss_of

__all__ = [
    "COLUMNS",
    "LOOKED_AT",
    "PEERS",
    "Tuned",
    "analyse",
    "by_pair",
    "digits",
    "grid",
    "interval",
    "misled",
    "regrets",
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
    "default": "default LR",
    "default-onecycle": "default LR, OneCycle",
    "published": "published",
    "greedy": "GreedyLR",
    "prodigy": "Prodigy",
    "prodigy-schedulefree": "Prodigy + Schedule-Free",
    "dadaptation": "D-Adapt",
    "schedule-free": "Schedule-Free",
    "mechanic": "Mechanic",
    "autolr": "AutoLR",
}
#: What else asks for no learning rate.
PEERS = ("greedy", "prodigy", "prodigy-schedulefree", "dadaptation", "schedule-free", "mechanic")
METRICS = {"held_out": "init", "train": "init_train"}

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
        """The mean over its seeds of the final loss, or of the initial one."""
        return _mean(row[metric] if metric in METRICS.values() else loss_of(row, metric) for row in self.rows)

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


def regrets(rows: Iterable[Row], best: Tuned, metric: str = "held_out") -> list[float]:
    """Per cent for each seed that both have, each against the tuned run of the same seed."""
    found = []
    for row in rows:
        twin = best.by_seed.get(row["seed"])
        if twin is None:
            continue
        target = loss_of(twin, metric)
        # A tuned run that improved on nothing leaves nothing to lose: no such regret.
        if (gap := twin[METRICS[metric]] - target) > 0:
            found.append(100 * (loss_of(row, metric) - target) / gap)
    return found


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


def analyse(rows: Sequence[Row], failed: Sequence[Row] = ()) -> dict[str, Any]:
    """Each workload and optimizer, each arm over all of them, and the goals; plain JSON.

    ``failed`` are the rows of runs that raised: they have no loss, but count against the goals.
    """
    pairs = [found for pair, its in by_pair(rows).items() if (found := _pair(*pair, its)) is not None]
    arms = list(dict.fromkeys(arm for pair in pairs for arm in pair["arms"]))
    overall = {arm: _overall(pairs, arm) for arm in arms}
    return {"pairs": pairs, "overall": overall, "goals": _goals(pairs, overall, [*rows, *failed])}


def _pair(workload: str, optimizer: str, rows: Sequence[Row]) -> dict[str, Any] | None:
    bests = {metric: tuned(rows, metric) for metric in METRICS}
    best = bests["held_out"]
    if best is None or not math.isfinite(best.mean("held_out")):
        return None
    by_arm: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["arm"] != "sweep":
            by_arm[row["arm"]].append(row)
    found: dict[str, Any] = {"workload": workload, "optimizer": optimizer, "init": best.mean("init")}
    for metric, name in (("held_out", "tuned"), ("train", "tuned_train")):
        if (choice := bests[metric]) is not None:
            loss = choice.mean(metric)
            about = {"loss": loss, "lr": choice.lr, "schedule": choice.schedule, "seeds": len(choice.rows)}
            found[name] = about
    found["arms"] = {arm: _arm(its_rows, bests) for arm, its_rows in by_arm.items()}
    return found


def _arm(rows: Sequence[Row], bests: Mapping[str, Tuned | None]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "seeds": len(rows),
        "diverged": sum(row["diverged"] for row in rows),
        "reached": _geometric_mean(row["reached"] for row in rows),
    }
    for metric, best in bests.items():
        values = regrets(rows, best, metric) if best else []
        mean, half = interval(values) if values else (math.nan, None)
        found[metric] = {"regret": mean if math.isfinite(mean) else None, "half_width": half}
    return found


def _overall(pairs: Sequence[dict[str, Any]], arm: str) -> dict[str, Any]:
    """Mean and worst over the pairs that have the arm; None stands for infinity where any run diverged."""
    values = {_name(pair): _regret(pair, arm) for pair in pairs if arm in pair["arms"]}
    known = {name: value for name, value in values.items() if not math.isnan(value)}
    worst = max(known, key=lambda name: known[name], default=None)
    train = [
        value
        for pair in pairs
        if arm in pair["arms"] and not math.isnan(value := _regret(pair, arm, "train"))
    ]
    return {
        "pairs": len(known),
        "diverged": sum(pair["arms"][arm]["diverged"] for pair in pairs if arm in pair["arms"]),
        "mean": _finite(_mean(known.values())) if known else None,
        "worst": _finite(known[worst]) if worst else None,
        "worst_on": worst,
        "train_mean": _finite(_mean(train)) if train else None,
    }


def _goals(
    pairs: Sequence[dict[str, Any]], overall: Mapping[str, dict[str, Any]], rows: Iterable[Row]
) -> dict[str, Any]:
    ours = overall.get("autolr", {})
    goals: dict[str, Any] = {}
    for name, which, limit in (
        ("mean regret of AutoLR at most 0.3 %", "mean", 0.3),
        ("worst at most 1 %", "worst", 1.0),
        ("at least: mean 0.7 %", "mean", 0.7),
        ("at least: worst 2 %", "worst", 2.0),
    ):
        value = ours.get(which)
        goals[name] = {"at_most": limit, "measured": value, "met": value is not None and value <= limit}
    runs = [row for row in rows if row["arm"].partition("@")[0] == "autolr"]
    lost = sum(bool(row.get("error") or row["diverged"]) for row in runs)
    goals["never diverges"] = {
        "at_most": 0,
        "measured": lost,
        "of": len(runs),
        "met": bool(runs) and not lost,
    }
    compared = [pair for pair in pairs if "autolr" in pair["arms"] and _peers_in(pair)]
    behind = [
        f"{_name(pair)}: {COLUMNS[peer]}"
        for pair in compared
        for peer in _peers_in(pair)
        if not _regret(pair, "autolr") < _regret(pair, peer)
    ]
    goals["ahead of every learning-rate-free peer on every workload"] = {
        "at_most": 0,
        "measured": len(behind),
        "of": sum(len(_peers_in(pair)) for pair in compared),
        "behind": behind,
        "met": bool(compared) and not behind,
    }
    return goals


# ---------------------------------------------------------------------- the table's cells


def grid(result: Mapping[str, Any], bold: Callable[[str], str]) -> tuple[list[str], list[list[str]]]:
    """Headings and lines of the table; ``bold`` marks the best arm of a line that asks for no rate."""
    shown = [arm for arm in COLUMNS if any(arm in pair["arms"] for pair in result["pairs"])]
    lines = []
    for pair in result["pairs"]:
        best = pair["tuned"]
        free = [arm for arm in (*PEERS, "autolr") if arm in pair["arms"]]
        known = {arm: value for arm in free if not math.isnan(value := _regret(pair, arm))}
        first = min(known, key=lambda arm: known[arm], default=None)
        cells = [_cell(pair["arms"].get(arm)) for arm in shown]
        cells = [bold(cell) if arm == first else cell for arm, cell in zip(shown, cells, strict=True)]
        lines.append([_name(pair), f"{best['loss']:.4g} @ {best['lr']:.2g} {best['schedule']}", *cells])
    for name, which in (("mean", "mean"), ("worst", "worst"), ("mean, of training loss", "train_mean")):
        lines.append([name, "", *(_summary(result["overall"][arm], which) for arm in shown)])
    return ["workload, optimizer", "tuned: loss @ LR", *(COLUMNS[arm] for arm in shown)], lines


def misled(result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What became of AutoLR for each learning rate its optimizer was built with, by that rate."""
    found = {arm.partition("@")[2]: over for arm, over in result["overall"].items() if "@" in arm}
    return {rate: found[rate] for rate in sorted(found, key=float)}


def _cell(arm: Mapping[str, Any] | None) -> str:
    if arm is None:
        return "–"
    if arm["diverged"]:
        return f"diverged {arm['diverged']}/{arm['seeds']}"
    value, half = arm["held_out"]["regret"], arm["held_out"]["half_width"]
    if value is None:
        return "–"
    return digits(value) + (f" ± {digits(half)}" if half is not None else "")


def _summary(overall: Mapping[str, Any], which: str) -> str:
    if not overall["pairs"]:
        return "–"
    return "∞" if overall[which] is None else digits(overall[which])


def digits(value: float) -> str:
    """Two decimals below ten, one below a hundred, else none."""
    return f"{value:.{2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0}f}"


# ---------------------------------------------------------------------- small things


def _name(pair: Mapping[str, Any]) -> str:
    return f"{pair['workload']} {pair['optimizer']}"


def _peers_in(pair: Mapping[str, Any]) -> list[str]:
    return [peer for peer in PEERS if peer in pair["arms"]]


def _regret(pair: Mapping[str, Any], arm: str, metric: str = "held_out") -> float:
    """The mean, infinity where a seed diverged, not a number where it is not known."""
    about = pair["arms"][arm]
    value = about[metric]["regret"]
    return math.inf if about["diverged"] else math.nan if value is None else float(value)


def _mean(values: Iterable[float]) -> float:
    return statistics.fmean(values)


def _geometric_mean(values: Iterable[float | None]) -> float | None:
    positive = [value for value in values if value]
    return statistics.geometric_mean(positive) if positive else None


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
