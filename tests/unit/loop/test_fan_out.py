"""Who shares gradients, and the levels that a round deals to the replicas."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.optim import SGD

import hdet
from hdet.hyperparameters import Axis
from hdet.loop.fan_out import FanOut, GradientSharing
from hdet.loop.levels import Design
from tests.fakes import Alike


def several(count: int) -> list[Axis]:
    optimizer = SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    places = [{"x": 0.5} for _ in range(count)]
    return [
        axis
        for i, p in enumerate(places)
        for axis in hdet.Hyperparameter(
            f"h{i}", lambda p=p: p["x"], lambda v, p=p: p.update(x=v), bounds=(0.0, 1.0)
        ).bind(optimizer)
    ]


def test_a_regression_begins_with_values_that_differ() -> None:
    """Round 0 of the paper deals every hyperparameter alike."""
    fan_out = FanOut(several(2), arms=5, arm=0, design="permutation", seed=0, first_round=1)
    fan_out.assign(0)
    assert fan_out.levels[0] != fan_out.levels[1]


@pytest.mark.parametrize(
    ("arms", "count", "design", "warned"),
    [(5, 4, "permutation", True), (5, 2, "permutation", False), (8, 7, "orthogonal", False)],
)
def test_too_few_replicas_for_permutations_are_warned_of(
    arms: int, count: int, design: Design, warned: bool
) -> None:
    said = FanOut(several(count), arms=arms, arm=0, design=design, seed=0).warning()
    assert ("poorly" in said) == warned


def test_an_arm_with_a_rank_that_saw_nothing_is_unknown() -> None:
    """Its ranks are one replica: what one of them could not measure, the others did not measure for it."""
    arms = hdet.Arms(1)
    arms.count, arms.ranks = 2, 4
    sharing = GradientSharing("Ensemble", arms, Alike(0, 4), None)
    first, second = sharing.by_arm([1.0, 2.0, math.nan, 3.0])
    assert first == 1.5
    assert math.isnan(second)


def test_the_ranks_of_an_arm_have_its_values() -> None:
    arms = hdet.Arms(1)
    arms.count, arms.ranks = 2, 4
    found = [GradientSharing("Ensemble", arms, Alike(rank, 4), None) for rank in range(4)]
    assert [(sharing.arm, sharing.arms) for sharing in found] == [(0, 2), (0, 2), (1, 2), (1, 2)]
    assert GradientSharing("Ensemble", "all", Alike(3, 4), None).arm == 3


def test_gradients_are_shared_as_replicas_and_model_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    arms = hdet.Arms(1)
    with pytest.raises(ValueError, match=r"must be arms of the 4 ranks here, got Arms\(1 of 1\) of 1; give"):
        GradientSharing("Ensemble", arms, Alike(0, 4), None)
    wired = Alike(0, 2)
    wired.gradients = "all"
    GradientSharing("Ensemble", "all", wired, None)
    with pytest.raises(ValueError, match=r"share by the model's own mesh, 'all', got 'none'; give both"):
        GradientSharing("Ensemble", "none", wired, None)
    monkeypatch.setattr("torch.distributed.get_process_group_ranks", lambda group: [0, 1])
    ddp = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(ddp)
    ddp.process_group, ddp.require_backward_grad_sync = None, True
    GradientSharing("Ensemble", "all", Alike(0, 2), ddp)
    with pytest.raises(ValueError, match=r"says that 1 rank has a gradient, .*over 2, \[0, 1\]; wrap it"):
        GradientSharing("Ensemble", "none", Alike(0, 2), ddp)
