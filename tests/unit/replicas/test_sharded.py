"""Replicas on several ranks each: who they are, whose row is whose, and what is taken over the ranks of one
replica."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from hdet.replicas.processes import ProcessReplicas
from hdet.replicas.sharded import Layout, ShardedReplicas, drop_gathered, layout_of, local, ruler
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


# ---------------------------------------------------------------------- on which ranks a replica lies


@contextmanager
def world(rank: int, size: int) -> Iterator[None]:
    """This process is one of so many ranks, and nobody answers."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


class Flat(nn.Module):
    """A FullyShardedDataParallel, as far as one looks at it."""

    def __init__(self, strategy: str = "FULL_SHARD", group: Any = None, between: Any = None) -> None:
        super().__init__()
        self.sharding_strategy = SimpleNamespace(name=strategy)
        self.process_group, self._inter_node_pg = group, between
        self._handle: Any = None
        self.weight = nn.Parameter(torch.zeros(2))
        self.weight._fsdp_flattened = True  # type: ignore[attr-defined]


class FullySharded(nn.Module):
    """What fully_shard makes of a module, likewise."""

    def __init__(self) -> None:
        super().__init__()
        self.reshard = Mock()


class ZeroRedundancyOptimizer(torch.optim.SGD):
    """Known by its name alone."""

    def __init__(self, process_group: Any) -> None:
        super().__init__([nn.Parameter(torch.zeros(2))])
        self.process_group = process_group


@pytest.fixture
def known_by_sight(monkeypatch: pytest.MonkeyPatch) -> None:
    known = SimpleNamespace(FullyShardedDataParallel=Flat, FSDPModule=FullySharded)
    monkeypatch.setitem(sys.modules, "torch.distributed.fsdp", known)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)  # no shards without


@pytest.mark.usefixtures("known_by_sight")
@pytest.mark.parametrize(
    ("kind", "ranks", "wired", "can_reshard"),
    [
        ("whole", (3,), 1, True),
        ("fully_shard", (2, 3), 2, True),
        ("ZeRO", (2, 3), 1, False),
        ("FULL_SHARD", (2, 3), 1, False),
        ("HYBRID_SHARD", (2, 3), 2, False),
        ("NO_SHARD", (3,), 1, True),
    ],
)
def test_a_replica_is_the_ranks_among_which_something_is_sharded(
    kind: str, ranks: tuple[int, ...], wired: int, can_reshard: bool
) -> None:
    """Rank 3 of four, with a partner, rank 2, and a twin in the other replica, rank 1. How many replicas
    share their gradients, a mesh or HYBRID_SHARD says; an optimizer says nothing of gradients."""
    with world(3, 4):
        own, twins = dist.new_group([2, 3]), dist.new_group([1, 3])
        parameter: Tensor = nn.Parameter(torch.zeros(2))
        model, optimizers = None, []
        if kind == "fully_shard":
            mesh = init_device_mesh("cpu", (2, 2))
            parameter = DTensor.from_local(torch.zeros(1), mesh, [Replicate(), Shard(0)])
        elif kind == "ZeRO":
            optimizers = [ZeroRedundancyOptimizer(own)]
        elif kind != "whole":
            model = Flat(kind, own, twins if kind == "HYBRID_SHARD" else None)
            parameter = model.weight
        layout = layout_of([parameter], model, optimizers)
        assert (layout.ranks, layout.wired, layout.can_reshard) == (ranks, wired, can_reshard)
        assert layout.shard_of(parameter) == ((0, 1) if kind in ("whole", "ZeRO", "NO_SHARD") else (1, 2))


@pytest.mark.parametrize(("rank", "first", "count"), [(0, 0, 55), (1, 55, 55), (297, 16335, 49), (298, 0, 0)])
def test_every_rank_has_numbers_of_its_own_as_far_as_they_go(rank: int, first: int, count: int) -> None:
    """Three hundred ranks, more than there are pieces of 16,384 numbers."""
    with world(rank, 300):
        mesh = init_device_mesh("cpu", (300,))
        marks = local(ruler([DTensor.from_local(torch.zeros(1), mesh, [Shard(0)])]))
    assert marks.tolist() == list(range(first, first + count))


@pytest.mark.usefixtures("known_by_sight")
@pytest.mark.parametrize(
    ("sharded_by_it", "gathered", "dropped"),
    [(True, True, True), (True, False, False), (False, True, False), (None, None, False)],
)
def test_flat_weights_are_dropped_where_they_are_gathered(
    sharded_by_it: bool | None, gathered: bool | None, dropped: bool
) -> None:
    """Not those that every rank has whole, nor where nothing was gathered, nor where there are none."""
    module = Flat()
    handle = Mock(uses_sharded_strategy=sharded_by_it, _prefetched=True)
    handle.needs_unshard.return_value = not gathered
    module._handle = None if sharded_by_it is None else handle
    drop_gathered(module)
    assert handle.reshard.called == handle.post_reshard.called == dropped
    assert handle._prefetched == (not dropped)


@pytest.mark.usefixtures("known_by_sight")
def test_whatever_fully_shard_has_gathered_is_dropped() -> None:
    model = nn.Sequential(FullySharded(), nn.Sequential(FullySharded()), nn.Linear(1, 1))
    drop_gathered(model)
    assert [part.reshard.call_count for part in model.modules() if isinstance(part, FullySharded)] == [1, 1]
