"""Replicas that lie on several ranks each: HSDP, tensor parallelism beside data parallelism, one sharded
model alone.

Weights meet over the ranks that hold the same part of every replica, what is said of a replica over its own
parts. Every decision is taken from the rows of all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from hdet.replicas.base import Mean, Replicas
from hdet.replicas.layout import Layout
from hdet.replicas.process import ProcessReplicas, agree_among

__all__ = ["ShardedReplicas"]


class ShardedReplicas(Replicas):
    """Replicas in parts.

    Args:
        across: the ranks that hold this part of every replica; one process if there is one replica.
        within: the ranks of this replica.
        layout: where parameters lie.
    """

    def __init__(self, across: Replicas, within: ProcessReplicas, layout: Layout) -> None:
        self.rank, self.size = across.rank, across.size
        self.part, self.parts = within.rank, within.size
        self._across, self._within, self._layout = across, within, layout
        self.reshards = layout.reshards
        self.gradients: Literal["all", "none"] | None = None
        if self.size > 1 and layout.wired == self.size:
            self.gradients = "all"  # FSDP shares them over all replicas

    def __repr__(self) -> str:
        return f"ShardedReplicas({self.size} of {self.parts} ranks)"

    def about_to(self, doing: str) -> None:
        self._within.about_to(doing)
        self._across.about_to(doing)

    def gather_ranks(self, row: Sequence[float | Tensor]) -> list[list[float]]:
        width = len(row)
        of_replica = [value for own in self._within.gather(row) for value in own]
        rows = [value for replica in self._across.gather(of_replica) for value in replica]
        return [rows[at * width : (at + 1) * width] for at in range(self.ranks)]

    def gather(self, row: Sequence[float | Tensor]) -> list[list[float]]:
        return self.of_replicas(self.gather_ranks(row))

    def shard_of(self, parameter: Tensor) -> tuple[int, int]:
        return self._layout.shard_of(parameter)

    def whole_norms(self, norms: Sequence[float]) -> list[float]:
        if not norms:
            return []
        # In the same order on every part, so that all have the same number to the last bit.
        return [math.hypot(*column) for column in zip(*self._within.gather(norms), strict=True)]

    def whole_sum(self, tensor: Tensor) -> Tensor:
        return self._within.sum_of(tensor)

    def agree(self, caller: str, facts: Mapping[str, str]) -> None:
        agree_among(caller, facts, self._all_gather)

    def _all_gather(self, tensor: Tensor) -> list[Tensor]:
        of_replica = torch.stack(self._within.all_gather(tensor))
        if not isinstance(self._across, ProcessReplicas):
            return list(of_replica)
        return [row for replica in self._across.all_gather(of_replica) for row in replica]

    def together(self, what: str, measure: Callable[[], Sequence[float | Tensor]]) -> list[float | Tensor]:
        """Who fails says so at once, and does not ask the others: they may be in the midst of a forward pass
        for which its shards are needed, and would not come. They end when this process does."""
        try:
            return list(measure())
        except Exception as error:
            raise RuntimeError(
                f"{what} raised on part {self.part} of {self.parts} of replica {self.rank} ({error!r}); the "
                "other parts may wait for its shards in a forward pass: let this process end, and all start "
                "again from a checkpoint"
            ) from error

    def plan_mean(self, tensors: Sequence[Tensor], buffers: Sequence[Tensor] = ()) -> Mean:
        return self._across.plan_mean(tensors, buffers)

    def scatter_bytes(self, rows: Tensor) -> Tensor:
        """Row r goes to this part of replica r; what comes back has a row from each of them."""
        assert isinstance(self._across, ProcessReplicas), "one replica alone sends nothing"
        return self._across.scatter_bytes(rows)

    def gather_bytes(self, row: Tensor) -> Tensor:
        """The row of this part of every replica."""
        assert isinstance(self._across, ProcessReplicas), "one replica alone sends nothing"
        return self._across.gather_bytes(row)

    @property
    def sent_bytes(self) -> int:  # type: ignore[override]  # counted by those who send
        """By this rank, to other parts of its replica and to other replicas."""
        return self._across.sent_bytes + self._within.sent_bytes
