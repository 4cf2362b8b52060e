"""What the weights leave behind: also where they begin at zero, or are frozen and freed on the way."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW

from hdet import AutoLR
from tests.unit.training import W, X, network, probe_of, squared, train


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_weights_that_begin_at_zero_are_trained(kind: str) -> None:
    """Logistic regression from zero, with no norm to measure speed by."""

    def logistic(model: nn.Module, x: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(model(x), (x @ W > 0).float())

    def final(lr: float | None) -> float:
        model = nn.Linear(8, 1)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        optimizer = (
            AdamW(model.parameters(), lr=lr or 1.0)
            if kind == "adamw"
            else SGD(model.parameters(), lr or 1.0, 0.9)
        )
        auto = AutoLR(optimizer, total_steps=1000, probe=probe_of(model, logistic)) if lr is None else None
        for i in range(1000):
            optimizer.zero_grad()
            logistic(model, X[i % 200]).backward()
            optimizer.step()
            if auto is not None:
                auto.step()
            else:
                optimizer.param_groups[0]["lr"] = lr * min(1.0, (1000 - i) / 250)  # type: ignore[operator]
        with torch.no_grad():
            return float(torch.stack([logistic(model, x) for x in X[300:]]).mean())

    best = min(final(lr) for lr in (0.03, 0.1, 0.3, 1.0))
    assert (final(None) - best) / (0.6931 - best) < 0.12


def test_layers_freed_during_a_run_are_followed() -> None:
    model = network()
    model[0].requires_grad_(False)
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[2].parameters())}]
    optimizer = AdamW(groups)
    auto = AutoLR(optimizer, total_steps=400, probe=probe_of(model))

    def free(i: int) -> None:
        if i == 100:
            model[0].requires_grad_(True)
        if i == 260:
            with torch.no_grad():
                model[0].weight.fill_(float("nan"))

    train(model, optimizer, auto, 400, at=free)
    assert max(group["lr"] for group in optimizer.param_groups) < 10
    assert squared(model, X[300]).item() < 0.05
