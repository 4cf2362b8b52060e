"""The optimizer's own step hooks carry the fan-out (Eq. 2) and tell true steps from calls without one.

``group["lr"]`` holds the base value, and the replica's own only while the optimizer steps. So any
scheduler composes, loggers show the base, and accumulation or a step that GradScaler skipped is not counted.
Several optimizers take one step together, in any order, each once.

A fused optimizer under GradScaler skips on the device: its hooks are called, and a flag there, ``found_inf``,
says whether it moved anything. Reading the flag would wait for the device at every step, so flags are kept
and read when a window ends.

The hooks are opaque to ``torch.compile``: a compiled ``optimizer.step`` is cut at them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from hdet.hyperparameters import GroupLearningRate
from hdet.loop.announce import Announcer
from hdet.loop.fan_out import FanOut
from hdet.loop.optimizers import every_parameter, parts_of
from hdet.replicas import Replicas

__all__ = ["StepHooks", "take_over"]

_TOO_MANY_CALLS = 100
#: So many steps one of several optimizers may miss, or this share of all: a GradScaler skips one alone.
_MISSES, _SHARE_OF_MISSES = 16, 1 / 8
#: So many flags are kept one by one before they become one tensor.
_FOLD = 64


class StepHooks:
    """Hooks on one optimizer, or on several that step together.

    Args:
        fan_out: writes this replica's own values for a step.
        before: called before the first steps of a round, until it returns False; None where nobody looks at
            the weights.
        detach: called when another run takes the optimizer over.
        reads_flags: whether steps that were skipped on the device are taken back.
    """

    def __init__(
        self,
        caller: str,
        announcer: Announcer,
        optimizer: Optimizer,
        fan_out: FanOut,
        before: Callable[[], bool] | None,
        detach: weakref.WeakMethod[Callable[[], None]],
        *,
        reads_flags: bool,
    ) -> None:
        self._caller = caller
        self._announcer = announcer
        self._fan_out = fan_out
        self._before = before
        #: Whether ``before`` is called at the next step.
        self.round_begins = before is not None
        self._inside = False
        self._calls_without_step = 0
        self._optimizers = parts_of(optimizer)
        self._on_cuda = before is not None and any(
            parameter.is_cuda for parameter in every_parameter(optimizer)
        )
        several = len(self._optimizers) > 1
        #: Steps since :meth:`count`; of several optimizers those of all together, and of each.
        self.taken = 0
        self._taken = [0] * len(self._optimizers) if several else []
        #: From so many steps on :meth:`check` has something to look at.
        self.checks_from = 1 if several else 2
        #: How many steps each has missed, and there were.
        self._missed = [0 for _ in self._optimizers]
        self._counted = 0
        #: Of the steps since :meth:`count`: the flags on the device.
        self._flags: list[Tensor] = []
        #: Steps of all optimizers since the last sync, with a call of ``step()`` or without.
        self.in_round = 0
        self._reads_flags = reads_flags
        # By what GradScaler itself goes by, torch 2.6 to 2.13; then all ranks compare, with flags or without.
        fused = any(getattr(one, "_step_supports_amp_scaling", False) for one in self._optimizers)
        self._may_skip = reads_flags and fused
        #: Calls since the last reading, which of them have a flag, and the flags: folded ones, then single.
        self._calls = 0
        self._flagged: list[int] = []
        self._folded: list[Tensor] = []
        self._single: list[Tensor] = []
        self._handles = []
        # Dynamo must not look into them: what they write differs from step to step. To ask
        # ``is_compiling()`` first and do without ``disable`` costs a compiled step more graphs.
        self._prepare, self._write_any, self._restore_any = map(
            torch.compiler.disable, (self._before_step, self._write, self.restore)
        )
        enter, leave, rate = self._enter, self._leave, GroupLearningRate
        if several or not _skipped(StepHooks._enter, StepHooks._leave, rate.fan_out, rate.restore):
            enter, leave = map(torch.compiler.disable, (enter, leave))
        for one in self._optimizers:
            one._hdet_detach = detach  # type: ignore[attr-defined]
            self._handles += [
                one.register_step_pre_hook(enter),
                one.register_step_post_hook(leave),
                one.register_state_dict_pre_hook(lambda _: self.restore()),
                one.register_load_state_dict_pre_hook(lambda *_: self._loads()),
            ]

    def _enter(self, optimizer: Optimizer, *_: object) -> None:
        if self.round_begins or self._inside or self._on_cuda:
            self._prepare(optimizer)
        self._inside = True
        if self._fan_out.only_rates:
            for axis, level in self._fan_out.in_step:
                axis.fan_out(level)
        else:
            self._write_any()

    def _write(self) -> None:
        for axis, level in self._fan_out.in_step:
            axis.fan_out(level)

    def _before_step(self, optimizer: Optimizer) -> None:
        if self._inside:  # an optimizer step that raised never reached its post hook
            self.restore()
        if self._before is not None:
            if self._on_cuda and torch.cuda.is_current_stream_capturing():
                raise RuntimeError(
                    f"{type(optimizer).__name__}.step: a step that is counted must not be recorded in a CUDA "
                    "graph, whose replays call no step hooks; record forward and backward pass, and step "
                    "outside of it"
                )
            if self.round_begins:
                self.round_begins = self._before()

    def _leave(self, optimizer: Optimizer, *_: object) -> None:
        if self._fan_out.only_rates:
            for axis, _level in self._fan_out.in_step:
                axis.restore()
        else:
            self._restore_any()
        self._inside = False
        self.in_round += 1
        self.taken += 1
        if self._taken:
            self._taken[self._optimizers.index(optimizer)] += 1
        if self._reads_flags and isinstance(found_inf := getattr(optimizer, "found_inf", None), Tensor):
            self._flags.append(found_inf.detach().reshape(()) != 0)

    def restore(self) -> None:
        """Write the base values into the groups, whatever became of the step."""
        for axis, _ in self._fan_out.in_step:
            axis.restore()
        self._inside = False

    def _loads(self) -> None:
        """The optimizer is about to take another's state, and a step of before counts no more:
        ``torch.distributed.checkpoint`` takes one at a rate of zero, to make room for the state."""
        self.restore()
        self.forget()

    def remove(self) -> None:
        """Leave the optimizer alone from now on."""
        for handle in self._handles:
            handle.remove()

    def count(self) -> None:
        """The step is counted; it was skipped if the flags of all optimizers that stepped say so."""
        if self._flags and len(self._flags) == self.taken:
            self._flagged.append(self._calls)
            self._single.append(self._flags[0] if len(self._flags) == 1 else _stacked(self._flags).all())
            if len(self._single) == _FOLD:
                self._folded.append(_stacked(self._single))
                self._single = []
        self._calls += 1
        self.taken = self._calls_without_step = 0
        if self._flags or self._taken:
            self.forget()

    def forget(self) -> None:
        """What was stepped so far is of no account."""
        self.taken = self._calls_without_step = 0
        self._taken = [0] * len(self._taken)
        self._flags = []

    # ------------------------------------------------------------------ one call for every step

    def check(self, *, strict: bool) -> None:
        """Warn, or raise where ``strict``, unless ``step()`` is called for every step of every optimizer.

        A framework that takes us for a scheduler calls us once an epoch unless it is told otherwise: the
        schedule would never decay, and windows would hold a few iterates each.
        """
        most = max(self._taken, default=self.taken)
        if most > 1:
            message = (
                f"{self._caller}.step: must be called once after every optimizer.step(), got {most} of them "
                "since the last call; call it in the training loop, or have the framework call it at every "
                """step (Lightning: {"scheduler": …, "interval": "step"})"""
            )
            if strict:
                self.forget()
                raise RuntimeError(message)
            message = message.removeprefix(f"{self._caller}.")
            self._announcer.warn_once(message, "calls too rarely")
        if self._taken:
            self._look_for_misses()

    def _look_for_misses(self) -> None:
        self._counted += 1
        for i, one in enumerate(self._optimizers):
            if self._taken[i]:
                continue
            self._missed[i] += 1
            message = (
                f"step: all optimizers must step before each call, and {type(one).__name__} (number {i}) "
                f"has missed {self._missed[i]} of {self._counted}"
            )
            self._announcer.warn_once(
                f"{message}: the step counts, for others have moved; a GradScaler may skip one",
                f"missed by {i}",
            )
            if self._missed[i] > max(_MISSES, _SHARE_OF_MISSES * self._counted):
                raise RuntimeError(
                    f"{self._caller}.{message}: one that steps less often than the others would be judged by "
                    "their steps; let all step equally often, or leave it out and give it a schedule of its "
                    "own"
                )

    def notice_no_step(self, *, counts: bool) -> None:
        """Warn of a call of ``step()`` that follows no step of the optimizer.

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
        self._announcer.warn_once(
            f"step() was called although the optimizer has not stepped since the last call: {taken}",
        )
        if self._calls_without_step == _TOO_MANY_CALLS:
            self._announcer.warn_once(
                f"{_TOO_MANY_CALLS} calls of step() without one of optimizer.step(): is this the optimizer "
                "that trains? Its step hooks have not been called; a CUDA graph that replays it calls none",
            )

    # ------------------------------------------------------------------ what was skipped on the device

    def skipped_ago(self) -> list[int]:
        """How many calls ago those were that did nothing; 0 is the last one. Waits for the device."""
        flags = [*self._folded, *([_stacked(self._single)] if self._single else [])]
        known = [bool(flag) for part in flags for flag in part.tolist()]
        return [self._calls - 1 - at for at, skipped in zip(self._flagged, known, strict=True) if skipped]

    def load_skipped(self, ago: Sequence[int]) -> None:
        """Take up where :meth:`skipped_ago` left off."""
        self._calls = 0
        self._flagged = [-1 - calls for calls in ago]
        self._folded = [torch.ones(len(ago), dtype=torch.bool)] if ago else []
        self._single = []

    def take_skipped(self, replicas: Replicas) -> list[int]:
        """As :meth:`skipped_ago`, and start again. A collective where there may be flags.

        Ranks that share gradients share what overflows. If they do not, one would go on to the sync and wait
        for another that does not come.
        """
        if not self._flagged and not self._may_skip:
            self._calls = 0
            return []
        ago, calls = self.skipped_ago(), self._calls
        scaled = bool(self._flagged)
        self.load_skipped([])
        rows = replicas.gather_ranks([float(len(ago)), float(sum(ago)), float(scaled)])
        if len({row[2] for row in rows}) > 1:
            without = [rank for rank, row in enumerate(rows) if not row[2]]
            raise RuntimeError(
                f"{self._caller}.step: a GradScaler must step the optimizer on all ranks or on none, and "
                f"rank {without[0]} has none: it takes steps that others may skip; use one everywhere"
            )
        if any(row != rows[0] for row in rows):
            raise RuntimeError(
                f"{self._caller}.step: ranks that share gradients must skip the same steps, and their fused "
                f"optimizers have skipped {', '.join(str(int(row[0])) for row in rows)} since the last sync; "
                "share the gradients before GradScaler looks at them, or use fused=False"
            )
        if ago and len(ago) == calls:
            message = (
                f"all of {calls} steps were skipped on the device: nothing is trained; is the loss finite?"
            )
            self._announcer.warn_once(message, "all skipped on the device")
        elif ago:  # a few are how GradScaler finds its scale
            message = f"{len(ago)} of {calls} steps were skipped on the device: they do not count"
            self._announcer.warn_once(f"{message}, the schedule waits", "skipped on the device")
        return ago


def _skipped(*functions: Callable[..., None]) -> bool:
    """Have Dynamo leave these alone; whether it does.

    ``disable`` takes as long as all that the hooks do. ``skip`` takes no time, and holds for a function
    alone: so what they call in a quiet step is skipped, too, or is no Python. It has no public name (torch
    2.6 to 2.14); ``disable`` replaces it.
    """
    try:
        from torch._dynamo.decorators import skip  # as late as ``disable`` imports it
    except ImportError:
        return False
    for function in functions:
        skip(function)
    return True


def _stacked(flags: Sequence[Tensor]) -> Tensor:
    return torch.stack([flag.to(flags[0].device, non_blocking=True) for flag in flags])


def take_over(optimizer: Optimizer) -> None:
    """Two runs on one optimizer would multiply each other's spread: the newest one counts."""
    for one in parts_of(optimizer):
        detach: weakref.WeakMethod[Callable[[], None]] | None = getattr(one, "_hdet_detach", None)
        if detach is not None and (before := detach()) is not None:
            before()
