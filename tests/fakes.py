"""Stand-ins that several test files share: other ranks without processes, a module with a temperature."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hdet.hyperparameters import Axis, LearningRate
from hdet.loop.levels import levels
from hdet.loop.policy import Context, Policy
from hdet.replicas import SoloReplica


class Alike(SoloReplica):
    """Rank r of N; the others say and hold the same as this one. In round 0 its level is z_r."""

    def __init__(self, rank: int = 1, size: int = 2) -> None:
        super().__init__()
        self.rank, self.size = rank, size

    def gather(self, row: Sequence[float]) -> list[list[float]]:
        return [list(row)] * self.size


class Faster(SoloReplica):
    """Rank 1 of two, and the one that does better."""

    rank, size = 1, 2

    def gather(self, row: Any) -> list[list[float]]:
        return [[*row[:3], row[3] + row[4], *row[4:]], list(row)]  # its mean loss is 1 higher


def multipliers(size: int, spread: float) -> tuple[float, ...]:
    """ρ of every replica in round 0 (Eq. 1)."""
    (axis,) = LearningRate(spread).bind(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0))
    return axis.multipliers(levels(size))


class Attention(nn.Module):
    """Logits times a temperature, which is a number or a buffer."""

    def __init__(self, scale: float | Tensor) -> None:
        super().__init__()
        if isinstance(scale, Tensor):
            self.register_buffer("scale", scale)
        else:
            self.scale = scale

    def forward(self, logits: Tensor) -> Tensor:
        return logits * self.scale


P = TypeVar("P", bound=Policy)


def bound(policy: P, axes: Sequence[Axis]) -> P:
    """A policy with its hyperparameters, in a process by itself."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    policy.bind(axes, Context("test", optimizer, SoloReplica(), None, True, tuple, nullcontext))
    return policy
