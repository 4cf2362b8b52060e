"""The user's schedule, beneath the factors that policies put on it.

Once a factor is not 1, ``group["lr"]`` shows the base value, factor × schedule. Many schedules compute
their next value from the last one, which they read there: so they are shown the value they wrote, step, and
their new value is covered again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hdet.hyperparameters import GroupLearningRate

__all__ = ["CoveredSchedule", "Schedule"]


class Schedule(Protocol):
    """Anything whose ``step()`` writes the next learning rates: every torch scheduler but the plateau's.

    One with an attribute ``covers_itself`` that is true passes what it computes through
    :meth:`CoveredSchedule.covered` before it writes it, and never reads it back.
    """

    def step(self) -> object: ...


class CoveredSchedule:
    """Steps a schedule, and keeps the factors on it.

    Args:
        caller: begins the errors.
        schedule: None leaves ``group["lr"]`` to the user.
        learning_rates: what it writes, one for each group.
    """

    def __init__(
        self, caller: str, schedule: Schedule | None, learning_rates: Sequence[GroupLearningRate]
    ) -> None:
        if isinstance(schedule, ReduceLROnPlateau):
            raise TypeError(
                f"{caller}: schedule must step without a metric, got ReduceLROnPlateau; step it yourself and "
                "leave schedule=None"
            )
        self._given = schedule is not None
        self._step = schedule.step if schedule is not None else _stay
        self._covers_itself = getattr(schedule, "covers_itself", False)
        self._learning_rates = learning_rates
        #: Whether a policy has moved a learning rate off its schedule.
        self.moved = False
        #: So many steps were taken back for which it has stepped: it stays where it is for as many.
        self.waits = 0
        self.look()

    @property
    def writes(self) -> bool:
        """Whether ``group["lr"]`` is ours to write, and nobody else's."""
        return self._given or self.moved

    def look(self) -> None:
        """See whether a policy has moved a learning rate."""
        self.moved = any(axis.moved for axis in self._learning_rates)

    def advance(self) -> None:
        """On to the next step."""
        if self.waits:
            self.waits -= 1
            return
        if not self.moved or self._covers_itself:
            self._step()
            return
        for axis in self._learning_rates:
            axis.uncover()
        self._step()
        for axis in self._learning_rates:
            axis.cover()

    def covered(self, values: list[float | Tensor]) -> list[float | Tensor]:
        """The base values over the schedule's own, for a schedule that covers itself."""
        bases = [axis.covered(v) for axis, v in zip(self._learning_rates, values, strict=False)]
        if len(bases) < len(values):  # a group added later is not explored
            bases += values[len(bases) :]
        return bases


def _stay() -> None:
    """The schedule of a learning rate that nobody schedules."""
