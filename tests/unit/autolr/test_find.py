"""A short search leaves everything as it was, and says what it came to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import hdet
from tests.unit.training import Net, batch, loss_of


def task() -> tuple[nn.Module, list[Tensor]]:
    torch.manual_seed(0)
    return Net(), [batch(step) for step in range(60)]


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    state = [value for of in optimizer.state.values() for value in of.values() if isinstance(value, Tensor)]
    return [tensor.detach().clone() for tensor in (*model.state_dict().values(), *state)]


@pytest.mark.parametrize("trained", [0, 7])
def test_everything_is_as_it_was(trained: int) -> None:
    """Weights, batch norm's statistics, the optimizer's moments, rates, gradients and hooks."""
    model, data = task()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for x in data[:trained]:
        loss_of(model, x).backward()
        optimizer.step()
        optimizer.zero_grad()
    before = everything(model, optimizer)
    found = hdet.find(model, optimizer, lambda x: loss_of(model, x), data, steps=80)
    after = everything(model, optimizer)
    assert len(after) == len(before)
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert optimizer.param_groups[0]["lr"] == 3e-3
    assert all(p.grad is None for p in model.parameters())
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert found.lowest <= found.lr[0] <= found.highest
    assert found.steps == 80


def test_it_is_the_rate_of_autolr_s_own_search_and_replays(tmp_path: Path) -> None:
    """The same run by hand: the same rates at every step, to the last bit."""
    model, data = task()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    torch.manual_seed(1)
    found = hdet.find(model, optimizer, lambda x: loss_of(model, x), data, steps=80)
    found.save(tmp_path / "schedule.json")
    again = torch.optim.SGD(model.parameters(), lr=1.0)
    schedule = hdet.replay(again, tmp_path / "schedule.json")
    replayed = []
    for _ in range(80):
        replayed.append(again.param_groups[0]["lr"])
        again.step()
        schedule.step()

    model, data = task()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    torch.manual_seed(1)
    probe, rest = hdet.Probe.set_aside(lambda x: loss_of(model, x), data, model=model)
    auto = hdet.AutoLR(optimizer, probe=probe, total_steps=80, patience=None)
    rates: list[float] = []
    searched = 0.0
    while not auto.finished:
        for x in rest:
            if auto.finished:
                break
            loss_of(model, x).backward()
            optimizer.step()
            optimizer.zero_grad()
            rates.append(auto.get_last_lr()[0])
            searched = rates[-1] if auto.searching else searched
            auto.step()
    assert replayed == rates
    assert found.lr[0] == searched


def test_what_is_given_is_not_what_is_found() -> None:
    """Seven orders of magnitude apart in what the optimizer was given, the same rate."""
    rates = []
    for lr in (1e-6, 10.0):
        model, data = task()
        optimizer = torch.optim.SGD(model.parameters(), lr=lr)
        torch.manual_seed(1)
        found = hdet.find(model, optimizer, lambda x, m=model: loss_of(m, x), data, steps=120)
        assert found.learnt
        rates.append(found.lr[0])
    assert rates[1] == pytest.approx(rates[0], rel=1e-6)


def test_everything_is_as_it_was_after_an_error_too() -> None:
    model, data = task()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    before = everything(model, optimizer)
    calls = 0

    def fails(x: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls > 40:
            raise RuntimeError("the loader's disk is gone")
        return loss_of(model, x)

    with pytest.raises(RuntimeError, match="disk is gone"):
        hdet.find(model, optimizer, fails, data, steps=80)
    after = everything(model, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert optimizer.param_groups[0]["lr"] == 3e-3
    assert not optimizer._optimizer_step_pre_hooks


def test_a_loader_of_few_batches_is_gone_through_again() -> None:
    model, _ = task()
    x = batch(0, 96)
    loader = DataLoader(TensorDataset(x), batch_size=8, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    found = hdet.find(model, optimizer, lambda b: loss_of(model, b[0]), loader, steps=60)
    assert found.steps == 60


def test_an_iterator_that_ends_is_refused() -> None:
    model, data = task()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with pytest.raises(ValueError, match="find: the loader must hold batches"):
        hdet.find(model, optimizer, lambda x: loss_of(model, x), iter(data[:30]), steps=60)


def test_nothing_learnt_is_said() -> None:
    model, _ = task()
    noise = [torch.randn(16, 4, generator=torch.Generator().manual_seed(k)) for k in range(40)]
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def without_a_signal(x: Tensor) -> Tensor:
        target = torch.randn(16, 1, generator=torch.Generator().manual_seed(int(x[0, 0] * 1e6) % 2**31))
        return (0.01 * model(x) - target).square().mean()

    assert not hdet.find(model, optimizer, without_a_signal, noise, steps=60).learnt
