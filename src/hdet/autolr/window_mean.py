"""The mean of the weights over a window: m, the point that a horizon judges and the weights one could
deploy."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.swa_utils import get_swa_multi_avg_fn

__all__ = ["WindowMean", "wide_copy"]

#: So many iterates at most make up a window's mean. More of them cost time and change nothing that is seen.
_ITERATES = 32


class WindowMean:
    """Running mean of the weights over a window: in place, on their device, float32 where they have less.

    Args:
        weights: what is averaged. They may be pointed to other memory between two windows, not within one.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._weights = list(weights)
        self.tensors = [wide_copy(weight) for weight in weights]
        self._narrow = any(w.dtype != m.dtype for w, m in zip(self._weights, self.tensors, strict=True))
        self._add = get_swa_multi_avg_fn()  # type: ignore[no-untyped-call]
        self._stride = 1
        #: Steps to the window's end.
        self.left = 1
        self.count = 0
        self._aside: dict[int, Tensor] = {}
        self._halved = False
        self._look()

    def begin(self, steps: int) -> None:
        """A window of so many steps; its last one is always part of the mean."""
        self._stride = max(1, steps // _ITERATES)
        self.left = steps
        self.count = 0
        self._look()

    def _look(self) -> None:
        # Views without a graph, made once a window: a list of fifty takes longer than averaging them.
        self._seen = [weight.detach() for weight in self._weights]

    @torch.no_grad()
    def add(self) -> None:
        """Once a step. Every k-th iterate counts, k following from the window's length."""
        self.left -= 1
        if self.left % self._stride:
            return
        if not self.count:  # written over, not averaged in: what a window before left may not be finite
            torch._foreach_copy_(self.tensors, self._seen)  # no public name: see replicas/averaging.py
        elif self._narrow:  # one after the other: no wide copy of all weights
            for mean, now in zip(self.tensors, self._seen, strict=True):
                mean.lerp_(now.to(mean.dtype), 1 / (self.count + 1))
        else:
            self._add(self.tensors, self._seen, self.count)
        self.count += 1

    @torch.no_grad()
    def swap_(self) -> None:
        """Let the mean stand where the weights are, and keep the weights here, until it is called again.

        In place, tensor by tensor: nothing larger than one of them is allocated. What is kept with more
        precision than the weights have stays here in full; the weights are in its upper halves, or aside.
        """
        for i, (weight, mean) in enumerate(zip(self._weights, self.tensors, strict=True)):
            now = weight.detach()
            if _has_halves(now, mean):
                _exchange(now, mean, back=self._halved)
            elif i in self._aside:
                now.copy_(self._aside.pop(i))
            elif now.dtype != mean.dtype:
                self._aside[i] = now.clone()
                now.copy_(mean)
            else:
                kept = now.clone()
                now.copy_(mean)
                mean.copy_(kept)
        self._halved = not self._halved

    def state_dict(self) -> dict[str, object]:
        """Everything that a window in progress consists of; the tensors are not copied."""
        return {
            "mean": list(self.tensors),
            "count": self.count,
            "left": self.left,
            "stride": self._stride,
        }

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, object]) -> None:
        """Take up a window in progress."""
        for mine, saved in zip(self.tensors, state["mean"], strict=True):  # type: ignore[call-overload]
            mine.copy_(saved)
        self.count, self.left, self._stride = state["count"], state["left"], state["stride"]  # type: ignore[assignment]


def wide_copy(weight: Tensor) -> Tensor:
    """A copy with at least float32's precision."""
    narrow = weight.dtype in (torch.float16, torch.bfloat16)
    return weight.detach().to(torch.float32 if narrow else weight.dtype, copy=True)


def _has_halves(weight: Tensor, mean: Tensor) -> bool:
    """Whether a bfloat16 is the upper half of what its mean is kept in, and can be reached as such."""
    if (weight.dtype, mean.dtype) != (torch.bfloat16, torch.float32) or sys.byteorder != "little":
        return False
    return mean.dim() > 0 and mean.stride(-1) == 1


def _exchange(weight: Tensor, mean: Tensor, *, back: bool) -> None:
    """Round ``mean`` to ``weight``, whose own bits go where the two then have theirs in common."""
    halves = mean.view(torch.int16)
    lower, upper = halves[..., 0::2], halves[..., 1::2]
    bits = weight.view(torch.int16)
    if back:
        rounded = bits - _carry(bits, lower)
        bits.copy_(upper)
    else:
        rounded = bits.clone()
        bits.copy_(upper + _carry(upper, lower))
    upper.copy_(rounded)


def _carry(upper: Tensor, lower: Tensor) -> Tensor:
    """1 where the lower half rounds up, and never into what is not a number."""
    finite = (upper & 0x7F80) != 0x7F80
    return ((lower < 0) & finite).to(torch.int16)
