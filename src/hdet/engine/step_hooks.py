"""The optimizer's own step hooks carry the fan-out (Eq. 2) and tell true steps from calls without one.

``group["lr"]`` holds the base value; the replica's own stands there only while the optimizer steps. So any
scheduler composes, loggers show the base, and accumulation or a step that GradScaler skipped is not counted.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable

from torch.optim import Optimizer

from hdet.engine.announce import Announcer
from hdet.engine.fan_out import FanOut

__all__ = ["StepHooks", "take_over"]

_TOO_MANY_CALLS = 100


class StepHooks:
    """Hooks on one optimizer.

    Args:
        optimizer: whose steps they follow.
        fan_out: this replica's own values stand in their places during a step.
        before: called before each.
        detach: called when another run takes the optimizer over.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        fan_out: FanOut,
        before: Callable[[], object],
        detach: weakref.WeakMethod[Callable[[], object]],
    ) -> None:
        self._fan_out = fan_out
        self._before = before
        self._inside = False
        self._calls_without_step = 0
        #: Whether the optimizer has stepped since :meth:`count`.
        self.stepped = False
        optimizer._hdet_detach = detach  # type: ignore[attr-defined]
        self._handles = [
            optimizer.register_step_pre_hook(self._enter),
            optimizer.register_step_post_hook(self._over),
            optimizer.register_state_dict_pre_hook(lambda _: self.leave()),
            optimizer.register_load_state_dict_pre_hook(lambda *_: self.leave()),
        ]

    def _enter(self, *_: object) -> None:
        if self._inside:  # an optimizer step that raised never reached its post hook
            self.leave()
        self._before()
        self._inside = True
        self._fan_out.enter_step()

    def _over(self, *_: object) -> None:
        self.leave()
        self.stepped = True

    def leave(self) -> None:
        """The base values stand in the groups, whatever became of the step."""
        self._fan_out.leave_step()
        self._inside = False

    def remove(self) -> None:
        """Leave the optimizer alone from now on."""
        for handle in self._handles:
            handle.remove()

    def count(self) -> None:
        """The step is counted."""
        self._calls_without_step = 0 if self.stepped else self._calls_without_step
        self.stepped = False

    def notice_no_step(self, announcer: Announcer, *, counts: bool) -> None:
        """A call of ``step()`` that follows no step of the optimizer.

        On gradients of its own, a rank whose GradScaler skips a step is alone in that: to wait for the
        optimizer would be to fall behind the others, so it ``counts``.
        """
        self._calls_without_step += 1
        taken = (
            "it counts all the same, so that ranks stay together; when accumulating, call it once for each "
            "optimizer step"
            if counts
            else "taken for gradient accumulation or a skipped step, the schedule waits"
        )
        announcer.say_once(
            logging.WARNING,
            f"step() was called although the optimizer has not stepped since the last call: {taken}",
        )
        if self._calls_without_step == _TOO_MANY_CALLS:
            announcer.say_once(
                logging.WARNING,
                f"{_TOO_MANY_CALLS} calls of step() without one of optimizer.step(): is this the optimizer "
                "that trains? Its step hooks have not been called",
            )


def take_over(optimizer: Optimizer) -> None:
    """Two runs on one optimizer would multiply each other's spread: the newest one counts."""
    detach: weakref.WeakMethod[Callable[[], object]] | None = getattr(optimizer, "_hdet_detach", None)
    if detach is not None and (before := detach()) is not None:
        before()
