"""What every verdict is made of: places at which a claim was measured, and whether it holds at each.

A place is a task, a machine or a set-up. A claim holds if it holds at every place, partly if at some; where
nothing can be told, it was not tested. Runs of one seed share their batches, so differences between two
configurations are taken seed by seed, with the 95 % confidence interval of their mean.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from benchmarks.regret.analysis import interval
from benchmarks.reproduce.plan import CONFIGURATIONS

__all__ = [
    "Difference",
    "Judge",
    "Judged",
    "Place",
    "Result",
    "Results",
    "Verdict",
    "apart",
    "asserted",
    "at_places",
    "block_of",
    "counted",
    "course_of",
    "curve_mean",
    "goal_of",
    "headed",
    "losses_between",
    "machine_of",
    "percent",
    "refuted",
    "runs_of",
    "signed",
    "task_of",
    "untested",
    "values_between",
]

Result = Mapping[str, Any]
Results = Mapping[str, Result]


class Verdict(Enum):
    """What can be said of a claim, at the size at which it was measured here."""

    HOLDS = "holds"
    PARTLY = "holds partly"
    NOT_HERE = "does not hold here"
    UNTESTED = "not tested"


#: What was measured, in words, and what follows.
Judged = tuple[str, Verdict]
Judge = Callable[[Results], Judged]


@dataclass(frozen=True)
class Place:
    """What was measured at one place; ``holds`` is None where that cannot tell.

    Places of one machine or task may share a text, which is then that of the first.
    """

    text: str
    holds: bool | None


def at_places(places: Iterable[Place], note: str = "") -> Judged:
    """Holds if at every place that can tell, partly if at some, not if at none, not tested if none can tell.

    >>> at_places([Place("A 1", True), Place("B 0", False), Place("C –", None)])[1]
    <Verdict.PARTLY: 'holds partly'>
    """
    found = list(places)
    told = [place.holds for place in found if place.holds is not None]
    text = "; ".join(place.text for place in found if place.text) or "no run"
    return f"{text}{note}", _verdict(told)


def headed(head: str, places: Iterable[Place]) -> list[Place]:
    """The same places, the first of them with ``head`` before its text.

    >>> [place.text for place in headed("loss", [Place("A 1", True), Place("B 2", True)])]
    ['loss: A 1', 'B 2']
    """
    return [
        Place(f"{head}: {place.text}" if k == 0 else place.text, place.holds)
        for k, place in enumerate(places)
    ]


def counted(text: str, told: Sequence[bool]) -> list[Place]:
    """A place for each set-up, in one text that ends with how many hold.

    >>> [place.text for place in counted("×1.1 to ×1.4", [True, False])]
    ['×1.1 to ×1.4 (1 of 2 set-ups)', '']
    """
    said = f"{text} ({sum(told)} of {len(told)} set-ups)"
    return [Place("" if k else said, holds) for k, holds in enumerate(told)]


def _verdict(told: Sequence[bool]) -> Verdict:
    if not told:
        return Verdict.UNTESTED
    if all(told):
        return Verdict.HOLDS
    return Verdict.PARTLY if any(told) else Verdict.NOT_HERE


# ---------------------------------------------------------------------- claims without a number


def asserted(text: str) -> Judge:
    """Holds as long as the tests that assert it are there, and pass."""
    return lambda _: (text, Verdict.HOLDS)


def refuted(text: str) -> Judge:
    """Does not hold as long as the tests that assert the contrary are there, and pass."""
    return lambda _: (text, Verdict.NOT_HERE)


def untested(reason: str) -> Judge:
    """Nothing here can tell, for the reason given."""
    return lambda _: (reason, Verdict.UNTESTED)


# ---------------------------------------------------------------------- differences between configurations


@dataclass(frozen=True)
class Difference:
    """A mean over seeds, and half of its 95 % confidence interval; None without two seeds at least."""

    mean: float
    half: float | None

    @staticmethod
    def of(values: Sequence[float]) -> Difference | None:
        """Over the seeds; None if there is none. One that is not finite decides, two that differ do not."""
        if not values:
            return None
        lost = {value for value in values if not math.isfinite(value)}
        if lost:
            return Difference(lost.pop() if len(lost) == 1 else math.nan, None)
        return Difference(*interval(values))

    @property
    def below(self) -> bool | None:
        """Whether the whole interval lies below 0; None if that cannot be told."""
        if self.half is None:
            return self.mean < 0 if math.isinf(self.mean) else None
        return self.mean + self.half < 0

    @property
    def above(self) -> bool | None:
        """Whether the whole interval lies above 0; None if that cannot be told."""
        return Difference(-self.mean, self.half).below

    def __str__(self) -> str:
        if not math.isfinite(self.mean):
            return "not finite"
        if not self.half:
            return signed(self.mean, ".4f")
        # Two digits of what is uncertain.
        form = f".{min(6, max(0, 1 - math.floor(math.log10(self.half))))}f"
        return f"{signed(self.mean, form)} ± {self.half:{form}}"


def apart(lower: Mapping[str, float], higher: Mapping[str, float]) -> bool:
    """Whether the whole interval of one mean over seeds lies below that of another."""
    return lower["mean"] + lower["half_width"] < higher["mean"] - higher["half_width"]


def signed(value: float, form: str = ".3g") -> str:
    """With its sign, as it is printed.

    >>> signed(-0.25), signed(0.25, ".1f")
    ('−0.25', '+0.2')
    """
    return f"{value:+{form}}".replace("-", "−")


def percent(share: float, digits: int = 2) -> str:
    """A share as it is printed.

    >>> percent(-0.0123), percent(0.5, 0)
    ('−1.23 %', '50 %')
    """
    return f"{100 * share:.{digits}f} %".replace("-", "−")


def machine_of(result: Result) -> str:
    """The GPU, or the processor and how many of its cores."""
    about = result["machine"]
    if about.get("gpu"):
        return str(about["gpu"])
    cpu = about["cpu"].replace("(R)", "").replace(" Processor", "")
    return f"{about['cores']} cores of {cpu}"


# ---------------------------------------------------------------------- reading `reproduce`

_TASKS = {"feed": "feed", "kuairand": "KuaiRand", "charlm": "charlm"}


def task_of(result: Result) -> str:
    """The task's name, as the table prints it."""
    return _TASKS[result["task"]]


def course_of(name: str) -> str:
    """The same of a course of docs/evidence/paper.json.

    >>> course_of("kuairand"), course_of("charlm"), course_of("digits, SGD")
    ('KuaiRand', 'text', 'digits, SGD')
    """
    return {"kuairand": "KuaiRand", "charlm": "text"}.get(name, name)


def block_of(result: Result, name: str) -> Result | None:
    """The block "paper" or "crash"; None if it was not run, or if nothing crashed."""
    if name == "crash" and result.get("sweep", {"crash_lr": 0.0})["crash_lr"] is None:
        return None
    return next((block for block in result["blocks"] if block["name"] == name), None)


def runs_of(result: Result, block: str, line: str) -> dict[int, dict[str, Any]]:
    """The runs of one line of a table, or of one curve of Figure 2, by their seeds."""
    found = block_of(result, block)
    if found is None:
        return {}
    if "curves" in found:
        curve = next(curve for curve in found["curves"] if curve["configuration"] == line)
        return {run["seed"]: {**run, "train": run["final"]} for run in curve["runs"]}
    lr = next(row["lr"] for row in found["rows"] if row["configuration"] == line)
    rows = (dict(zip(result["runs"]["header"], row, strict=True)) for row in result["runs"]["rows"])
    wanted = (CONFIGURATIONS[line].runs, lr)
    return {row["seed"]: row for row in rows if (row["configuration"], row["lr"]) == wanted}


def losses_between(result: Result, block: str, line: str, other: str, metric: str) -> Difference | None:
    """Loss of ``line`` minus that of ``other``; one that is not finite is above all others."""

    def loss(run: Any) -> float:
        return math.inf if run[metric] is None else float(run[metric])

    return values_between(result, block, line, other, loss)


def values_between(
    result: Result, block: str, line: str, other: str, value: Callable[[Any], float | None]
) -> Difference | None:
    """Of ``line`` minus that of ``other``, over the seeds in which both have one."""
    ours, theirs = runs_of(result, block, line), runs_of(result, block, other)
    pairs = [(value(ours[seed]), value(theirs[seed])) for seed in sorted(ours.keys() & theirs.keys())]
    return Difference.of([a - b for a, b in pairs if a is not None and b is not None])


def curve_mean(share: float) -> Callable[[Any], float | None]:
    """The mean loss over the first ``share`` of a curve; None if one of its points is not finite."""

    def mean(run: Any) -> float | None:
        losses = run["loss"][: max(1, round(share * len(run["loss"])))]
        return None if None in losses else statistics.fmean(losses)

    return mean


def goal_of(result: Result, words: str) -> Mapping[str, Any]:
    """The goal whose name has ``words`` in it."""
    found: Mapping[str, Any] = next(goal for name, goal in result["goals"].items() if words in name)
    return found
