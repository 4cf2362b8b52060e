"""What is averaged beside the weights, and how far the replicas were apart."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW, NAdam

import hdet
from hdet.loop.converge import Converge, Divergence, FiniteBuffers, WeightCopies
from hdet.replicas import SoloReplica
from tests.fakes import Alike, Faster, Thread, on_threads


class Planning(Alike):
    """Counts the tensors of every plan."""

    def __init__(self) -> None:
        super().__init__()
        self.planned: list[int] = []

    def plan_mean(self, tensors: Any, buffers: Any = ()) -> Any:
        self.planned.append(len(tensors))
        return super().plan_mean(tensors, buffers)


def test_state_of_one_number_is_averaged_as_well() -> None:
    """NAdam keeps a product of momenta, which differs where momenta do."""
    weight = nn.Parameter(torch.zeros(2))
    optimizer = NAdam([weight])
    weight.grad = torch.ones(2)
    optimizer.step()
    kept = dict(Converge(Alike(), optimizer, None, with_state=True)._kept(weight))
    assert set(kept) == {"exp_avg", "exp_avg_sq", "mu_product"}


def test_copies_of_the_weights_in_optimizer_state_follow_them() -> None:
    """A master in float32 is a copy; a moment, a counter and a tensor of another shape are none."""
    weight = nn.Parameter(torch.tensor([1.0, 2.0]))
    optimizer = AdamW([weight])
    state = {"master": weight.detach().clone(), "exp_avg": torch.tensor([1.0, 2.5]), "one": torch.ones(1)}
    optimizer.state[weight] = state
    copies = WeightCopies(optimizer, SoloReplica())
    with copies.following(), torch.no_grad():
        weight.add_(1.0)
    assert copies.names == {"master"}
    assert state["master"].tolist() == [2.0, 3.0]
    assert state["exp_avg"].tolist() == [1.0, 2.5]


def test_state_is_averaged_only_for_what_is_really_explored() -> None:
    for spread, tensors in ((0.5, 3), (0.0, 1)):
        replicas = Planning()
        weight = nn.Parameter(torch.zeros(2))
        optimizer = AdamW([weight])
        explore = [hdet.LearningRate(), hdet.Betas(1, spread=spread)]
        ensemble = hdet.Ensemble(optimizer, explore, sync_every=1, process_group=replicas)
        weight.grad = torch.ones(2)
        optimizer.step()
        ensemble.step(1.0)
        assert replicas.planned[-1] == tensors


def moved(weight: nn.Parameter, by: float) -> AdamW:
    """An optimizer that has taken one step, on a gradient of this size."""
    optimizer = AdamW([weight], lr=0.1)
    weight.grad = torch.full_like(weight, by)
    optimizer.step()
    return optimizer


def test_who_is_left_out_takes_the_mean_of_the_others_with_their_state() -> None:
    def act(rank: Thread) -> tuple[list[float], float]:
        weight = nn.Parameter(torch.zeros(2))
        optimizer = moved(weight, math.nan if rank.rank == 1 else 1.0)
        with torch.no_grad():
            weight.fill_([3.0, math.nan, 5.0][rank.rank])
        Converge(rank, optimizer, None, with_state=False)(lambda: [1])
        return weight.tolist(), float(optimizer.state[weight]["exp_avg"][0])

    for weight, average in on_threads(3, act):
        assert weight == pytest.approx([4.0, 4.0])
        assert average == pytest.approx(0.1)


def test_state_that_one_rank_alone_keeps_is_not_averaged() -> None:
    """Its gradient alone has reached the layer: the others have nothing to add."""

    def act(rank: Thread) -> None:
        weight = nn.Parameter(torch.ones(2))
        Converge(rank, moved(weight, 1.0) if rank.rank else AdamW([weight]), None, with_state=True)()

    for error in on_threads(2, act):
        assert isinstance(error, RuntimeError)
        assert "keeps it on rank 0 for 0 of 1, rank 1 for 1 of 1; some rank's gradient has not" in str(error)


def test_what_was_frozen_within_a_round_is_averaged_once_more() -> None:
    replicas = Planning()
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    converge = Converge(replicas, torch.optim.SGD(model.parameters(), lr=0.1), None, with_state=False)
    converge()
    model[0].requires_grad_(False)
    for _ in range(3):
        converge()
    assert replicas.planned == [4, 4, 2], "in another order, and then without"
    assert [len(found) for found in converge.travels()] == [2, 0]


def test_copies_are_those_that_every_rank_takes_for_one() -> None:
    """A rank whose part is empty has nothing to compare, and takes the others' word."""

    def act(rank: Thread, masters: list[list[float]]) -> set[str]:
        master = torch.tensor(masters[rank.rank])
        weight = nn.Parameter(torch.tensor([1.0, 2.0])[: len(master)])
        optimizer = AdamW([weight])
        optimizer.state[weight] = {"master": master}
        copies = WeightCopies(optimizer, rank)
        copies.find()
        return set(copies.names)

    for masters, found in (
        ([[1.0, 2.0], [1.0, 2.0]], {"master"}),
        ([[1.0, 2.0], [1.0, 2.5]], set()),
        ([[], [1.0, 2.0]], {"master"}),
    ):
        assert on_threads(2, partial(act, masters=masters)) == [found, found]


def test_parameters_unfrozen_later_are_averaged() -> None:
    replicas = Planning()
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ensemble = hdet.Ensemble(optimizer, sync_every=1, process_group=replicas)
    for step in range(4):
        if step == 2:
            model[0].requires_grad_(True)
        optimizer.step()
        ensemble.step()
    assert replicas.planned == [2, 4]


def test_the_gauge_follows_parameters_into_new_memory() -> None:
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    ensemble = hdet.Ensemble(optimizer, [hdet.LearningRate(spread=0.5)], sync_every=2, process_group=Faster())
    predicted = []
    for step in range(8):
        if step == 3:
            weight.data = weight.data.clone()
        weight.grad = torch.ones(4)
        optimizer.step()
        record = ensemble.step(1.0)
        predicted += [max(record.distance_predicted)] if record else []
    assert predicted[0] == pytest.approx(predicted[-1], rel=1e-5)
    assert predicted[-1] > 0


@pytest.mark.parametrize("frees", [True, False])
def test_layers_freed_or_frozen_round_by_round_are_no_sign_of_gradients_that_are_not_shared(
    frees: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing was counted of other tensors when the round began, so of this round nothing is predicted."""

    def act(rank: Thread) -> list[bool]:
        model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(5)))
        for parameter in model.parameters():
            nn.init.ones_(parameter)
        model[1:].requires_grad_(not frees)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ensemble = hdet.Ensemble(optimizer, [hdet.LearningRate()], sync_every=2, process_group=rank)
        known = []
        for step in range(14):
            if step % 2 == 0 and 0 < step < 10:
                model[step // 2].requires_grad_(frees)
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
            optimizer.step()
            if record := ensemble.step(1.0 + rank.rank):
                assert record.distance_measured[0] > 0
                known.append(record.distance_predicted == pytest.approx(record.distance_measured, rel=1e-3))
        return known

    for known in on_threads(2, act):
        assert known[0]
        assert known[-1], "it is counted again"
    assert "more than the learning rate makes them differ" not in caplog.text


def test_a_sample_stands_for_the_whole() -> None:
    """Of large tensors every third or fourth value is read, and of many every other tensor."""
    for shapes in ([5], [1000, 3], [300] * 100):
        weights = [torch.ones(size) for size in shapes]
        divergence = Divergence([weights], SoloReplica())
        before = divergence.read()
        for weight in weights:
            weight += 0.5
        measured = divergence.measure(before)
        assert measured.distance == pytest.approx(0.5 * math.sqrt(sum(shapes)), rel=1e-3)
        assert measured.displacements == pytest.approx([measured.distance])


# ---------------------------------------------------------------------- which buffers must stay finite


def test_what_was_given_so_is_not_judged_and_what_became_so_is() -> None:
    mask, mean, count = torch.full((3, 3), -math.inf), torch.zeros(3), torch.tensor(1)
    buffers = FiniteBuffers()
    assert buffers.judged([mask, mean, count]) == [mean, count]
    mean[1] = math.nan
    assert buffers.judged([mask, mean, count]) == [mean, count]


def test_a_mask_that_grows_is_seen_again() -> None:
    buffers = FiniteBuffers()
    empty = torch.zeros(0)
    assert buffers.judged([empty]) == [empty]
    assert buffers.judged([torch.full((4, 4), -math.inf)]) == []


def test_eight_bits() -> None:
    few = torch.zeros(3, dtype=torch.float8_e4m3fn)
    assert FiniteBuffers().judged([few]) == [few]


# ---------------------------------------------------------------------- what a sync asks of the others


class Counting(Alike):
    """Counts what it exchanges with the others."""

    exchanged = 0

    def gather(self, row: Any) -> list[list[float]]:
        self.exchanged += 1
        return super().gather(row)


@pytest.mark.parametrize(("probes", "exchanges"), [(False, 2), (True, 3)])
def test_what_ranks_compare_is_one_row_beside_the_sums(probes: bool, exchanges: int) -> None:
    """And what they measured another; a probe may fail at the mean, which is a third. Of the first syncs,
    which compare where the replicas began and what the optimizer keeps, none is counted."""
    replicas = Counting()
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    probe = hdet.Probe(lambda x: model(x).sum(), [torch.ones(1, 2)], model=model) if probes else None
    explore = [hdet.LearningRate(spread=0.1)]
    ensemble = hdet.Ensemble(optimizer, explore, probe=probe, sync_every=2, process_group=replicas)
    for step in range(10):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        replicas.exchanged = 0
        ensemble.step(1.0)
        assert step < 4 or replicas.exchanged == (exchanges if step % 2 else 0)
    replicas.exchanged = 0
    ensemble.converge()
    assert replicas.exchanged == 1
