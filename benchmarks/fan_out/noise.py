"""How sure a horizon's decision is: the standard error of its Δ log η, leaving out one probe batch at a time.

The controller is a pure function of the losses of all batches, so the jackknife can ask it what it would have
decided without any of them. Where the decision is clipped, or held whatever a batch says, its error is 0.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hdet.autolr.choice import mean_of, standard_error
from hdet.autolr.rule import HorizonController, HorizonDecision, HorizonState, Window

__all__ = ["Noted", "NotedController", "decision_error", "usual", "without"]

#: What a window that is judged may lead to; the first ones only bring the weights to speed.
_JUDGED = ("up", "down", "hold")


@dataclass(frozen=True, slots=True)
class Noted:
    """Of one judged window: the change of log η, its error, and that of the progress it rests on."""

    step: int
    change: float
    error: float
    progress: float
    progress_error: float


@dataclass(frozen=True, slots=True)
class NotedController(HorizonController):
    """The same rule, and a note of how sure it was.

    Args:
        ranks: how many brought batches to a window.
        noted: one for each judged window so far.
    """

    ranks: int = 1
    noted: list[Noted] = field(default_factory=list, repr=False, compare=False)

    def update(self, state: HorizonState, window: Window) -> HorizonDecision:
        decision = HorizonController.update(self, state, window)  # a class with slots has no super()
        if decision.action in _JUDGED and window.mean and not math.isnan(decision.tolerated):
            before = window.best or window.previous
            progress = [b - m for b, m in zip(before, window.mean, strict=True)]
            self.noted.append(
                Noted(
                    step=window.step,
                    change=math.log(decision.state.value / state.value),
                    error=decision_error(self, state, window, self.ranks),
                    progress=mean_of(progress),
                    progress_error=standard_error(progress),
                )
            )
        return decision


def decision_error(rule: NotedController, state: HorizonState, window: Window, ranks: int) -> float:
    """The jackknife's standard error of log η after a window, over the batches of all ranks."""
    count = len(window.mean)
    if count < 2:
        return 0.0
    values = [
        math.log(HorizonController.update(rule, state, without(window, k, ranks)).state.value)
        for k in range(count)
    ]
    mean = math.fsum(values) / count
    return math.sqrt((count - 1) / count * math.fsum((value - mean) ** 2 for value in values))


def usual(errors: Sequence[float], batches: int) -> float | None:
    """The geometric mean of standard errors, each taken from so many batches; None where there is none.

    The logarithm of a variance from few values is too low on average, by about 1/k + 1/(3k²) with k degrees
    of freedom; that is made good, or those of many batches would look larger than they are.

    >>> usual([0.1, 0.1], batches=4) / 0.1
    1.2034...
    """
    positive = [error for error in errors if error > 0 and math.isfinite(error)]
    if not positive or batches < 2:
        return None
    k = batches - 1
    return statistics.geometric_mean(positive) * math.exp((1 / k + 1 / (3 * k**2)) / 2)


def without(window: Window, batch: int, ranks: int) -> Window:
    """The window as it would have been without one batch; losses are those of rank 0, then of rank 1, …

    The end may have been measured on fewer batches of each rank than the mean: then only those it had go.
    """
    rank, k = divmod(batch, len(window.mean) // ranks)

    def rest(losses: Sequence[float]) -> list[float]:
        each = len(losses) // ranks
        if not losses or k >= each or len(losses) == 1:
            return list(losses)
        return [loss for place, loss in enumerate(losses) if place != rank * each + k]

    return replace(
        window,
        previous=rest(window.previous),
        mean=rest(window.mean),
        end=rest(window.end),
        mean_there=rest(window.mean_there),
        best=rest(window.best),
    )
