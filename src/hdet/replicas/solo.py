"""One replica: the same interface, and nothing to communicate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from hdet.replicas.base import Mean, Replicas

__all__ = ["SoloReplica"]


class SoloReplica(Replicas):
    """N = 1. The mean of one replica is itself, bit for bit."""

    rank = 0
    size = 1

    def gather(self, row: Sequence[float | Tensor]) -> list[list[float]]:
        return [[float(value) for value in row]]

    def agree(self, caller: str, facts: Mapping[str, str]) -> None:
        return None

    def plan_mean(self, tensors: Sequence[Tensor], buffers: Sequence[Tensor] = ()) -> Mean:
        return tuple
