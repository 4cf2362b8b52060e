"""Replicas on several ranks each: whose row is whose, and what is taken over the ranks of one replica."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from hdet.replicas.processes import ProcessReplicas
from hdet.replicas.sharded import Layout, ShardedReplicas
from tests.fakes import Thread, on_threads


class Some(ProcessReplicas):
    """Some of the threads, all of which communicate at once."""

    def __init__(self, thread: Thread, ranks: Sequence[int]) -> None:
        self._thread, self._ranks, self._device = thread, ranks, torch.device("cpu")
        self.rank, self.size = ranks.index(thread.rank), len(ranks)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        every = self._thread.exchange(tensor)
        return [every[rank] for rank in self._ranks]

    def sum_of(self, tensor: Tensor) -> Tensor:
        return torch.stack(self.all_gather(tensor)).sum(0)


def sharded(thread: Thread, *, wired: int = 1) -> ShardedReplicas:
    """Two replicas of two ranks each: {0, 1} and {2, 3}."""
    first = 2 * (thread.rank // 2)
    within = Some(thread, [first, first + 1])
    across = Some(thread, [thread.rank % 2, thread.rank % 2 + 2])
    return ShardedReplicas(across, within, Layout((first, first + 1), wired, {}, (), can_reshard=True))


def test_rows_are_in_the_order_of_ranks_and_a_replicas_is_their_mean() -> None:
    def act(thread: Thread) -> Any:
        replicas = sharded(thread)
        row = [float(thread.rank), 1.0]
        return replicas.world_rank, replicas.gather_ranks(row), replicas.gather(row)

    every, means = [[float(rank), 1.0] for rank in range(4)], [[0.5, 1.0], [2.5, 1.0]]
    assert on_threads(4, act) == [(rank, every, means) for rank in range(4)]


def test_norms_and_sums_are_taken_over_the_ranks_of_one_replica() -> None:
    def act(thread: Thread) -> Any:
        replicas, number = sharded(thread), float(thread.rank)
        assert replicas.replica_norms([]) == []
        return replicas.replica_norms([number, 0.0]), replicas.replica_sum(torch.tensor([number])).tolist()

    first, second = ([1.0, 0.0], [1.0]), ([math.hypot(2.0, 3.0), 0.0], [5.0])
    assert on_threads(4, act) == [first, first, second, second]


def test_a_failure_is_told_at_once_without_asking_the_others() -> None:
    """They may be in a forward pass that needs this rank's shards, and would not come."""

    def act(thread: Thread) -> list[Any]:
        def measure() -> list[float]:
            if thread.rank == 3:
                raise KeyError("batch")
            return [1.0]

        return sharded(thread).together("the probe", measure)

    *others, failed = on_threads(4, act)
    assert others == [[1.0]] * 3
    assert r"the probe raised on rank 1 of the 2 of replica 1 (KeyError('batch'))" in str(failed)


@pytest.mark.parametrize(("wired", "shared"), [(1, None), (2, "all")])
def test_a_model_over_all_replicas_shares_their_gradients(wired: int, shared: str | None) -> None:
    assert on_threads(4, lambda thread: sharded(thread, wired=wired).gradients) == [shared] * 4


def test_a_flat_parameter_is_the_shard_that_its_module_says() -> None:
    flat, whole = torch.zeros(2), torch.zeros(2)
    layout = Layout((0, 1), 1, {id(flat): (1, 2)}, (), can_reshard=False)
    assert (layout.shard_of(flat), layout.shard_of(whole)) == ((1, 2), (0, 1))


def test_a_number_on_which_one_rank_differs_is_named_on_all() -> None:
    def act(thread: Thread) -> None:
        sharded(thread).agree("Here", {"seed": str(thread.rank == 2)})

    for error in on_threads(4, act):
        assert "seed must be the same on all: rank 0 has False; rank 2 has True" in str(error)
