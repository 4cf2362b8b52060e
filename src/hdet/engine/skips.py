"""Steps that a fused optimizer skipped on the device: noticed when they happen, read when a window ends.

Under GradScaler an optimizer with ``fused=True`` steps whatever the gradients are, and its kernel leaves
everything as it is where a flag on the device, ``found_inf``, says so. Its step hooks are called all the
same. To read the flag there would be to wait for the device at every step; so it is kept where it lies.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from hdet.engine.announce import Announcer
from hdet.replicas import Replicas

__all__ = ["Skips", "can_skip", "skip_flag"]

#: So many flags are kept one by one before they become one tensor.
_FOLD = 64


class Skips:
    """Which of the calls since the last reading were skipped.

    Args:
        heeded: whether anybody asks; else every call counts.
        fused: whether an optimizer may skip on the device: then all ranks compare, with flags or without.
    """

    def __init__(self, *, heeded: bool, fused: bool = False) -> None:
        self._heeded = heeded
        self._fused = heeded and fused
        self._calls = 0
        #: The calls that have a flag, in order, and the flags: folded ones, then single ones.
        self._at: list[int] = []
        self._folded: list[Tensor] = []
        self._single: list[Tensor] = []

    def note(self, flags: Sequence[Tensor]) -> None:
        """A call, with the flag of every optimizer that stepped in it; none where one surely did.

        The call counts if any of them has moved its weights.
        """
        if flags and self._heeded:
            self._at.append(self._calls)
            self._single.append(flags[0] if len(flags) == 1 else _stacked(flags).all())
            if len(self._single) == _FOLD:
                self._folded.append(_stacked(self._single))
                self._single = []
        self._calls += 1

    def ago(self) -> list[int]:
        """How many calls ago those were that did nothing; 0 is the last one. Waits for the device."""
        flags = [*self._folded, *([_stacked(self._single)] if self._single else [])]
        known = [bool(flag) for part in flags for flag in part.tolist()]
        return [self._calls - 1 - at for at, skipped in zip(self._at, known, strict=True) if skipped]

    def take(self, caller: str, replicas: Replicas, announcer: Announcer) -> list[int]:
        """As :meth:`ago`, once: what follows is counted anew. A collective where there may be flags.

        Ranks that share gradients share what overflows. If they do not, one would go on to the sync and wait
        for another that does not come.
        """
        if not self._at and not self._fused:
            self._calls = 0
            return []
        ago, calls = self.ago(), self._calls
        scaled = bool(self._at)
        self.load([])
        rows = replicas.gather_ranks([float(len(ago)), float(sum(ago)), float(scaled)])
        if len({row[2] for row in rows}) > 1:
            without = [rank for rank, row in enumerate(rows) if not row[2]]
            raise RuntimeError(
                f"{caller}.step: a GradScaler must step the optimizer on all ranks or on none, and rank "
                f"{without[0]} has none: it takes steps that others may skip; use one everywhere"
            )
        if any(row != rows[0] for row in rows):
            raise RuntimeError(
                f"{caller}.step: ranks that share gradients must skip the same steps, and their fused "
                f"optimizers have skipped {', '.join(str(int(row[0])) for row in rows)} since the last sync; "
                "share the gradients before GradScaler looks at them, or use fused=False"
            )
        if ago:
            _tell(announcer, len(ago), calls)
        return ago

    def load(self, ago: Sequence[int]) -> None:
        """Take up where :meth:`ago` left off."""
        self._calls = 0
        self._at = [-1 - calls for calls in ago]
        self._folded = [torch.ones(len(ago), dtype=torch.bool)] if ago else []
        self._single = []


def can_skip(optimizers: Iterable[Optimizer]) -> bool:
    """Whether GradScaler leaves it to one of them to skip a step."""
    # By what GradScaler itself goes by, torch 2.6 to 2.13.
    return any(getattr(one, "_step_supports_amp_scaling", False) for one in optimizers)


def skip_flag(optimizer: Optimizer) -> Tensor | None:
    """Whether the step just taken was skipped on the device, as a tensor there; None where it was not."""
    found_inf = getattr(optimizer, "found_inf", None)
    return found_inf.detach().reshape(()) != 0 if isinstance(found_inf, Tensor) else None


def _tell(announcer: Announcer, skipped: int, calls: int) -> None:
    """That nothing is trained is told apart: a few skipped steps are how GradScaler finds its scale."""
    if skipped < calls:
        message = f"{skipped} of {calls} steps were skipped on the device: they do not count"
        announcer.say_once(logging.WARNING, f"{message}, the schedule waits", "skipped on the device")
        return
    message = f"all of {calls} steps were skipped on the device: nothing is trained"
    announcer.say_once(logging.WARNING, f"{message}; is the loss finite?", "all skipped on the device")


def _stacked(flags: Sequence[Tensor]) -> Tensor:
    return torch.stack([flag.to(flags[0].device, non_blocking=True) for flag in flags])
