"""A shape as a schedule: drawn into ``group["lr"]``, step by step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from hdet.autolr.shapes import Shape

__all__ = ["DrawnShape"]


class DrawnShape:
    """A shape, drawn into the optimizer's groups with their own ratios.

    Args:
        optimizer: of its learning rates only the ratios between groups count.
        shape: from a step to a multiplier.
        sizes: how many groups each of several optimizers has: ratios count within each.
    """

    def __init__(self, optimizer: Optimizer, shape: Shape, sizes: Sequence[int] = ()) -> None:
        self._optimizer = optimizer
        self.shape = shape
        lrs = [float(group["lr"]) for group in optimizer.param_groups]
        ends = [*accumulate(sizes or [len(lrs)])]
        parts = [lrs[start:end] for start, end in pairwise([0, *ends])]
        #: Of each group to the first one of its optimizer.
        self.ratios = [lr / part[0] for part in parts for lr in part]
        #: Tensors are covered where they lie, as any other schedule's are.
        self.covers_itself = not any(isinstance(group["lr"], Tensor) for group in optimizer.param_groups)
        #: From the schedule's values to those that the optimizer reads; the loop sets it.
        self.cover: Callable[[list[float | Tensor]], list[float | Tensor]] = list
        self.at = -1
        self.step()

    def step(self) -> None:
        """On to the next step."""
        self.at += 1
        value = self.shape(self.at)
        values: list[float | Tensor] = [ratio * value for ratio in self.ratios]
        if self.covers_itself:
            values = self.cover(values)
        for group, lr in zip(self._optimizer.param_groups, values, strict=False):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return {"at": self.at, "ratios": self.ratios}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off."""
        self.at, self.ratios = state["at"], list(state["ratios"])
