"""A shape as a schedule: drawn into ``group["lr"]``, step by step."""

from __future__ import annotations

from collections.abc import Mapping
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
    """

    def __init__(self, optimizer: Optimizer, shape: Shape) -> None:
        self._optimizer = optimizer
        self.shape = shape
        self.at = 0
        first = float(optimizer.param_groups[0]["lr"])
        self._ratios = [float(group["lr"]) / first for group in optimizer.param_groups]
        self._write()

    def step(self) -> None:
        """On to the next step."""
        self.at += 1
        self._write()

    def _write(self) -> None:
        value = self.shape(self.at)
        for group, ratio in zip(self._optimizer.param_groups, self._ratios, strict=False):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(ratio * value)
            else:
                group["lr"] = ratio * value

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return {"at": self.at, "ratios": self._ratios}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off."""
        self.at, self._ratios = state["at"], list(state["ratios"])
