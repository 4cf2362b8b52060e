"""What all ranks must agree on, the weights that they begin with, and one search for a model."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

import hdet
from hdet import AutoLR
from hdet.loop.checks import Agreement, OneSearch, check_together
from hdet.loop.comparison import Fixed
from hdet.loop.fan_out import FanOut
from hdet.loop.policy import Context
from hdet.loop.windows import Every
from hdet.replicas import SoloReplica
from tests.fakes import Alike, Thread, on_threads
from tests.unit.training import X, network, probe_of, squared, train


class Two(Alike):
    """Rank 0 of two; the other one has ``other`` wherever this one has a row."""

    other: list[float] | None = None

    def __init__(self) -> None:
        super().__init__(rank=0)
        self.rows: list[list[float]] = []

    def gather_ranks(self, row: Any) -> list[list[float]]:
        self.rows.append([float(value) for value in row])
        return [self.rows[-1], self.rows[-1] if self.other is None else self.other]


def agreement(
    model: nn.Module, replicas: SoloReplica, *, own_gradients: bool = False, diverges: bool = True
) -> tuple[Agreement, FanOut, Fixed, torch.optim.Optimizer]:
    optimizer = SGD(model.parameters(), lr=0.1)
    policy = Fixed([hdet.LearningRate(spread=0.5)], Every(4))
    fan_out = FanOut(policy.explore[0].bind(optimizer), arms=2, arm=0, design="permutation", seed=0)
    how = diverges, tuple, fan_out.silenced, own_gradients
    context = Context("Here", optimizer, replicas, None, *how)
    return Agreement(context, fan_out, [policy]), fan_out, policy, optimizer


# ---------------------------------------------------------------------- when a run begins


def test_arguments_that_one_rank_cannot_use_raise_on_all() -> None:
    """The other one would wait for it in its first sync."""

    def act(rank: Thread) -> None:
        def check() -> None:
            if rank.rank == 1:
                raise ValueError("lr must be > 0")

        check_together("Here", rank, check, {})

    for error in on_threads(2, act):
        assert "arguments must be the same on all: rank 0 has usable; rank 1 has lr must be" in str(error)


def test_the_settings_of_a_run_are_the_same_on_all() -> None:
    def act(rank: Thread) -> None:
        model = nn.Linear(2, 2)
        hdet.Ensemble(SGD(model.parameters(), lr=0.1), gradients="none", seed=rank.rank, process_group=rank)

    for error in on_threads(2, act):
        assert isinstance(error, RuntimeError)
        assert "seed must be the same on all: rank 0 has 0; rank 1 has 1" in str(error)


def test_what_is_explored_begins_at_one_value() -> None:
    def act(rank: Thread) -> None:
        model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1 * (1 + rank.rank)))
        explore = [hdet.Dropout(model)]
        hdet.Ensemble(SGD(model.parameters(), lr=0.1), explore, gradients="none", process_group=rank)

    for error in on_threads(2, act):
        assert isinstance(error, RuntimeError)
        assert "dropout to begin with must be the same on all: rank 0 has 0.1; rank 1 has 0.2" in str(error)


def test_what_one_rank_cannot_bind_raises_on_all() -> None:
    def act(rank: Thread) -> None:
        model = nn.Sequential(nn.Linear(2, 2), *([nn.Dropout(0.1)] if rank.rank else []))
        explore = [hdet.Dropout(model)]
        hdet.Ensemble(SGD(model.parameters(), lr=0.1), explore, gradients="none", process_group=rank)

    first, second = on_threads(2, act)
    assert isinstance(first, ValueError)
    assert "Ensemble: binding what is explored raised on rank 0; see that rank's error" in str(second)


# ---------------------------------------------------------------------- at every sync


def test_the_fingerprint_is_of_all_that_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that differs in one of these decides differently from then on, or runs other code."""
    found, fan_out, policy, optimizer = agreement(nn.Linear(2, 2), Two())
    (axis,) = fan_out.learning_rates
    prints = [found.row("sync", 4, 0)[3]]

    def changes() -> None:
        prints.append(found.row("sync", 4, 0)[3])

    assert found.row("sync", 4, 0)[3] == prints[0]
    optimizer.param_groups[0]["lr"] = 0.2
    changes()
    axis.spread = 0.25
    changes()
    axis.factor = 2.0
    changes()
    policy.window_end = 9
    changes()
    fan_out.seed = 7
    changes()
    monkeypatch.setattr(hdet, "__version__", "another")
    changes()
    assert len(set(prints)) == len(prints) == 7


def test_ranks_at_different_steps_are_named_and_weights_are_compared_where_none_are_averaged() -> None:
    model = nn.Linear(2, 2)
    found, *_ = agreement(model, Two(), diverges=False)
    mine = found.row("sync", 4, 1)
    assert found.judge([mine, mine]) == ()
    with pytest.raises(
        RuntimeError, match=r"different steps \[4, 3\].* rank 1 is at the converge after step"
    ):
        found.judge([mine, [1.0, 3.0, *mine[2:]]])
    with torch.no_grad():
        model.weight.add_(1.0)
    assert found.row("sync", 4, 1)[4] != mine[4]
    averaged, *_ = agreement(model, Two())
    assert averaged.row("sync", 4, 1)[4] == 0.0


def test_weights_that_should_be_equal_and_are_not_are_told_once_and_then_end_the_run() -> None:
    """Nothing makes the ranks diverge: they do not share their gradients."""

    def act(rank: Thread) -> list[int]:
        model = nn.Linear(2, 2)
        with torch.no_grad():
            model.weight.fill_(1.0 + rank.rank)
        found, *_ = agreement(model, rank, diverges=False)
        return [len(found.judge(rank.gather_ranks(found.row("sync", 4, k)))) for k in range(times)]

    times = 2
    assert on_threads(2, act) == [[1, 0], [1, 0]]
    times = 3
    for error in on_threads(2, act):
        assert isinstance(error, RuntimeError)
        assert "the ranks' weights differ, by" in str(error)
        assert "so at 3 syncs in a row" in str(error)


def test_the_parts_of_a_replica_are_compared_with_those_of_another() -> None:
    """Each of its ranks has other weights, as its like in the next replica has."""
    replicas = Two()
    replicas.ranks_per_replica = 2
    found, *_ = agreement(nn.Linear(2, 2), replicas, diverges=False)
    first, second = found.row("sync", 4, 1), [*found.row("sync", 4, 1)[:4], 7.0]
    assert found.judge([first, second, first, second]) == ()
    assert not replicas.rows, "their distance is not even asked for"


# ---------------------------------------------------------------------- the weights that they begin with


def test_a_look_reads_no_value() -> None:
    """Read at the first step, it would be a wait for the device. On meta there is nothing to read."""
    found, *_ = agreement(nn.Linear(3, 3, device="meta"), Two())
    found.keep_first_weights()


def test_replicas_are_compared_once_where_they_began() -> None:
    model, replicas = nn.Linear(3, 3), Two()
    found, *_ = agreement(model, replicas)
    found.keep_first_weights()
    with torch.no_grad():
        model.weight.add_(1.0)
    assert found.check_start() is False, "as they were then"
    (began,) = replicas.rows
    assert found.check_start() is False
    assert len(replicas.rows) == 1
    replicas.other = [-value for value in began]
    found.forget()
    with pytest.raises(RuntimeError, match=r"must begin with the same weights, and began .* apart"):
        found.check_start()
    replicas.other = [0.99 * value for value in replicas.rows[-1]]
    found.forget()
    assert found.check_start() is True, "a warm start's noise"
    for other in (nn.Linear(1, 1), nn.Linear(50, 50), nn.LayerNorm(2)):
        agreement(other, replicas, own_gradients=True)[0].warning()
    assert len({len(row) for row in replicas.rows}) == 1, "as many numbers whatever the model"


# ---------------------------------------------------------------------- one search for a model


def test_two_searches_that_step_in_turn_are_refused_when_windows_end() -> None:
    model = network()
    optimizers = [SGD(model.parameters(), 0.1), SGD(model.parameters(), 0.1, momentum=0.9)]
    autos = [AutoLR(optimizer, probe=probe_of(model), total_steps=100) for optimizer in optimizers]

    def steps(count: int) -> None:
        for i in range(count):
            model.zero_grad()
            squared(model, X[i]).backward()
            for optimizer, auto in zip(optimizers, autos, strict=True):
                optimizer.step()
                auto.step()

    steps(10)
    with pytest.raises(RuntimeError, match=r"one search must move all .* AutoLR\(\[first, second\], …\)"):
        steps(10)


def test_a_search_begun_again_is_not() -> None:
    """Also while the former one is still at hand, as in a notebook."""
    model = network()
    runs = []
    for _ in range(3):
        optimizer = SGD(model.parameters(), 0.1)
        auto = AutoLR(optimizer, probe=probe_of(model), total_steps=40)
        train(model, optimizer, auto, 15)
        runs.append(auto)
    assert [auto.steps for auto in runs] == [15, 15, 15]


def test_a_model_in_ddp_is_the_model_and_another_one_is_not() -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    model = nn.Linear(1, 1)
    a, elsewhere = OneSearch("x", model, "Muon"), OneSearch("x", nn.Linear(1, 1), "SGD")
    gone = OneSearch("x", model, "gone")
    for search in (a, elsewhere, a, gone):
        search.window_ended()
    del gone, search
    gc.collect()
    a.window_ended()
    b = OneSearch("x", Wrapper(model), "AdamW")
    b.window_ended()
    with pytest.raises(RuntimeError, match="two step on Linear in turn, of Muon and of AdamW"):
        a.window_ended()
