"""The optimizer's own step hooks carry the fan-out (Eq. 2) and tell true steps from calls without one.

``group["lr"]`` holds the base value; the replica's own stands there only while the optimizer steps. So any
scheduler composes, loggers show the base, and accumulation or a step that GradScaler skipped is not counted.
Several optimizers take one step together, in any order, each once. What a fused optimizer skips, it skips on
the device: such a step is counted, and taken back when a window ends (:mod:`hdet.engine.skips`).

The hooks are opaque to ``torch.compile``: a compiled ``optimizer.step`` is cut at them.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

from hdet.engine.announce import Announcer
from hdet.engine.fan_out import FanOut
from hdet.engine.optimizers import parts_of
from hdet.engine.skips import Skips, skip_flag

__all__ = ["StepHooks", "take_over"]

_TOO_MANY_CALLS = 100
#: So many steps one of several optimizers may miss, or this share of all: a GradScaler skips one alone.
_MISSES, _SHARE_OF_MISSES = 16, 1 / 8


class StepHooks:
    """Hooks on one optimizer, or on several that step together.

    Args:
        optimizer: whose steps they follow.
        fan_out: this replica's own values stand in their places during a step.
        before: called before each; None where nobody looks at the weights.
        detach: called when another run takes the optimizer over.
        skips: keeps what fused optimizers skip.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        fan_out: FanOut,
        before: Callable[[], object] | None,
        detach: weakref.WeakMethod[Callable[[], None]],
        skips: Skips,
    ) -> None:
        self._skips = skips
        self._fan_out = fan_out
        self._before = before
        self._inside = False
        self._calls_without_step = 0
        self._parts = parts_of(optimizer)
        #: Whether an optimizer has stepped since :meth:`count`; of several, any: its weights have moved.
        self.stepped = False
        #: Steps of each optimizer since :meth:`count`, and how many of them each has missed, and there were.
        self._taken = [0 for _ in self._parts]
        self._missed = [0 for _ in self._parts]
        self._counted = 0
        #: Of the steps since :meth:`count`: the flags on the device, and whether one was taken without.
        self._flags: list[Tensor] = []
        self._surely = False
        self._handles = []
        enter = _opaque(self._enter)
        for i, part in enumerate(self._parts):
            part._hdet_detach = detach  # type: ignore[attr-defined]
            self._handles += [
                part.register_step_pre_hook(enter),
                part.register_step_post_hook(_opaque(partial(self._over, i))),
                part.register_state_dict_pre_hook(lambda _: self.leave()),
                part.register_load_state_dict_pre_hook(lambda *_: self.leave()),
            ]

    def _enter(self, optimizer: Optimizer, *_: object) -> None:
        if self._inside:  # an optimizer step that raised never reached its post hook
            self.leave()
        if self._before is not None:
            _refuse_recording(optimizer)
            self._before()
        self._inside = True
        self._fan_out.enter_step()

    def _over(self, part: int, optimizer: Optimizer, *_: object) -> None:
        self.leave()
        self._taken[part] += 1
        self.stepped = True
        flag = skip_flag(optimizer)
        if flag is None:
            self._surely = True
        else:
            self._flags.append(flag)

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
        self._skips.note([] if self._surely else self._flags)
        self.forget()

    def forget(self) -> None:
        """What was stepped so far is of no account."""
        if self.stepped:
            self._calls_without_step = 0
            self._taken = [0] * len(self._parts)
            self._flags, self._surely, self.stepped = [], False, False

    def check(self, caller: str, announcer: Announcer, *, strict: bool) -> None:
        """A call of ``step()`` for every optimizer step, and every optimizer in every step.

        A framework that takes us for a scheduler calls us once an epoch unless it is told otherwise; the
        schedule would never come down, and windows would hold a few iterates each. ``strict`` raises.
        """
        most = max(self._taken)
        if most > 1:
            message = (
                f"{caller}.step: must be called once after every optimizer.step(), got {most} of them "
                "since the last call; call it in the training loop, or have the framework call it at every "
                """step (Lightning: {"scheduler": …, "interval": "step"})"""
            )
            if strict:
                self.forget()
                raise RuntimeError(message)
            announcer.say_once(logging.WARNING, message.removeprefix(f"{caller}."), "calls too rarely")
        if most > 0 and len(self._parts) > 1:
            self._look_for_misses(caller, announcer)

    def _look_for_misses(self, caller: str, announcer: Announcer) -> None:
        self._counted += 1
        for i, part in enumerate(self._parts):
            if self._taken[i]:
                continue
            self._missed[i] += 1
            message = (
                f"step: all optimizers must step before each call, and {type(part).__name__} (number {i}) "
                f"has missed {self._missed[i]} of {self._counted}"
            )
            announcer.say_once(
                logging.WARNING,
                f"{message}: the step counts, for others have moved; a GradScaler may skip one",
                f"missed by {i}",
            )
            if self._missed[i] > max(_MISSES, _SHARE_OF_MISSES * self._counted):
                raise RuntimeError(
                    f"{caller}.{message}: one that steps less often than the others would be judged by their "
                    "steps; let all step equally often, or leave it out and give it a schedule of its own"
                )

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
            else "taken for gradient accumulation, a skipped step, or a framework that steps schedulers once "
            "for every process (Accelerate); the schedule waits"
        )
        announcer.say_once(
            logging.WARNING,
            f"step() was called although the optimizer has not stepped since the last call: {taken}",
        )
        if self._calls_without_step == _TOO_MANY_CALLS:
            announcer.say_once(
                logging.WARNING,
                f"{_TOO_MANY_CALLS} calls of step() without one of optimizer.step(): is this the optimizer "
                "that trains? Its step hooks have not been called; a CUDA graph that replays it calls none",
            )


def _opaque(hook: Callable[..., None]) -> Callable[..., None]:
    """Not for Dynamo to look into: what is written there differs from step to step and from sync to sync.

    ``disable`` takes some microseconds. To ask ``is_compiling()`` first and do without it costs a compiled
    step more graphs.
    """

    def called(*args: Any) -> None:
        hook(*args)

    return cast("Callable[..., None]", torch.compiler.disable(called))  # type: ignore[no-untyped-call]


def _refuse_recording(optimizer: Optimizer) -> None:
    """A step that is replayed calls no hooks: it would not be counted, and would do again at each replay what
    was to be done once."""
    # Asked of a device that nobody uses yet, the second would wake it.
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if in_use and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"{type(optimizer).__name__}.step: a step that is counted must not be recorded in a CUDA graph, "
            "whose replays call no step hooks; record forward and backward pass, and step outside of it"
        )


def take_over(optimizer: Optimizer) -> None:
    """Two runs on one optimizer would multiply each other's spread: the newest one counts."""
    for part in parts_of(optimizer):
        detach: weakref.WeakMethod[Callable[[], None]] | None = getattr(part, "_hdet_detach", None)
        if detach is not None and (before := detach()) is not None:
            before()
