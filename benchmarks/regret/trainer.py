"""What an arm is while it trains, and the schedule that most of them share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from hdet.autolr.auto_lr import AutoLR
from hdet.autolr.best_mean import BestMean
from hdet.loop.announce import Event

__all__ = ["WARM_UP", "Trainer", "stepping", "with_wsd", "wsd"]

WARM_UP, _DECAY = 0.05, 0.25


@dataclass(frozen=True)
class Trainer:
    """An arm at work: its optimizers, what follows their step, the learning rate in use, what ends it."""

    optimizers: Sequence[Any]
    #: Called with the batch's loss.
    after_step: Callable[[Tensor], object]
    lr: Callable[[], float]
    finish: Callable[[], object] = lambda: None
    #: Hands over the best weights seen; of an arm that has no choice of its own, BestMean's.
    best: BestMean | AutoLR | None = None
    #: Whether there is nothing left to train.
    finished: Callable[[], bool] = lambda: False
    #: Filled while it trains.
    events: Sequence[Event] = ()


def wsd(step: int, steps: int) -> float:
    """Warm-up, constant, linear decay to zero: the factor of the step with number ``step``, from 0.

    >>> [wsd(step, 20) for step in (0, 1, 14, 15, 19)]
    [1.0, 1.0, 1.0, 1.0, 0.2]
    """
    return min(1.0, (step + 1) / max(1, int(WARM_UP * steps)), (steps - step) / max(1, int(_DECAY * steps)))


def with_wsd(optimizer: Any, steps: int) -> LRScheduler:
    """The schedule on an optimizer."""
    return LambdaLR(optimizer, lambda step: wsd(step, steps))


def stepping(schedulers: Sequence[LRScheduler]) -> Callable[[Tensor], None]:
    """What steps schedules that do not look at the loss."""

    def after_step(loss: Tensor) -> None:
        for scheduler in schedulers:
            scheduler.step()

    return after_step
