"""A factor over any torch schedule; who else writes the learning rate is named, unless he may."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

import hdet
from hdet.loop.schedule import CoveredSchedule
from hdet.published.softmax import SoftmaxController
from tests.fakes import Alike, Faster
from tests.unit.training import Training, network, probe_of, train

pytestmark = pytest.mark.usefixtures("same_seed")

SCHEDULES: dict[str, Any] = {
    "constant": lambda o: None,
    "computed from the last value, to zero": lambda o: lr_scheduler.CosineAnnealingLR(o, 20),
    "computed from the step": lambda o: lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + t)),
    "with the momentum": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=3),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_any_torch_schedule_is_followed_by_one_factor(name: str) -> None:
    """Whatever the curve, recursive or closed, the base is the controller's factor × curve."""

    def build() -> torch.optim.Optimizer:
        return torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)

    plain = build()
    curve = SCHEDULES[name](plain)
    optimizer = build()
    controller = SoftmaxController(temperature=0.1)
    ensemble = hdet.Ensemble(
        optimizer,
        [hdet.LearningRate(spread=0.2)],
        schedule=SCHEDULES[name](optimizer),
        sync_every=5,
        controller=controller,
        process_group=Faster(),
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
    ensemble = hdet.Ensemble(optimizer, [hdet.LearningRate(spread=0.5)], sync_every=5, process_group=Faster())
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


# ---------------------------------------------------------------------- whether somebody else writes there


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "was written there" in r.getMessage()]


@pytest.mark.parametrize(("first", "step"), [(5, 10), (10, 11)], ids=["last", "first"])
def test_a_scheduler_that_writes_over_it_is_named_once(
    first: int, step: int, caplog: pytest.LogCaptureFixture
) -> None:
    """As a trainer's own schedule does that is stepped after AutoLR: at the last step of a round, or the
    first of the next one."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    foreign = lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    auto = hdet.AutoLR(optimizer, total_steps=80, probe=probe_of(model))
    train(model, optimizer, auto, first)
    assert told(caplog) == []
    train(model, optimizer, auto, 20, at=lambda _: foreign.step())
    (said,) = told(caplog)
    assert said.startswith(f"AutoLR: step {step}: group 0 trains at a learning rate of 0.00")
    assert "another scheduler writes over it" in said
    assert "load_state_dict after the optimizer's" in said


def test_a_step_that_a_distributed_checkpoint_takes_is_nobodys(caplog: pytest.LogCaptureFixture) -> None:
    """It makes the optimizer's state, at a learning rate of zero, before it loads it."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    run = Training()
    saved = run.auto.state_dict()
    assert get_optimizer_state_dict(run.model, run.optimizer)["state"], "it has stepped"
    run.auto.load_state_dict(saved)
    run.run(3)
    assert told(caplog) == []


def test_a_resume_that_forgot_the_state_is_named(caplog: pytest.LogCaptureFixture) -> None:
    saved = Training().run(60).optimizer.state_dict()
    fresh = Training()
    fresh.optimizer.load_state_dict(saved)
    fresh.run(3)
    (said,) = told(caplog)
    assert "and 1e-05 was written there" in said


def horizon() -> None:
    """Goes back, comes down early, and is taken up again, the optimizer before or after."""
    run = Training()
    run.poisoned = 35
    file = run.run(70).save()
    assert any("back to the weights" in event for record in run.records for event in record.events)
    run.auto.cooldown(20)
    run.run(90)
    Training().load(file).run(80)
    saved = torch.load(file, weights_only=True) if file.seek(0) == 0 else {}
    other = Training()
    other.auto.load_state_dict(saved["auto"])
    other.model.load_state_dict(saved["model"])
    other.optimizer.load_state_dict(saved["optimizer"])
    other.run(5)


def a_group_more() -> None:
    run = Training().run(20)
    run.optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 0.3})
    run.run(60)
    run.optimizer.param_groups[-1]["lr"] = 0.3


def weights_of() -> tuple[nn.Parameter, torch.optim.Optimizer]:
    weight = nn.Parameter(torch.ones(4))
    return weight, torch.optim.SGD([weight], lr=0.1, momentum=0.9)


def steps(weight: nn.Parameter, optimizer: Any, run: Any, count: int, *others: Any) -> None:
    for _ in range(count):
        weight.grad = torch.ones(4)
        optimizer.step()
        run.step(1.0)
        for other in others:
            other.step()


def one_cycle() -> None:
    weight, optimizer = weights_of()
    options: Any = {"enable_auto_lr": True, "auto_lr_warmup_steps": 10, "decay": "geometric"}
    run = hdet.OneCycleAutoLR(
        optimizer, 0.1, 40, ensemble_lr_spread_ratio=0.2, model_sync_interval=5, **options
    )
    steps(weight, optimizer, run, 20)
    saved = run.state_dict(), optimizer.state_dict()
    run.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    steps(weight, optimizer, run, 20)


def with_a_schedule() -> None:
    weight, optimizer = weights_of()
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.9)
    controller = SoftmaxController(temperature="auto")
    run = hdet.Ensemble(
        optimizer,
        schedule=schedule,
        controller=controller,
        sync_every=4,
        process_group=Faster(),
        total_steps=20,
    )
    steps(weight, optimizer, run, 20)


def with_the_users_own_schedule() -> None:
    weight, optimizer = weights_of()
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.9)
    run = hdet.Ensemble(optimizer, sync_every=4, process_group=Alike(rank=0))
    steps(weight, optimizer, run, 20, schedule)
    assert optimizer.param_groups[0]["lr"] < 0.02


@pytest.mark.parametrize(
    "runs", [horizon, a_group_more, one_cycle, with_a_schedule, with_the_users_own_schedule]
)
def test_who_may_write_is_not_named(runs: Callable[[], None], caplog: pytest.LogCaptureFixture) -> None:
    runs()
    assert told(caplog) == []


def test_a_users_schedule_beside_a_controller_that_moves_the_rate_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    weight, optimizer = weights_of()
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.9)
    replicas = Faster()
    replicas.rank = 0  # type: ignore[misc]  # the one that speaks
    controller = SoftmaxController(temperature="auto")
    run = hdet.Ensemble(optimizer, controller=controller, sync_every=4, process_group=replicas)
    steps(weight, optimizer, run, 4, schedule)
    assert told(caplog) == []
    steps(weight, optimizer, run, 4, schedule)
    assert len(told(caplog)) == 1


def test_a_tensor_is_read_only_where_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """To read it is to wait for the device."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=torch.tensor(0.01))
    group = optimizer.param_groups[0]
    schedule = CoveredSchedule("x", lr_scheduler.StepLR(optimizer, 3), optimizer, [])
    reads: list[float] = []
    genuine = Tensor.__float__
    monkeypatch.setattr(Tensor, "__float__", lambda tensor: reads.append(genuine(tensor)) or reads[-1])
    schedule.note()
    assert schedule.overwritten() == ""
    assert not reads
    schedule.note()
    group["lr"].fill_(group["lr"].clone())
    assert schedule.overwritten() == "", "the same value"
    schedule.note()
    group["lr"].fill_(0.5)
    assert "a learning rate of 0.5, and 0.01 was written there" in schedule.overwritten()
    schedule.note()
    group["lr"] = torch.tensor(0.25)
    assert "a learning rate of 0.25, and 0.5 was written there" in schedule.overwritten()
    group["lr"] = torch.tensor(0.1)
    assert schedule.overwritten() == "", "told once, until the next note"
