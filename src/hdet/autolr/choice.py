"""Which of the weights seen to return: the latest that are as good as the best.

Candidates are compared on the same batches, by their losses or by a metric, whose negative then stands for
the loss. The one with the lowest mean loss is the measure; the *latest* that gives back next to nothing of
what was gained since the first, or of a metric no more than its error, is kept. So what is worse than the
start is never kept, drift cannot carry the choice away from the lowest, and of two that hardly differ the one
that was trained for longer wins. On the tasks of ``benchmarks/zoo`` no other rule was clearly better: not
standard errors, not shrinking toward the neighbours, not preferring the end. The losses of one sample choose
nothing: then the latest weights are kept. No torch, no I/O; float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

__all__ = ["Candidate", "Choice", "mean_of", "regrouped", "standard_error"]

#: Of what was gained since the first candidate, a later one may give back this share.
_GIVEN_BACK = 0.002
#: Of a metric, in which one sample is a step, the standard error, rounding included, and this share at most.
#: One batch that is worse and others that are equal make one error.
_ERROR, _SHARE = 1.001, 0.02

Kind = Literal["start", "mean", "iterate", "end"]


@dataclass(frozen=True)
class Candidate:
    """Weights that could be returned.

    Args:
        step: steps taken when they stood.
        kind: the weights training began with, a window's mean or its last iterate, or the run's end.
        losses: of each batch, in the same order for all candidates.
        decides: whether these are of more than one sample.
        scores: by which candidates are compared instead of by losses; higher is better.
    """

    step: int
    kind: Kind
    losses: tuple[float, ...]
    decides: bool = True
    scores: tuple[float, ...] = ()

    @cached_property
    def costs(self) -> tuple[float, ...]:
        """What candidates are compared by, batch by batch; lower is better."""
        return tuple(-score for score in self.scores) or self.losses

    @cached_property
    def cost(self) -> float:
        """The mean of that; infinite where one is not finite."""
        mean = mean_of(self.costs)
        return mean if math.isfinite(mean) else math.inf


@dataclass(frozen=True, slots=True)
class Choice:
    """What has been seen so far.

    Args:
        first: the first candidate.
        lowest: the one with the lowest mean loss, or the highest metric.
        kept: the one to return.
        improved: the last one that was better than ``improved`` before it by more than the error.
        behind: how many in a row were worse than the lowest by more than the error.

    >>> choice, _ = Choice().offered(Candidate(10, "mean", (1.0, 1.2, 0.9)))
    >>> choice, keep = choice.offered(Candidate(20, "mean", (0.8, 1.1, 0.7)))
    >>> keep, choice.kept.step, choice.improved_at
    (True, 20, 20)
    >>> choice, keep = choice.offered(Candidate(30, "mean", (0.9, 1.2, 0.8)))
    >>> keep, choice.kept.step, choice.improved_at
    (False, 20, 20)
    """

    first: Candidate | None = None
    lowest: Candidate | None = None
    kept: Candidate | None = None
    improved: Candidate | None = None
    behind: int = 0

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Choice:
        """What :func:`dataclasses.asdict` made of one."""
        values = dict(saved)
        for name in ("first", "lowest", "kept", "improved"):
            if values.get(name) is not None:
                lists = {key: tuple(values[name].get(key, ())) for key in ("losses", "scores")}
                values[name] = Candidate(**{**values[name], **lists})
        return cls(**values)

    def of_fewer(self, before: int, now: int, batches: int) -> Choice | None:
        """With the losses of ``before`` replicas as those of ``now``, on so many ``batches`` each; None where
        they say nothing of them."""
        names = ("first", "lowest", "kept", "improved")
        every = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        grouped: dict[str, Any] = {}
        for name, one in every.items():
            losses = regrouped(one.losses, before, now, batches)
            scores = regrouped(one.scores, before, now, batches) if one.scores else ()
            if losses is None or scores is None:
                return None
            grouped[name] = replace(one, losses=losses, scores=scores)
        return replace(self, **grouped)

    @property
    def learnt(self) -> bool:
        """Whether the lowest is below the first by more than noise explains: three errors."""
        if self.first is None or self.lowest is None or not self.lowest.decides:
            return False
        difference, error = _compared(self.lowest, self.first)
        return difference < -3 * error

    @property
    def improved_at(self) -> int:
        """The step of the last improvement beyond the error."""
        return 0 if self.improved is None else self.improved.step

    def offered(self, new: Candidate) -> tuple[Choice, bool]:
        """The choice with one more candidate, and whether to keep its weights."""
        if not math.isfinite(new.cost):
            return replace(self, behind=self.behind + 1), False
        if self.lowest is None or self.improved is None:
            return replace(self, first=new, lowest=new, kept=new, improved=new, behind=0), True
        if not new.decides:
            return replace(self, lowest=new, kept=new, improved=new), True
        assert self.first is not None  # with the lowest
        difference, error = _compared(new, self.improved)
        after = replace(self, improved=new) if difference < -error else self
        if self.lowest is not self.improved:
            difference, error = _compared(new, self.lowest)
        lowest = new if difference < 0 else self.lowest
        gained = self.first.cost - lowest.cost
        within = min(_ERROR * error, _SHARE * gained) if new.scores else _GIVEN_BACK * gained
        keep = difference <= within
        behind = self.behind + 1 if difference > error else 0
        return replace(after, lowest=lowest, kept=new if keep else self.kept, behind=behind), keep


def _compared(new: Candidate, old: Candidate) -> tuple[float, float]:
    """By how much it is worse, and the standard error of that."""
    worse = [a - b for a, b in zip(new.costs, old.costs, strict=True)]
    return mean_of(worse), standard_error(worse)


def regrouped(losses: Sequence[float], before: int, now: int, batches: int) -> tuple[float, ...] | None:
    """The losses of ``before`` replicas, on the batches of each in turn, as those of ``now`` replicas, each
    of which has the batches of several; of more ``batches`` than these the first of each. None if no replica
    has all of another's, or each had fewer.

    >>> regrouped([1.0, 2.0, 3.0, 6.0], 2, 1, batches=2)
    (2.0, 4.0)
    >>> regrouped([1.0, 2.0], 1, 2, batches=2) is None
    True
    >>> regrouped([1.0, 2.0], 2, 1, batches=2) is None
    True
    """
    each, rest = divmod(len(losses), before)
    if before % now or rest or each < batches:
        return None
    together = before // now
    rows = [losses[at * each : at * each + batches] for at in range(before)]
    groups = [rows[at : at + together] for at in range(0, before, together)]
    return tuple(math.fsum(column) / together for group in groups for column in zip(*group, strict=True))


def mean_of(values: Sequence[float]) -> float:
    """NaN where one of them is not finite: fsum raises for infinities of both signs."""
    if not values or not all(map(math.isfinite, values)):
        return math.nan
    return math.fsum([value / len(values) for value in values])


def standard_error(values: Sequence[float]) -> float:
    """Of their mean; 0 where there is one alone."""
    if len(values) < 2 or min(values) == max(values):
        return 0.0
    mean = mean_of(values)
    # hypot scales before it squares: the losses of an explosion have no finite square.
    return math.hypot(*[value - mean for value in values]) / math.sqrt((len(values) - 1) * len(values))
