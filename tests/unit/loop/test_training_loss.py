"""The interval's mean loss, from any kind of loss."""

from __future__ import annotations

import math
import statistics
import weakref
from functools import partial
from typing import cast

import pytest
import torch
from torch import Tensor

import hdet
from hdet.loop.training_loss import TrainingLoss, mean_losses, sample_of
from tests.fakes import Alike, Thread, on_threads
from tests.states import inside


def mean(signal: TrainingLoss) -> float:
    return mean_losses([signal.row()])[0]


class OnDevice(Tensor):
    """A CPU tensor that says it lies elsewhere, so that the path without reading is taken."""

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False


def elsewhere(value: Tensor) -> Tensor:
    return value.as_subclass(OnDevice)


@pytest.mark.parametrize("count", [1, 100])
def test_mean_over_kinds(count: int) -> None:
    signal = TrainingLoss()
    values = [math.sin(k) for k in range(count)]
    for k, value in enumerate(values):
        tensor = torch.tensor(value, dtype=torch.float64)
        kinds = [value, tensor, tensor.reshape(1, 1), elsewhere(tensor), tensor.requires_grad_(True) * 1]
        signal.add(kinds[k % len(kinds)])
    assert mean(signal) == pytest.approx(sum(values) / count)
    signal.reset()
    assert math.isnan(mean(signal))
    signal.reset((10.0, 4))
    signal.add(5.0)
    assert mean(signal) == 3.0, "an interrupted round goes on"


@pytest.mark.parametrize("count", [2, 200])
def test_the_spread_of_all_ranks_over_kinds(count: int) -> None:
    ranks = [TrainingLoss(), TrainingLoss()]
    values = [7 + math.sin(k) for k in range(count)]
    for k, value in enumerate(values):
        tensor = torch.tensor(value, dtype=torch.float64)
        ranks[k % 2].add([value, tensor, elsewhere(tensor), elsewhere(tensor.reshape(1))][k // 2 % 4])
    sample = sample_of([cast("list[float]", rank.row()) for rank in ranks])
    assert sample.count == count
    assert (sample.mean, sample.spread) == pytest.approx((statistics.fmean(values), statistics.stdev(values)))
    ranks[1].reset()
    ranks[0].reset((14.0, 2))
    sample = sample_of([cast("list[float]", rank.row()) for rank in ranks])
    assert math.isnan(sample.spread), "the squares of before a resume are not known"


def test_small_differences_of_large_losses_are_not_rounded_away() -> None:
    """Losses in half or single precision are summed in double."""
    signal = TrainingLoss()
    for k in range(300):
        signal.add(elsewhere(torch.tensor(2.0**20 + k % 2)))
    sample = sample_of([cast("list[float]", signal.row())])
    assert sample.mean == 2.0**20 + 0.5
    assert sample.spread == pytest.approx(0.5, rel=0.01)


def test_one_nan_shows() -> None:
    signal = TrainingLoss()
    for value in (1.0, math.nan, 1.0):
        signal.add(elsewhere(torch.tensor(value)))
    assert math.isnan(mean(signal))


def test_a_storage_written_over_at_every_step() -> None:
    """A CUDA graph's static output: after the first reuse each loss counts with its own value."""
    signal = TrainingLoss()
    static = elsewhere(torch.zeros((), dtype=torch.float64))
    values = [float(k) for k in range(50)]
    for value in values:
        static.fill_(value)
        signal.add(static)
    assert signal.count == 49
    assert mean(signal) == pytest.approx(sum(values[1:]) / 49)


@pytest.mark.parametrize(("kind", "calls"), [("tensor", 1), ("tensor", 3), ("float", 2)])
def test_who_steps_a_scheduler_once_for_every_process_hands_over_one_loss(kind: str, calls: int) -> None:
    """As Accelerate does: the calls after the one that counts bring the same loss again, and the one that
    follows a sync would bring it into the next round."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    ensemble = hdet.Ensemble(optimizer, sync_every=5, process_group=Alike(rank=0))
    means = []
    for step in range(10):
        weight.grad = torch.ones(2)
        optimizer.step()
        loss = 1.0 + step if kind == "float" else torch.tensor(1.0 + step)
        records = [ensemble.step(loss) for _ in range(calls)]
        means += [record.losses[0] for record in records if record]
    assert means == [3.0, 8.0]


def test_every_micro_batch_brings_a_loss_of_its_own() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    ensemble = hdet.Ensemble(optimizer, sync_every=3, process_group=Alike(rank=0))
    means = []
    for micro in range(12):
        loss = torch.tensor(float(micro))
        if micro % 2:
            weight.grad = torch.ones(2)
            optimizer.step()
        record = ensemble.step(loss)
        del loss  # the next one may lie where it lay
        means += [record.losses[0]] if record else []
    assert means == [2.5, 8.5]


def test_neither_a_loss_nor_its_graph_is_kept_alive() -> None:
    taken = TrainingLoss()
    loss = torch.ones((), requires_grad=True) * 2
    alive = weakref.ref(loss)
    taken.add(loss)
    del loss
    assert alive() is None
    taken.add(elsewhere(torch.ones((), requires_grad=True) * 2))
    assert all(kept.grad_fn is None for kept in taken._pending.values())


def test_one_ranks_state_is_every_ranks_once_they_have_met() -> None:
    """Frameworks load rank 0's on all; before they have met it is rank 0's loss, and counts for no other."""

    def resumed(rank: Thread, meets: bool) -> list[float]:
        signal = TrainingLoss()
        signal.add(1.0 + rank.rank)
        if meets:
            signal.meet(rank.gather([signal.total(), float(signal.count)]))
        saved = rank.exchange(signal.state_dict(rank.rank))[0]
        signal.load_state_dict(saved, rank.rank, rank.size)
        return [*signal.row()[:2]]

    assert on_threads(2, partial(resumed, meets=True)) == [[1.0, 1.0], [2.0, 1.0]]
    assert on_threads(2, partial(resumed, meets=False)) == [[1.0, 1.0], [0.0, 0.0]]


def test_converge_makes_them_meet() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    ensemble = hdet.Ensemble(optimizer, sync_every=5, process_group=Alike(rank=0))
    optimizer.step()
    ensemble.step(3.0)
    assert inside(ensemble.state_dict())["loss"]["everyone"] == []
    ensemble.converge()
    assert inside(ensemble.state_dict())["loss"]["everyone"] == [(3.0, 1), (3.0, 1)]
