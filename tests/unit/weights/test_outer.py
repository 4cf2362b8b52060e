"""One island alone, where the mean is itself: what its outer optimizer does, keeps and refuses."""

from __future__ import annotations

import io
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hdet
from tests.fakes import Alike
from tests.states import inside

T = 4


class Net(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one = nn.Linear(5, 6, dtype=dtype)
        self.two = nn.Linear(6, 5, dtype=dtype)
        self.two.weight = nn.Parameter(self.one.weight.detach().t())  # another view of the same memory

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.two(torch.tanh(self.one(x)))
        return out


def train_once(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> Tensor:
    x = torch.randn(8, 5, generator=torch.Generator().manual_seed(step)).to(next(model.parameters()).dtype)
    loss: Tensor = (model(x) - x.flip(1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def island(
    model: nn.Module, outer: hdet.Outer | None, **options: Any
) -> tuple[torch.optim.Optimizer, hdet.Ensemble]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"gradients": "none", "sync_every": T, "model": model, **options}
    return optimizer, hdet.Ensemble(optimizer, options.pop("explore", []), outer=outer, **options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_one_island_is_torchs_nesterov_on_its_displacement(dtype: torch.dtype) -> None:
    """Tied weights are stepped once, whatever views of them there are."""
    model, twin = Net(dtype), Net(dtype)
    optimizer, ensemble = island(model, hdet.Outer(lr=0.6, momentum=0.8))
    inner = torch.optim.SGD(twin.parameters(), lr=0.1)
    kept = [twin.one.weight, twin.one.bias, twin.two.bias]
    outer = torch.optim.SGD(
        [p.detach().double().clone().requires_grad_() for p in kept], 0.6, 0.8, nesterov=True
    )
    slack = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.05}[dtype]
    for step in range(5 * T):
        if step % T == 0:
            theta = [p.detach().double().clone() for p in kept]
        ensemble.step(train_once(model, optimizer, step))
        train_once(twin, inner, step)
        if step % T == T - 1:
            for mine, start, now in zip(outer.param_groups[0]["params"], theta, kept, strict=True):
                mine.data.copy_(start)
                mine.grad = start - now.detach().double()
            outer.step()
            for mine, now in zip(outer.param_groups[0]["params"], kept, strict=True):
                now.data.copy_(mine)
            torch.testing.assert_close(flat(model), flat(twin), rtol=slack, atol=slack)
        assert torch.equal(model.one.weight, model.two.weight.t())


def test_a_rate_of_one_without_momentum_changes_nothing_bit_for_bit() -> None:
    model, plain = Net(), Net()
    optimizer, ensemble = island(model, hdet.Outer(lr=1, momentum=0))
    alone = torch.optim.SGD(plain.parameters(), lr=0.1)
    for step in range(3 * T):
        ensemble.step(train_once(model, optimizer, step))
        train_once(plain, alone, step)
        assert torch.equal(flat(model), flat(plain))


def test_an_average_within_a_round_is_no_outer_step() -> None:
    one, two = Net(), Net()
    runs = [island(model, hdet.Outer()) for model in (one, two)]
    for step in range(3 * T):
        for model, (optimizer, ensemble) in zip((one, two), runs, strict=True):
            ensemble.step(train_once(model, optimizer, step))
            if model is two:
                ensemble.converge()
                ensemble.converge()
        assert torch.equal(flat(one), flat(two))


def test_lost_weights_leave_the_momentum_as_it_was() -> None:
    model = Net()
    optimizer, ensemble = island(model, hdet.Outer())
    for step in range(T):
        ensemble.step(train_once(model, optimizer, step))
    before = {key: v.clone() for key, v in inside(ensemble.state_dict())["outer"]["velocity"].items()}
    assert before
    records = []
    for step in range(T, 2 * T):
        loss = train_once(model, optimizer, step)
        if step == 2 * T - 1:
            model.one.bias.data[2] = math.inf
        records.append(ensemble.step(loss))
    assert any("did not step" in event for event in records[-1].events)
    after = inside(ensemble.state_dict())["outer"]["velocity"]
    assert all(torch.equal(after[key], v) for key, v in before.items())


def test_state_is_two_copies_of_the_weights_and_less_where_less_is_needed() -> None:
    model = Net()
    distinct = sum(p.numel() for p in (model.one.weight, model.one.bias, model.two.bias))
    for outer, explore, after_sync in (
        (hdet.Outer(), [], 1),
        (hdet.Outer(), [hdet.OuterLR()], 2),
        (hdet.Outer(momentum=0.0), [], 0),
    ):
        optimizer, ensemble = island(model, outer, explore=explore)
        for step in range(T):
            ensemble.step(train_once(model, optimizer, step))
        assert kept(ensemble) == after_sync * distinct, "θ is where the weights are"
        ensemble.step(train_once(model, optimizer, T))
        assert kept(ensemble) == (1 if outer.momentum == 0 else 2) * distinct
        ensemble.detach()


def kept(ensemble: hdet.Ensemble) -> int:
    state = inside(ensemble.state_dict())["outer"]
    return sum(t.numel() for of in ("start", "velocity", "gradient") for t in (state[of] or {}).values())


@pytest.mark.parametrize("at", [2 * T, 2 * T + 1])
def test_a_resumed_run_is_the_unbroken_one(at: int) -> None:
    model = Net()
    optimizer, ensemble = island(model, hdet.Outer())
    saved = io.BytesIO()
    for step in range(4 * T):
        if step == at:
            torch.save({"model": model.state_dict(), "run": ensemble.state_dict()}, saved)
        ensemble.step(train_once(model, optimizer, step))
    saved.seek(0)
    state = torch.load(saved, weights_only=True)
    other = Net()
    optimizer, ensemble = island(other, hdet.Outer())
    other.load_state_dict(state["model"])
    ensemble.load_state_dict(state["run"])
    for step in range(at, 4 * T):
        ensemble.step(train_once(other, optimizer, step))
    assert torch.equal(flat(model), flat(other))


def test_a_state_without_an_outer_optimizer_begins_one() -> None:
    model = Net()
    optimizer, ensemble = island(model, None)
    state = ensemble.state_dict()
    assert "outer" not in state
    optimizer, ensemble = island(model, hdet.Outer())
    ensemble.load_state_dict(state)
    for step in range(T):
        ensemble.step(train_once(model, optimizer, step))


# ---------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"lr": 0}, "lr must be a number above 0, got 0"),
        ({"lr": math.nan}, "lr must be"),
        ({"lr": True}, "lr must be"),
        ({"momentum": 1.0}, r"momentum must lie in \[0, 1\), got 1.0"),
        ({"keep": "off"}, "keep must be 'host' or 'device'"),
    ],
)
def test_settings(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"Outer: {said}"):
        hdet.Outer(**wrong)


def test_on_one_gradient_for_all_there_is_nothing_to_gain() -> None:
    with pytest.raises(ValueError, match=r"gradients='all'.*single optimizer.*use gradients='none'"):
        island(Net(), hdet.Outer(), gradients="all")


def test_anything_else_is_no_outer_optimizer() -> None:
    wrong: Any = hdet.Outer
    with pytest.raises(TypeError, match=r"outer must be an hdet.Outer, got the class Outer"):
        island(Net(), wrong)


def test_where_nothing_travels_nothing_is_compressed() -> None:
    with pytest.raises(TypeError, match=r"wire='int8' is for replicas in processes.*got Alike"):
        island(Net(), hdet.Outer(), wire="int8", replicas=Alike())


def test_a_parameter_whose_start_is_not_known() -> None:
    model = Net()
    model.one.bias.requires_grad_(False)
    optimizer, ensemble = island(model, hdet.Outer())
    ensemble.step(train_once(model, optimizer, 0))
    model.one.bias.requires_grad_(True)
    for step in range(1, T - 1):
        ensemble.step(train_once(model, optimizer, step))
    loss = train_once(model, optimizer, T - 1)
    with pytest.raises(RuntimeError, match=r"parameter 1 are not: it was unfrozen.*directly after a sync"):
        ensemble.step(loss)


def test_a_parameter_frozen_and_unfrozen_directly_after_a_sync() -> None:
    """It takes part in the rounds in which it is trained, and rests where it stands in the others."""
    model = Net()
    model.one.bias.requires_grad_(False)
    optimizer, ensemble = island(model, hdet.Outer())
    seen = [model.one.bias.detach().clone()]
    for step in range(4 * T):
        if step % T == 0:
            model.one.bias.requires_grad_(step in (T, 3 * T))
        ensemble.step(train_once(model, optimizer, step))
        if step % T == T - 1:
            seen.append(model.one.bias.detach().clone())
    changed = [not torch.equal(a, b) for a, b in itertools.pairwise(seen)]
    assert changed == [False, True, False, True]


def test_an_older_start_does_not_stand_in_for_one_that_is_not_known() -> None:
    model = Net()
    optimizer, ensemble = island(model, hdet.Outer())
    for step in range(2 * T - 1):
        if step == T:
            model.one.bias.requires_grad_(False)
        if step == T + 1:
            model.one.bias.requires_grad_(True)
        ensemble.step(train_once(model, optimizer, step))
    loss = train_once(model, optimizer, 2 * T - 1)
    with pytest.raises(RuntimeError, match=r"parameter 1 are not"):
        ensemble.step(loss)


# ---------------------------------------------------------------------- rows of one matrix


def test_stacked_replicas_have_an_outer_optimizer_too() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    replicas = hdet.StackedReplicas(model, torch.optim.SGD(model.parameters(), lr=0.1), 2, gradients="none")
    ensemble = hdet.Ensemble(
        replicas.optimizer, [], gradients="none", outer=hdet.Outer(0.5, 0.0), sync_every=2, replicas=replicas
    )
    start = [m.detach().clone() for m in replicas.matrices]
    for _ in range(2):
        x = torch.randn(8, 3)
        losses = replicas.losses(lambda m, x: (m(x) - x.sum(1, keepdim=True)).square().mean(), x)
        replicas.backward(losses)
        replicas.optimizer.step()
        replicas.optimizer.zero_grad()
        before = [m.detach().clone() for m in replicas.matrices]
        ensemble.step(losses.detach())
    for theta, ends, now in zip(start, before, replicas.matrices, strict=True):
        expected = (theta + ends.mean(0, keepdim=True)) / 2
        torch.testing.assert_close(now.detach(), expected.expand_as(now))
