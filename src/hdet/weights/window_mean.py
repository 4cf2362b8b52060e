"""The mean of the weights over a window: m, the point that a horizon judges and the weights one could
deploy."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.swa_utils import get_swa_multi_avg_fn

__all__ = ["WindowMean"]

#: So many iterates at most make up a window's mean. More of them cost time and change nothing that is seen.
_ITERATES = 32


class WindowMean:
    """Running mean of the weights over a window: in place, on their device, float32 where they have less.

    Args:
        weights: what is averaged. They may be pointed to other memory between two windows, not within one.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._weights = list(weights)
        self.tensors = [_wide(weight) for weight in weights]
        self._narrow = any(w.dtype != m.dtype for w, m in zip(self._weights, self.tensors, strict=True))
        self._add = get_swa_multi_avg_fn()  # type: ignore[no-untyped-call]
        self._stride = 1
        #: Steps to the window's end.
        self.left = 1
        self.count = 0
        self._aside: dict[int, Tensor] = {}
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
        now = self._seen
        if self._narrow:
            now = [w.to(m.dtype) for w, m in zip(self._seen, self.tensors, strict=True)]
        if self.count:
            self._add(self.tensors, now, self.count)
        else:  # written over, not averaged in: what a window before has left here may not be finite
            torch._foreach_copy_(self.tensors, now)  # no public name: see replicas/averaging.py
        self.count += 1

    @torch.no_grad()
    def swap_(self) -> None:
        """Let the mean stand where the weights are, and keep the weights here, until it is called again.

        In place, tensor by tensor. What is kept with more precision than the weights have stays here, and the
        weights are put aside meanwhile.
        """
        for i, (weight, mean) in enumerate(zip(self._weights, self.tensors, strict=True)):
            now = weight.detach()
            if i in self._aside:
                now.copy_(self._aside.pop(i))
            elif now.dtype != mean.dtype:
                self._aside[i] = now.clone()
                now.copy_(mean)
            else:
                kept = now.clone()
                now.copy_(mean)
                mean.copy_(kept)

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


def _wide(weight: Tensor) -> Tensor:
    """A copy with at least float32's precision."""
    narrow = weight.dtype in (torch.float16, torch.bfloat16)
    return weight.detach().to(torch.float32 if narrow else weight.dtype, copy=True)
