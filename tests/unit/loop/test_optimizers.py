"""Optimizers in a framework's wrapping, and several of them that are trained as one run."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer, lr_scheduler

import hdet
from hdet import AutoLR
from hdet.history import SyncRecord
from hdet.loop.optimizers import JointOptimizer, unwrapped
from tests.unit.training import X, decisions, network, probe_of, squared

pytestmark = pytest.mark.usefixtures("same_seed")


# ---------------------------------------------------------------------- wrapped


class Wrapped(Optimizer):
    """As Accelerate's: an Optimizer by type alone, without hooks of its own."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.optimizer.param_groups

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)


class Holder:
    """Not even that."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer


def test_wrappers_are_taken_off_to_any_depth() -> None:
    plain = SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    assert unwrapped("x", plain) is plain
    assert unwrapped("x", Holder(Wrapped(Holder(Wrapped(plain))))) is plain
    around: Any = Holder(None)
    around.optimizer = around
    for other in (around, Holder(3), lr_scheduler.StepLR(plain, 3), SGD, "adam"):
        with pytest.raises(TypeError, match=f"must be a torch Optimizer, got {type(other).__name__}"):
            unwrapped("x", other)


DOORS: dict[str, Callable[[Any, nn.Module], Any]] = {
    "AutoLR": lambda o, m: AutoLR(o, total_steps=40, probe=probe_of(m)),
    "OneCycleAutoLR": lambda o, _: hdet.OneCycleAutoLR(o, 0.01, total_steps=40),
    "Ensemble": lambda o, _: hdet.Ensemble(o),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_takes_a_wrapped_optimizer(door: str) -> None:
    ends = []
    for wrap in (lambda o: o, Wrapped):
        model = network()
        optimizer = wrap(SGD(model.parameters(), lr=0.01))
        run = DOORS[door](optimizer, model)
        for i in range(40):
            model.zero_grad()
            squared(model, X[i]).backward()
            optimizer.step()
            run.step()
        ends.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    assert torch.equal(*ends)


# ---------------------------------------------------------------------- the view of several


def test_a_joint_view_holds_nothing_of_its_own() -> None:
    a, b, c = (nn.Parameter(torch.ones(2)) for _ in range(3))
    first, second = SGD([a], lr=0.1, momentum=0.9), AdamW([{"params": [b]}, {"params": [c]}], lr=0.2)
    view = JointOptimizer("x", [first, second])
    assert [id(group["params"][0]) for group in view.param_groups] == [id(a), id(b), id(c)]
    assert view.sizes == (1, 2)
    assert a not in view.state
    assert view.state.get(a) is None
    assert not first.state, "looking makes nothing"
    a.grad = torch.ones(2)
    first.step()
    assert view.state[a] is first.state[a]
    assert (len(view.state), next(iter(view.state)) is a) == (1, True)
    second.load_state_dict(second.state_dict())
    assert view.param_groups[2] is second.param_groups[1], "which loading replaces"


def test_a_group_keeps_its_number_when_others_are_added() -> None:
    first, second = (SGD([nn.Parameter(torch.ones(1))], lr=lr) for lr in (0.1, 0.2))
    view = JointOptimizer("x", [first, second])
    assert [group["lr"] for group in view.param_groups] == [0.1, 0.2]
    second.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 0.4})
    assert [group["lr"] for group in view.param_groups] == [0.1, 0.2, 0.4]
    first.add_param_group({"params": [nn.Parameter(torch.ones(1))], "lr": 0.3})
    assert [group["lr"] for group in view.param_groups] == [0.1, 0.2, 0.4, 0.3]


# ---------------------------------------------------------------------- a run of several


class Pair:
    """A net whose hidden matrix one optimizer trains, and another one the rest."""

    def __init__(self, first: Any = None, lrs: tuple[float, ...] = (1.0, 1.0, 1.0), **options: Any) -> None:
        torch.manual_seed(2)
        self.model = nn.Sequential(
            nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)
        )
        hidden, rest = self.model[2].weight, [*self.model[0].parameters(), self.model[2].bias]
        make = first or (lambda p, lr: SGD(p, lr, momentum=0.9))
        self.optimizers = [
            make([hidden], lr=lrs[0]),
            AdamW([{"params": rest, "lr": lrs[1]}, {"params": self.model[4].parameters(), "lr": lrs[2]}]),
        ]
        self.settings = {"total_steps": 200, **options}
        self.records: list[SyncRecord] = []
        self.lrs: list[list[float]] = []
        self.at = 0
        self.poison = -1
        self.order = [0, 1]
        self.attach()

    def attach(self) -> None:
        self.auto = AutoLR(self.optimizers, probe=probe_of(self.model), **self.settings)

    def run(self, until: int) -> Pair:
        while self.at < until:
            self.lrs.append([g["lr"] for o in self.optimizers for g in o.param_groups])
            self.model.zero_grad()
            squared(self.model, X[self.at % 200]).backward()
            if self.at == self.poison:
                self.model[2].weight.grad.fill_(math.nan)
            for k in self.order:
                self.optimizers[k].step()
            self.at += 1
            record = self.auto.step()
            self.records += [record] if record else []
        return self

    def loss(self) -> float:
        with torch.no_grad():
            return float(torch.stack([squared(self.model, x) for x in X[300:]]).mean())

    def flat(self) -> Tensor:
        state = [s[k] for o in self.optimizers for s in o.state.values() for k in sorted(s)]
        return torch.cat([t.detach().double().reshape(-1) for t in (*self.model.parameters(), *state)])

    def save(self) -> io.BytesIO:
        file = io.BytesIO()
        states = [o.state_dict() for o in self.optimizers]
        torch.save([self.at, self.model.state_dict(), states, self.auto.state_dict()], file)
        file.seek(0)
        return file

    def load(self, file: io.BytesIO) -> Pair:
        self.at, weights, states, auto = torch.load(file, weights_only=True)
        self.model.load_state_dict(weights)
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(state)
        self.auto.load_state_dict(auto)
        return self


def test_of_several_only_the_ratios_within_one_count() -> None:
    run = Pair(lrs=(1e-7, 3.0, 6.0)).run(120)
    assert all(third == 2 * second for _, second, third in run.lrs)
    other = Pair(lrs=(10.0, 1e-4, 2e-4)).run(120)
    assert run.lrs == other.lrs
    assert torch.equal(run.flat(), other.flat())
    assert run.auto.get_last_lr() == [g["lr"] for o in run.optimizers for g in o.param_groups]
    names = [seen.name for seen in run.records[-1].horizon]
    assert names == ["lr/0", "lr/1-2"]


def test_the_order_of_their_steps_does_not_matter() -> None:
    run, other = Pair(), Pair()
    other.order = [1, 0]
    run.poison = other.poison = 60
    assert torch.equal(run.run(120).flat(), other.run(120).flat())
    assert decisions(run.records) == decisions(other.records)
    assert any("back to the weights" in event for record in run.records for event in record.events)


@pytest.mark.parametrize("at", [97, 170], ids=["in the window that is taken back", "in the descent"])
def test_several_are_taken_up_bit_for_bit(at: int) -> None:
    whole = Pair()
    whole.poison = 95
    file = whole.run(at).save()
    whole.run(200)
    again = Pair()
    again.poison = 95
    again.load(file).run(200)
    assert torch.equal(again.flat(), whole.flat())
    assert again.lrs == whole.lrs[at:]
    assert again.auto.found() == whole.auto.found()
    assert decisions(again.records) == decisions([r for r in whole.records if r.step > at])


def test_one_that_steps_less_often_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """But one that misses a step now and then, as GradScaler has it, is not."""
    run = Pair().run(20)
    run.order = [1]
    run.run(21)
    run.order = [0, 1]
    run.run(60)
    (said,) = [r.message for r in caplog.records if "must step before each call" in r.message]
    assert "SGD (number 0) has missed 1 of 21: the step counts" in said

    def every_other() -> None:
        for k in range(60):
            run.order = [0, 1] if k % 2 else [0]
            run.run(60 + k + 1)

    with pytest.raises(RuntimeError, match=r"AdamW \(number 1\) has missed 17 of .*step equally often"):
        every_other()


def test_what_several_cannot_be() -> None:
    model = network()
    first, second = SGD(model[0].parameters(), 0.1), SGD(model[2].parameters(), 0.1)
    probe = probe_of(model)
    with pytest.raises(TypeError, match=r"schedule must be a name where there are several .* got a StepLR"):
        AutoLR([first, second], probe=probe, schedule=lr_scheduler.StepLR(first, 3))
    with pytest.raises(ValueError, match="one, or a list of different ones, got 0"):
        AutoLR([], probe=probe)
    with pytest.raises(ValueError, match="one, or a list of different ones, got 2"):
        AutoLR([first, first], probe=probe)
    with pytest.raises(TypeError, match="optimizer must be a torch Optimizer, got str"):
        AutoLR([first, "adam"], probe=probe)  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"one of shape \(16, 8\) is in optimizers 0 and 1; leave it in one"):
        AutoLR([first, SGD(model.parameters(), 0.1)], probe=probe)
    assert AutoLR([first], probe=probe).optimizers == [first]
