"""Somebody else who writes the learning rate is named; whoever may write it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

import hdet
from tests.fakes import Alike, Faster
from tests.unit.training import Training, network, probe_of, train

pytestmark = pytest.mark.usefixtures("same_seed")


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if "was written there" in r.getMessage()]


def test_a_scheduler_that_writes_over_it_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    """As a trainer's own schedule does that is stepped after AutoLR."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    foreign = lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
    auto = hdet.AutoLR(optimizer, total_steps=60, probe=probe_of(model))
    train(model, optimizer, auto, 5)
    assert told(caplog) == []
    train(model, optimizer, auto, 20, at=lambda _: foreign.step())
    (said,) = told(caplog)
    assert said.startswith(
        "AutoLR: step 6: group 0 trains at a learning rate of 0.009, and 1e-05 was written"
    )
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
    taken_up = Training().load(file)
    taken_up.run(80)
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


def around_a_schedule() -> None:
    Training(schedule=lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, 200)).run(60)


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
    for decay in ("schedule", "geometric"):
        weight, optimizer = weights_of()
        run = hdet.OneCycleAutoLR(
            optimizer,
            0.1,
            40,
            ensemble_lr_spread_ratio=0.2,
            model_sync_interval=5,
            enable_auto_lr=True,
            auto_lr_warmup_steps=10,
            decay=decay,  # type: ignore[arg-type]
        )
        steps(weight, optimizer, run, 20)
        saved = run.state_dict(), optimizer.state_dict()
        run.load_state_dict(saved[0])
        optimizer.load_state_dict(saved[1])
        steps(weight, optimizer, run, 20)


def with_a_schedule() -> None:
    weight, optimizer = weights_of()
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.9)
    controller = hdet.SoftmaxController(temperature="auto")
    run = hdet.Ensemble(
        optimizer, schedule=schedule, controller=controller, sync_every=4, replicas=Faster(), total_steps=20
    )
    steps(weight, optimizer, run, 20)


def with_the_users_own_schedule() -> None:
    weight, optimizer = weights_of()
    schedule = lr_scheduler.ExponentialLR(optimizer, 0.9)
    run = hdet.Ensemble(optimizer, sync_every=4, replicas=Alike(rank=0))
    steps(weight, optimizer, run, 20, schedule)
    assert optimizer.param_groups[0]["lr"] < 0.02


@pytest.mark.parametrize(
    "runs",
    [horizon, a_group_more, around_a_schedule, one_cycle, with_a_schedule, with_the_users_own_schedule],
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
    controller = hdet.SoftmaxController(temperature="auto")
    run = hdet.Ensemble(optimizer, controller=controller, sync_every=4, replicas=replicas)
    steps(weight, optimizer, run, 4, schedule)
    assert told(caplog) == []
    steps(weight, optimizer, run, 4, schedule)
    assert len(told(caplog)) == 1


@pytest.mark.parametrize("writes", ["another value", "the same", "another tensor", "nothing"])
def test_a_tensor_is_not_read_before_the_window_ends(
    writes: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.01))
    auto = hdet.AutoLR(optimizer, total_steps=60, probe=probe_of(model))
    group = optimizer.param_groups[0]
    reads: list[float] = []
    genuine = Tensor.__float__

    def counted(tensor: Tensor) -> float:
        reads.append(genuine(tensor))
        return reads[-1]

    def foreign(step: int) -> None:
        if step == 3 and writes == "another value":
            group["lr"].fill_(0.5)
        elif writes == "the same":
            group["lr"].fill_(group["lr"].clone())
        elif step == 3 and writes == "another tensor":
            group["lr"] = torch.tensor(0.5)

    train(model, optimizer, auto, 1)
    monkeypatch.setattr(Tensor, "__float__", counted)
    train(model, optimizer, auto, 8, at=foreign)
    assert not {round(0.5, 6), round(1e-5, 6)} & {round(value, 6) for value in reads}, "norms alone"
    assert told(caplog) == []
    train(model, optimizer, auto, 10)
    said = told(caplog)
    if "another" in writes:
        assert "a learning rate of 0.5, and 1e-05 was written there" in said[0]
        assert len(said) == 1
    else:
        assert said == []
