"""Trained weights: the first windows leave them no worse than they came, and a better rate is found."""

from __future__ import annotations

import itertools
from copy import deepcopy
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import SGD, AdamW

from hdet import AutoLR, Probe

WIDTH, STEPS = 24, 300


class Adapted(nn.Module):
    """A linear layer with a low-rank detour that begins at zero, as LoRA's does."""

    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(2, inner.in_features) / inner.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(inner.out_features, 2))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + x @ self.down.T @ self.up.T


def samples(seed: int, count: int, turned: float) -> tuple[Tensor, Tensor]:
    """A smooth target of eight inputs; ``turned`` says how far it is from the one that was trained on."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 8, generator=generator)
    y = torch.sin(x[:, :4].sum(1) + turned)
    return x, (y + 0.1 * torch.randn(count, generator=generator)).unsqueeze(1)


@cache
def pretrained() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(8, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)
    )
    optimizer = AdamW(model.parameters(), lr=3e-3)
    x, y = samples(1, 4096, 0.0)
    for i in range(1500):
        at = slice(64 * (i % 64), 64 * (i % 64) + 64)
        optimizer.zero_grad()
        mse_loss(model(x[at]), y[at]).backward()
        optimizer.step()
    return model


def prepared(kind: str) -> nn.Sequential:
    """The trained model, as one of the ways of fine-tuning finds it."""
    torch.manual_seed(3)
    model = deepcopy(pretrained())
    if kind == "adapters":
        for i in (0, 2):
            model[i] = Adapted(model[i])  # type: ignore[arg-type]
    elif kind in ("head", "freed later"):
        model[:4].requires_grad_(False)
    return model


def fine_tune(kind: str, optimizer: str, few: int = 192) -> tuple[list[float], float, float]:
    """Test losses at the ends of windows that training went on from; before; of what is handed over."""
    model = prepared(kind)
    x, y = samples(2, few, 0.6)
    aside, test = samples(4, 256, 0.6), samples(5, 4096, 0.6)
    weights = (
        list(model.parameters())
        if kind == "freed later"
        else [p for p in model.parameters() if p.requires_grad]
    )
    stepping = AdamW(weights) if optimizer == "adamw" else SGD(weights, lr=1e-3, momentum=0.9)
    probe = Probe(
        lambda batch: mse_loss(model(batch[0]), batch[1]),
        [(aside[0][i : i + 32], aside[1][i : i + 32]) for i in range(0, 256, 32)],
        model=model,
    )

    def at_test() -> float:
        with torch.no_grad():
            return mse_loss(model(test[0]), test[1]).item()

    auto, before, losses = AutoLR(stepping, total_steps=STEPS, probe=probe), at_test(), []
    order = itertools.cycle(torch.randperm(few, generator=torch.Generator().manual_seed(6)).split(32))
    for step in range(STEPS):
        if kind == "freed later" and step == STEPS // 3:
            model.requires_grad_(True)
        at = next(order)
        stepping.zero_grad()
        mse_loss(model(x[at]), y[at]).backward()
        stepping.step()
        record = auto.step()
        if record is not None and record.horizon and record.horizon[0].action != "back":
            losses.append(at_test())
    auto.finish_()
    return losses, before, at_test()


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("kind", ["whole", "adapters", "head", "freed later"])
def test_trained_weights_are_never_left_worse_than_they_came(kind: str, optimizer: str) -> None:
    losses, before, after = fine_tune(kind, optimizer)
    assert max(losses[:8]) < 1.1 * before  # an iterate, not a mean: a tenth is its noise
    assert after < 0.45 * before


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_whole_weights_find_what_a_head_alone_cannot(optimizer: str) -> None:
    """The rate found is no smaller than it must be: the body learns the new target too."""
    (_, before, whole), (_, _, head) = fine_tune("whole", optimizer), fine_tune("head", optimizer)
    assert whole < head < before
