"""What is lost is taken back; what is only noisy, or harder, is not."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hdet
from hdet.autolr.guard import has_risen
from tests.fakes import Thread, on_threads
from tests.unit.training import Net, batch, loss_of

EVERY = 10


def run(
    disturb: Callable[[int, nn.Module, torch.optim.Optimizer], None] = lambda *_: None,
    *,
    steps: int = 100,
    probe: bool = True,
    lr: float = 1e-2,
    data: Callable[[int], Tensor] = batch,
    kind: type[torch.optim.Optimizer] = torch.optim.AdamW,
) -> tuple[nn.Module, hdet.Guard, list[tuple[int, str]], list[float]]:
    """``disturb`` is called between the backward pass and the optimizer's step."""
    torch.manual_seed(0)
    model = Net()
    optimizer = kind(model.parameters(), lr=lr)  # type: ignore[call-arg]
    held_out = [batch(10_000 + k) for k in range(4)]
    given = hdet.Probe(lambda x: loss_of(model, x), held_out, model=model) if probe else None
    guard = hdet.Guard(optimizer, model=model, probe=given, sync_every=EVERY)
    said, losses = [], []
    for step in range(steps):
        loss = loss_of(model, data(step))
        optimizer.zero_grad()
        loss.backward()
        disturb(step, model, optimizer)
        optimizer.step()
        losses.append(loss.item())
        if event := guard.step(loss):
            said.append((step, event))
    return model, guard, said, losses


def is_finite(model: nn.Module) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in model.state_dict().values())


@pytest.mark.parametrize("probe", [True, False])
def test_a_healthy_run_is_left_alone(probe: bool) -> None:
    """Bit for bit what it is without a guard."""
    _, guard, said, losses = run(probe=probe)
    torch.manual_seed(0)
    plain = Net()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
    expected = []
    for step in range(100):
        loss = loss_of(plain, batch(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    assert losses == expected
    assert (guard.backs, guard.steps, said) == (0, 100, [])


def nan_gradient(at: int) -> Callable[[int, nn.Module, torch.optim.Optimizer], None]:
    def disturb(step: int, model: nn.Module, _: torch.optim.Optimizer) -> None:
        if step == at:
            next(model.parameters()).grad.fill_(float("nan"))  # type: ignore[union-attr]

    return disturb


def infinite_state(step: int, _: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    if step == 44:
        next(iter(optimizer.state.values()))["exp_avg_sq"].fill_(float("inf"))


def lost_buffer(step: int, model: nn.Module, _: torch.optim.Optimizer) -> None:
    if step == 44:
        next(b for b in model.buffers() if b.is_floating_point()).fill_(float("nan"))


@pytest.mark.parametrize("probe", [True, False])
@pytest.mark.parametrize("disturb", [nan_gradient(44), infinite_state, lost_buffer])
def test_what_is_not_finite_is_taken_back(disturb, probe: bool) -> None:  # type: ignore[no-untyped-def]
    """Weights, moments and running statistics; the run then ends as well as any."""
    model, guard, said, losses = run(disturb, probe=probe)
    assert guard.backs == 1
    assert "not finite: back to step 40" in said[0][1]
    assert said[0][0] <= 50
    assert is_finite(model)
    assert losses[-1] < 0.3


def test_a_mask_of_infinities_is_nothing_to_go_back_for() -> None:
    torch.manual_seed(0)
    model = Net()
    model.register_buffer("mask", torch.full((4, 4), -float("inf")).triu(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    guard = hdet.Guard(optimizer, model=model, sync_every=EVERY)
    for step in range(3 * EVERY):
        loss = loss_of(model, batch(step))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        assert guard.step(loss.detach()) is None
    assert guard.backs == 0


def test_it_begins_where_the_first_step_does() -> None:
    """What was loaded after it was made, before any step."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    guard = hdet.Guard(optimizer, model=model, sync_every=EVERY)
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(0.5)
    for step in range(EVERY):
        loss = loss_of(model, batch(step))
        loss.backward()
        if step == 3:
            next(model.parameters()).grad.fill_(float("nan"))  # type: ignore[union-attr]
        optimizer.step()
        if guard.step(loss):
            break
    assert all(bool((weight == 0.5).all()) for weight in model.parameters())


@pytest.mark.parametrize("probe", [True, False])
def test_an_explosion_that_stays_finite_is_taken_back(probe: bool) -> None:
    def disturb(step: int, model: nn.Module, _: torch.optim.Optimizer) -> None:
        if step == 64:
            with torch.no_grad():
                for weight in model.parameters():
                    weight += 20.0

    _, guard, said, losses = run(disturb, probe=probe)
    assert guard.backs == 1
    assert "the loss rose from" in said[0][1]
    assert "back to step 60" in said[0][1]
    assert losses[-1] < 0.3


@pytest.mark.parametrize("by", [math.nan, 1e9])
def test_what_one_rank_has_lost_takes_all_back_at_the_same_step(by: float) -> None:
    """One process alone would look at once; several look together, at the end of the interval."""

    def act(rank: Thread) -> list[tuple[int, bool]]:
        weight = nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([weight], lr=0.01)
        model = nn.ParameterList([weight])
        guard = hdet.Guard(optimizer, model=model, sync_every=EVERY, process_group=rank)  # type: ignore[arg-type]
        seen = []
        for step in range(4 * EVERY):
            loss = weight.detach().square().mean()
            weight.grad = weight.detach() * (by if (rank.rank, step) == (1, 22) else 1.0)
            optimizer.step()
            if guard.step(loss):
                seen.append((step, is_finite(model) and float(weight.detach().norm()) < 2))
        return seen

    assert on_threads(2, act) == [[(29, True)]] * 2


@pytest.mark.parametrize("probe", [True, False])
def test_what_explodes_again_and_again_ends_the_run(probe: bool) -> None:
    def disturb(step: int, model: nn.Module, _: torch.optim.Optimizer) -> None:
        if step >= 44:
            next(model.parameters()).grad.fill_(float("nan"))  # type: ignore[union-attr]

    with pytest.raises(
        RuntimeError, match=r"Guard\.step: step .* 3 times .* step 40; lower the learning rate"
    ):
        run(disturb, probe=probe)


def test_data_that_become_harder_are_accepted_in_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """Training losses cannot tell them from an explosion; after three tries it is taken for what it is."""
    with caplog.at_level(logging.WARNING):
        model, guard, _, _ = run(
            probe=False, steps=120, lr=0.0, kind=torch.optim.SGD,
            data=lambda step: batch(step) * (1.0 if step < 50 else 30.0),
        )  # fmt: skip
    assert guard.backs == 3
    assert "taken for a change of the data" in caplog.text
    assert is_finite(model)


def test_a_resumed_run_goes_on_counting() -> None:
    _, guard, _, _ = run(steps=30)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    probe = hdet.Probe(lambda x: loss_of(model, x), [batch(10_000 + k) for k in range(4)], model=model)
    again = hdet.Guard(optimizer, model=model, probe=probe, sync_every=EVERY)
    again.load_state_dict(guard.state_dict())
    assert (again.steps, again.backs) == (30, 0)
    assert again.state_dict() == guard.state_dict()
    with pytest.raises(ValueError, match=r"judged by must be as it was .*a probe, got training losses"):
        hdet.Guard(optimizer, model=model, sync_every=EVERY).load_state_dict(guard.state_dict())


def test_refusals() -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TypeError, match=r"Guard: model must be a torch nn\.Module"):
        hdet.Guard(optimizer, model=None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Guard: probe must be a hdet\.Probe or None"):
        hdet.Guard(optimizer, model=model, probe=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="Guard: offload must be True or False, got 'host'"):
        hdet.Guard(optimizer, model=model, offload="host")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"Guard.step: loss must be given where there is no probe"):
        hdet.Guard(optimizer, model=model).step()


# ---------------------------------------------------------------------- rise


@pytest.mark.parametrize("paired", [True, False])
def test_a_rise_is_judged_alike_whatever_the_unit_and_the_level(paired: bool) -> None:
    before, little, much = [1.0, 1.1, 1.2, 1.05], [1.2, 1.3, 1.1, 1.2], [3.0, 3.3, 3.1, 3.0]
    for scale in (1e-20, 1.0, 1e20):
        for level in (-10.0, 0.0, 10.0):
            a, b, c = ([scale * (x + level) for x in xs] for xs in (before, little, much))
            first = scale * (4 + level)
            assert not has_risen(first, a, b, paired=paired)
            assert has_risen(first, a, c, paired=paired)
            assert not has_risen(first, a, a, paired=paired)


def test_what_is_no_number_has_risen() -> None:
    for lost in (math.nan, math.inf):
        assert has_risen(4.0, [1.0, 1.1], [1.0, lost], paired=True)


def test_where_nothing_was_gained_noise_alone_does_not_lead_back() -> None:
    before = [1.0, 1.4, 0.6, 1.2, 0.8]
    assert not has_risen(1.0, before, [1.5, 1.4, 1.3, 1.2, 1.3], paired=False)
    assert has_risen(1.0, before, [2.5, 2.4, 2.3, 2.2, 2.3], paired=False)
