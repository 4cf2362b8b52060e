"""Eq. 10 in one process; the ranks' side is in tests/distributed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hdet import warm_start_


def test_scale_is_equation_10() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 300), nn.Linear(300, 50))
    with torch.no_grad():
        model[1].weight.mul_(10)
    before = [p.detach().clone() for p in model.parameters()]
    flat = torch.cat([p.reshape(-1) for p in before])
    warm_start_(model, noise=0.1)
    noise = [p.detach() - b for p, b in zip(model.parameters(), before, strict=True)]
    expected = 0.1 * flat.norm().item() / flat.numel() ** 0.5
    for n in noise[0], noise[2]:  # the same for every tensor, whatever its own norm
        assert n.std().item() == pytest.approx(expected, rel=0.03)
        assert abs(n.mean().item()) < expected / 10


def test_repeatable_and_by_seed() -> None:
    def noisy(seed: int) -> torch.Tensor:
        weight = nn.Parameter(torch.ones(10))
        warm_start_([weight], seed=seed)
        return weight.detach()

    assert torch.equal(noisy(1), noisy(1))
    assert not torch.equal(noisy(1), noisy(2))


def test_what_stays_as_it_is() -> None:
    model = nn.Module()
    model.frozen = nn.Parameter(torch.ones(4), requires_grad=False)
    model.integer = nn.Parameter(torch.arange(4), requires_grad=False)
    model.tied_a = nn.Parameter(torch.ones(1000))
    model.tied_b = nn.Parameter(torch.ones(2))
    model.tied_b.data = model.tied_a.data
    model.empty = nn.Parameter(torch.ones(0))
    model.low = nn.Parameter(torch.ones(1000, dtype=torch.bfloat16))
    warm_start_(model, noise=0.1)
    assert torch.equal(model.frozen, torch.ones(4))
    assert torch.equal(model.integer, torch.arange(4))
    assert model.tied_a.std().item() == pytest.approx(0.1, rel=0.1), "tied memory is perturbed once"
    assert model.low.float().std().item() == pytest.approx(0.1, rel=0.1)
    warm_start_(nn.Identity())


@pytest.mark.parametrize("options", [{"noise": -1.0}, {"noise": float("nan")}, {"scope": "layer"}])
def test_bad_input(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"warm_start_: (noise|scope)"):
        warm_start_([nn.Parameter(torch.ones(1))], **options)
