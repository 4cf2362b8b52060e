"""What a run saves, and what it takes from earlier versions."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hdet
from hdet.engine.state import of_policies


def test_state_of_other_groups_is_refused() -> None:
    def build(groups: int) -> hdet.Ensemble:
        parameters = [{"params": [nn.Parameter(torch.ones(2))]} for _ in range(groups)]
        return hdet.Ensemble(torch.optim.SGD(parameters, lr=0.1))

    with pytest.raises(ValueError, match=r"the state has 2 explored.*this run 1"):
        build(1).load_state_dict(build(2).state_dict())


def test_each_policy_finds_its_own_whatever_the_order() -> None:
    saved = {"policies": [{"kind": "horizon", "n": 1}, {"kind": "vote", "n": 2}, {"kind": "vote", "n": 3}]}
    assert dict(of_policies(saved, ["vote", "vote", "horizon"])) == {
        0: {"kind": "vote", "n": 2},
        1: {"kind": "vote", "n": 3},
        2: {"kind": "horizon", "n": 1},
    }


def test_a_policy_that_saved_nothing_begins_anew() -> None:
    saved = {"policies": [{"kind": "vote", "n": 2}]}
    assert dict(of_policies(saved, ["regression", "vote"])) == {0: None, 1: {"kind": "vote", "n": 2}}


def test_a_state_of_before_policies_is_taken() -> None:
    """It had what the one policy remembered at its top, and a horizon's beside it."""
    saved = {"states": [(1.0, 0.0)], "joint": [[0.5, 0.0]], "probe": {"drawn": 3}, "horizon": {"began": 7}}
    found = dict(of_policies(saved, ["vote", "regression", "horizon"]))
    assert found[0] == {"kind": "vote", "states": [(1.0, 0.0)], "probe": {"drawn": 3}}
    assert found[1] == {"kind": "regression", "joint": [[0.5, 0.0]], "probe": {"drawn": 3}}
    assert found[2] == {"kind": "horizon", "began": 7}


def test_a_state_is_one_value_and_tensors_under_keys_that_stay() -> None:
    """What a distributed checkpoint sees of a run that has not begun is what it sees of one that has."""
    run = Trained()
    fresh = run.auto.state_dict()["engine"]
    run.train(30)
    later = run.auto.state_dict()["engine"]
    assert isinstance(later["values"], tuple)
    state = {key for key in later["tensors"] if "/state/" in key}
    assert set(fresh["tensors"]) == set(later["tensors"]) - state
    assert all(key.startswith("policies/0/snapshot/kept/state/") for key in state), "made by the first step"


def test_spare_room_is_memory_of_its_own() -> None:
    """A checkpoint is loaded in place: it must not write into the weights that stand there."""
    run = Trained()
    before = [p.detach().clone() for p in run.model.parameters()]
    for tensor in run.auto.state_dict()["engine"]["tensors"].values():
        tensor.fill_(7)
    for weight, kept in zip(run.model.parameters(), before, strict=True):
        assert torch.equal(weight, kept)


class Trained:
    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(4, 1)
        self.data = torch.randn(60, 8, 4)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        probe = hdet.Probe(self.loss, self.data[50:], model=self.model)
        self.auto = hdet.AutoLR(self.optimizer, probe=probe, total_steps=100)

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return (self.model(x) - x.sum(1, keepdim=True)).square().mean()

    def train(self, steps: int) -> None:
        for x in self.data[:steps]:
            self.optimizer.zero_grad()
            self.loss(x).backward()
            self.optimizer.step()
            self.auto.step()
