"""The engine under schedules other than OneCycle."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import hdet
from hdet.replicas import SoloReplica

SCHEDULES: dict[str, Any] = {
    "constant": lambda o: None,
    "step": lambda o: lr_scheduler.StepLR(o, 4),
    "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 30, eta_min=0.01),
    "cosine to zero": lambda o: lr_scheduler.CosineAnnealingLR(o, 20),
    "restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 7),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + t)),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, total_iters=5), lr_scheduler.CosineAnnealingLR(o, 15)], [5]
    ),
    "cyclic": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
}


class Faster(SoloReplica):
    """Rank 1 of two, and the one that does better."""

    rank, size = 1, 2

    def gather(self, row: Any) -> list[list[float]]:
        return [[*row[:3], row[3] + row[4], *row[4:]], list(row)]  # its mean loss is 1 higher


@pytest.mark.parametrize("name", SCHEDULES)
def test_any_torch_schedule_is_followed_by_one_factor(name: str) -> None:
    """Whatever the curve, recursive or closed, the base is the controller's factor × curve."""

    def build() -> torch.optim.Optimizer:
        return torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)

    plain = build()
    curve = SCHEDULES[name](plain)
    optimizer = build()
    controller = hdet.SoftmaxController(temperature=0.1)
    ensemble = hdet.Ensemble(
        optimizer,
        [hdet.LearningRate(spread=0.2)],
        schedule=SCHEDULES[name](optimizer),
        sync_every=5,
        controller=controller,
        replicas=Faster(),
    )
    factors = []
    for _ in range(20):
        optimizer.step()
        plain.step()
        ensemble.step(1.0)
        if curve is not None:
            curve.step()
        expected = plain.param_groups[0]["lr"]
        if expected > 1e-12:
            factors.append(optimizer.param_groups[0]["lr"] / expected)
    assert factors[:4] == [1.0] * 4
    assert factors[9] > factors[4] > 1.0
    assert factors[4:9] == pytest.approx([factors[4]] * 5, rel=1e-6)


def test_without_a_controller_the_users_own_scheduler_composes() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    own = lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
    ensemble = hdet.Ensemble(optimizer, [hdet.LearningRate(spread=0.5)], sync_every=5, replicas=Faster())
    for _ in range(4):
        optimizer.step()
        ensemble.step()
        own.step(1.0)
        assert ensemble.replica_lrs == [1.5 * optimizer.param_groups[0]["lr"]]
    assert optimizer.param_groups[0]["lr"] < 0.1


def test_plateau_cannot_be_the_schedule() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(TypeError, match=r"ReduceLROnPlateau.*schedule=None"):
        hdet.Ensemble(optimizer, schedule=lr_scheduler.ReduceLROnPlateau(optimizer))  # type: ignore[arg-type]


def test_parameters_unfrozen_later_are_averaged() -> None:
    class Counting(Faster):
        planned: list[int]

        def plan_mean(self, tensors: Any, buffers: Any = ()) -> Any:
            self.planned.append(len(tensors))
            return tuple

    replicas = Counting()
    replicas.planned = []
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ensemble = hdet.Ensemble(optimizer, sync_every=1, replicas=replicas)
    for step in range(4):
        if step == 2:
            model[0].requires_grad_(True)
        optimizer.step()
        ensemble.step()
    assert replicas.planned == [2, 4]


def test_detach_leaves_a_plain_optimizer() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    ensemble = hdet.Ensemble(optimizer, [hdet.LearningRate(spread=0.5)], replicas=Faster())
    ensemble.detach()
    weight.grad = torch.ones(2)
    optimizer.step()
    assert torch.allclose(weight, torch.full((2,), 0.9))


def test_state_of_other_groups_is_refused() -> None:
    def build(groups: int) -> hdet.Ensemble:
        parameters = [{"params": [nn.Parameter(torch.ones(2))]} for _ in range(groups)]
        return hdet.Ensemble(torch.optim.SGD(parameters, lr=0.1))

    with pytest.raises(ValueError, match=r"the state has 2 explored.*this run 1"):
        build(1).load_state_dict(build(2).state_dict())


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


def test_the_gauge_follows_parameters_into_new_memory() -> None:
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    ensemble = hdet.Ensemble(optimizer, [hdet.LearningRate(spread=0.5)], sync_every=2, replicas=Faster())
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


def test_a_doubt_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    class Alike(Faster):
        rank = 0

        def gather(self, row: Any) -> list[list[float]]:
            return [list(row), list(row)]

    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    ensemble = hdet.Ensemble(optimizer, sync_every=1, replicas=Alike())
    for _ in range(6):
        weight.grad = torch.rand(4)
        optimizer.step()
        record = ensemble.step(1.0)
        assert record is not None
        assert any("undoes the fan-out" in event for event in record.events)
    assert sum("undoes the fan-out" in r.getMessage() for r in caplog.records) == 1


def test_a_hyperparameter_is_explored_once() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(ValueError, match="explore must name each hyperparameter once"):
        hdet.Ensemble(optimizer, [hdet.LearningRate(), hdet.LearningRate(0.5)])


def test_an_unwritable_history_is_refused_at_once(tmp_path: Any) -> None:
    (tmp_path / "file").write_text("")
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(OSError, match="history must be a file that can be written"):
        hdet.Ensemble(optimizer, history=tmp_path / "file" / "history.jsonl")


def test_a_history_that_cannot_be_written_later_does_not_stop_training(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "history.jsonl"
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    ensemble = hdet.Ensemble(optimizer, sync_every=1, history=path)
    path.unlink()
    path.mkdir()
    for _ in range(3):
        optimizer.step()
        assert ensemble.step() is not None
    assert sum("history could not be written" in r.getMessage() for r in caplog.records) == 1
