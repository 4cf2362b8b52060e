"""Weights that were trained before are told from new ones, and their usual rate is lower."""

from __future__ import annotations

import logging
from collections.abc import Callable
from copy import deepcopy
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import AdamW

import hdet
from hdet.autolr import policy
from hdet.autolr.prior import fine_tuning
from hdet.autolr.trained import was_trained

INITIAL: dict[str, Callable[[Tensor], object]] = {
    "normal": nn.init.normal_,
    "uniform": lambda w: nn.init.uniform_(w, -0.1, 0.1),
    "truncated": lambda w: nn.init.trunc_normal_(w, std=0.02),
    "kaiming": nn.init.kaiming_uniform_,
    "orthogonal": nn.init.orthogonal_,
    "zero": nn.init.zeros_,
    "one": nn.init.ones_,
    "above zero": nn.init.uniform_,
    "around one": lambda w: nn.init.normal_(w, mean=1.0, std=0.1),
}


@pytest.mark.parametrize("shape", [(64, 64), (256, 16), (8, 128), (32, 16, 3, 3), (1, 64), (400, 3)])
@pytest.mark.parametrize("kind", INITIAL)
def test_what_was_drawn_was_not_trained(kind: str, shape: tuple[int, ...]) -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        weight = torch.empty(shape)
        INITIAL[kind](weight)
        assert not was_trained(weight)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.complex64])
def test_in_every_type(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    drawn = torch.randn(96, 64, dtype=torch.complex64 if dtype.is_complex else torch.float32)
    learnt = drawn + 0.5 * torch.outer(drawn[:, 0], drawn[0])
    assert not was_trained(drawn.to(dtype))
    assert was_trained(learnt.to(dtype))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_says_nothing(value: float) -> None:
    assert not was_trained(torch.full((4, 4), value))
    assert not was_trained(torch.empty(0, 4))


def network(width: int = 96) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
    )


def drawn(seed: int, rows: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed))
    return x, torch.sin(x[:, :4].sum(1, keepdim=True))


@cache
def pretrained() -> nn.Sequential:
    torch.manual_seed(0)
    model = network()
    optimizer = AdamW(model.parameters(), lr=3e-3)
    for step in range(600):
        x, y = drawn(step, 128)
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
    return model


def new_head(model: nn.Sequential) -> nn.Sequential:
    model = deepcopy(model)
    torch.manual_seed(1)
    model[4].reset_parameters()  # type: ignore[operator]
    return model


def searched(model: nn.Module, steps: int) -> hdet.AutoLR:
    """After so many steps."""
    held_out = [drawn(10_000 + i, 32) for i in range(8)]
    probe = hdet.Probe(lambda batch: mse_loss(model(batch[0]), batch[1]), held_out, model=model)
    optimizer = AdamW([p for p in model.parameters() if p.requires_grad], lr=1.0)
    auto = hdet.AutoLR(optimizer, probe=probe, total_steps=200)
    for step in range(steps):
        x, y = drawn(20_000 + step, 32)
        optimizer.zero_grad()
        mse_loss(model(x), y).backward()
        optimizer.step()
        auto.step()
    return auto


def test_a_trained_body_begins_at_a_lower_rate(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = 8 * 96 + 96 * 96
    share = fine_tuning(trained, trained / (trained + 96))
    with caplog.at_level(logging.INFO, logger="hdet"):
        auto = searched(new_head(pretrained()), 15)
    assert f"AutoLR: weights that were trained before: usual rate × {share:.2g}" in caplog.text
    monkeypatch.setattr(policy, "fine_tuning", lambda *_: 1.0)
    as_new = searched(new_head(pretrained()), 15)
    (lower,), (usual,) = states_of(auto), states_of(as_new)
    assert lower["usual"] == pytest.approx(share * usual["usual"])
    assert share < 0.6


@pytest.mark.parametrize("kind", ["new", "frozen body"])
def test_new_weights_have_the_usual_rate(kind: str) -> None:
    torch.manual_seed(0)
    model = network() if kind == "new" else new_head(pretrained())
    if kind == "frozen body":
        model[:4].requires_grad_(False)
    auto = searched(model, 15)
    assert [state["fine_tuning"] for state in states_of(auto)] == [1.0]


def test_a_resumed_run_remembers_and_does_not_ask_again() -> None:
    """By then its own training has left its mark on the weights."""
    auto = searched(new_head(pretrained()), 15)
    (before,) = states_of(auto)
    assert before["fine_tuning"] < 1
    again = searched(new_head(pretrained()), 0)
    again.load_state_dict(deepcopy(auto.state_dict()))
    assert states_of(again) == [before]


def states_of(auto: hdet.AutoLR) -> list[dict[str, float]]:
    return auto._horizon.state_dict()["states"]  # type: ignore[no-any-return]
