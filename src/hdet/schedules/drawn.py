"""A shape as a schedule: drawn into ``group["lr"]``, step by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from hdet.schedules.shapes import Shape

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
        self.at = 0
        lrs = [float(group["lr"]) for group in optimizer.param_groups]
        ends = [*accumulate(sizes or [len(lrs)])]
        parts = [lrs[start:end] for start, end in pairwise([0, *ends])]
        #: Of each group to the first one of its optimizer.
        self.ratios = [lr / part[0] for part in parts for lr in part]
        self._write()

    def step(self) -> None:
        """On to the next step."""
        self.at += 1
        self._write()

    def _write(self) -> None:
        value = self.shape(self.at)
        for group, ratio in zip(self._optimizer.param_groups, self.ratios, strict=False):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(ratio * value)
            else:
                group["lr"] = ratio * value

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return {"at": self.at, "ratios": self.ratios}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off."""
        self.at, self.ratios = state["at"], list(state["ratios"])
