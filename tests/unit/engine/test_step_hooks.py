"""The replica's own value stands in the groups while the optimizer steps, and not after."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hdet
from tests.fakes import Alike, Faster


@pytest.mark.parametrize("kind", ["float", "tensor", "one tensor for both groups"])
def test_the_base_is_back_after_every_optimizer_step(kind: str) -> None:
    weights = [nn.Parameter(torch.zeros(2)) for _ in range(2)]
    lr: Any = 0.1 if kind == "float" else torch.tensor(0.1)
    groups: Any = [{"params": [w]} for w in weights]
    if kind == "tensor":
        groups[1]["lr"] = torch.tensor(0.1)
    optimizer = torch.optim.SGD(groups, lr=lr)
    hdet.Ensemble(optimizer, [hdet.LearningRate(spread=0.5)], replicas=Faster())
    for step in range(1, 4):
        for weight in weights:
            weight.grad = -torch.ones(2)
        optimizer.step()
        assert [float(g["lr"]) for g in optimizer.param_groups] == pytest.approx([0.1, 0.1], rel=1e-6)
        for weight in weights:
            torch.testing.assert_close(weight.detach(), torch.full((2,), 0.15 * step))


def test_what_a_user_writes_after_a_failed_step_stays() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    ensemble = hdet.Ensemble(optimizer, [hdet.LearningRate(spread=0.5)], replicas=Faster())

    def fail() -> float:
        raise KeyError

    saved = optimizer.state_dict()
    saved["param_groups"][0]["lr"] = 0.025
    for write in (
        lambda: optimizer.param_groups[0].update(lr=0.025),
        lambda: optimizer.load_state_dict(saved),
    ):
        optimizer.param_groups[0]["lr"] = 0.1
        with pytest.raises(KeyError):
            optimizer.step(fail)
        write()
        optimizer.step()
        assert optimizer.param_groups[0]["lr"] == 0.025
        assert ensemble.replica_lrs == [0.025 * 1.5]
    with pytest.raises(KeyError):
        optimizer.step(fail)
    assert ensemble.replica_lrs == [0.025 * 1.5]
    assert optimizer.param_groups[0]["lr"] == 0.025


def test_detach_leaves_a_plain_optimizer() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    ensemble = hdet.Ensemble(optimizer, [hdet.LearningRate(spread=0.5)], replicas=Faster())
    ensemble.detach()
    weight.grad = torch.ones(2)
    optimizer.step()
    assert torch.allclose(weight, torch.full((2,), 0.9))


def test_too_few_calls_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """Rounds are counted in optimizer steps; a plain schedule may be stepped once an epoch."""
    for spread, times in ((0.5, 1), (0.0, 0)):
        caplog.clear()
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
        ensemble = hdet.Ensemble(optimizer, [hdet.LearningRate(spread=spread)], replicas=Alike(rank=0))
        for _ in range(3):
            optimizer.step()
            optimizer.step()
            ensemble.step()
        said = [r.message for r in caplog.records if "must be called once after every" in r.message]
        assert len(said) == times
        assert all(message.startswith("Ensemble: step: must be") and "got 2" in message for message in said)
