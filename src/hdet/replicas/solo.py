"""One replica: the same interface, and nothing to communicate."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from hdet.replicas.base import Mean, Replicas
from hdet.replicas.refusals import refuse_late_group

__all__ = ["SoloReplica"]


class SoloReplica(Replicas):
    """N = 1. The mean of one replica is itself, bit for bit.

    Args:
        found: that it is alone was found and not told, because there was no process group; one that appears
            before the first step is refused.
    """

    rank = 0
    size = 1
    _found = False

    def __init__(self, *, found: bool = False) -> None:
        self._found = found

    def begin(self, caller: str) -> None:
        if self._found:
            refuse_late_group(caller)
            self._found = False

    def gather(self, row: Sequence[float | Tensor]) -> list[list[float]]:
        return [[float(value) for value in row]]

    def agree(self, caller: str, facts: Mapping[str, str]) -> None:
        return None

    def plan_mean(self, tensors: Sequence[Tensor], buffers: Sequence[Tensor] = ()) -> Mean:
        return tuple
