"""The user's schedule, beneath the factors that policies put on it.

Once a factor is not 1, ``group["lr"]`` shows the base value, factor × schedule. Many schedules compute
their next value from the last one, which they read there: so they are shown the value they wrote, step, and
their new value is covered again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hdet.hyperparameters import GroupLearningRate

__all__ = ["CoveredSchedule", "Schedule"]


class Schedule(Protocol):
    """Anything whose ``step()`` writes the next learning rates: every torch scheduler but the plateau's.

    One with a true attribute ``covers_itself`` passes what it computes through
    :meth:`CoveredSchedule.covered` before it writes it (which is set as its ``cover``, if it has one), and
    never reads it back.
    """

    def step(self) -> object: ...


class CoveredSchedule:
    """Steps a schedule, and keeps the factors on it.

    Args:
        schedule: None leaves ``group["lr"]`` to the user.
        learning_rates: what it writes, one for each group.
    """

    def __init__(
        self,
        caller: str,
        schedule: Schedule | None,
        optimizer: Optimizer,
        learning_rates: Sequence[GroupLearningRate],
    ) -> None:
        if isinstance(schedule, ReduceLROnPlateau):
            raise TypeError(
                f"{caller}: schedule must step without a metric, got ReduceLROnPlateau; step it yourself and "
                "leave schedule=None"
            )
        self._schedule = schedule
        self._covers_itself = getattr(schedule, "covers_itself", False)
        if schedule is not None and hasattr(schedule, "cover"):
            schedule.cover = self.covered
        self._optimizer = optimizer
        self._learning_rates = learning_rates
        #: Whether a policy has moved a learning rate off its schedule.
        self.moved = False
        #: So many steps were taken back for which it has stepped: it stays where it is for as many.
        self.waits = 0
        #: For each group what was left there, and of a tensor where it lies and its version.
        self._left: list[tuple[float | Tensor, Tensor | None, int]] = []
        self.notice_moves()

    def notice_moves(self) -> None:
        """See whether a policy has moved a learning rate."""
        self.moved = any(axis.moved for axis in self._learning_rates)
        #: On to the next step, where it does not wait.
        self.proceed: Callable[[], object] = self._step_beneath
        if not self.moved or self._covers_itself:
            self.proceed = _nothing if self._schedule is None else self._schedule.step

    def advance(self) -> None:
        """On to the next step."""
        if self.waits:
            self.waits -= 1
        else:
            self.proceed()

    def _step_beneath(self) -> None:
        for axis in self._learning_rates:
            axis.uncover()
        if self._schedule is not None:
            self._schedule.step()
        for axis in self._learning_rates:
            axis.cover()

    def covered(self, values: list[float | Tensor]) -> list[float | Tensor]:
        """The base values over the schedule's own, for a schedule that covers itself."""
        for i, axis in enumerate(self._learning_rates[: len(values)]):  # a group added later is not explored
            values[i] = axis.covered(values[i])
        return values

    # ------------------------------------------------------------------ whether somebody else writes there

    def note(self) -> None:
        """``group["lr"]`` is right now, if it is ours alone to write."""
        if self._schedule is not None or self.moved:
            self._left = [_left(group["lr"]) for group in self._optimizer.param_groups]

    def forget(self) -> None:
        """Others may write what they like until the next :meth:`note`."""
        self._left = []

    def overwritten(self) -> str:
        """What somebody else has written since :meth:`note`, in words. Another scheduler, or a resume that
        has forgotten our state, trains at other rates than we believe, and nobody would know.

        A step at zero is nobody's schedule: ``torch.distributed.checkpoint`` takes one, to have an optimizer
        make the state that it is about to load. A tensor is read only if its version says it was written.
        """
        left, self._left = self._left, []
        # Groups that were added since have nothing to be compared with; who loads a state replaces them all.
        for i, (value, tensor, version) in enumerate(left[: len(self._optimizer.param_groups)]):
            now = self._optimizer.param_groups[i]["lr"]
            if isinstance(now, Tensor) and now is tensor and _version(now) == version:
                continue
            if float(now) not in (float(value), 0.0):
                return (
                    f"group {i} trains at a learning rate of {float(now):.6g}, and {float(value):.6g} was "
                    "written there: another scheduler writes over it (step one of the two), or a run that "
                    "was resumed has loaded the optimizer's state and not this one's (call load_state_dict "
                    "after the optimizer's)"
                )
        return ""


def _nothing() -> None:
    """A step where there is no schedule."""


def _left(lr: float | Tensor) -> tuple[float | Tensor, Tensor | None, int]:
    return (lr.detach().clone(), lr, _version(lr)) if isinstance(lr, Tensor) else (lr, None, 0)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
