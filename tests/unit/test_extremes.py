"""Losses, gradients and models at the edge of what can be trained: an error that says what it was."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hdet


class Task:
    """A small regression that AutoLR trains; what is given says what is odd about it."""

    def __init__(self, device: str = "cpu", frozen: bool = False, optimizer: str = "SGD") -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8, device=device), nn.Tanh(), nn.Linear(8, 1, device=device))
        self.model.requires_grad_(not frozen)
        self.optimizer: Any = getattr(torch.optim, optimizer)(self.model.parameters(), lr=0.1)
        self.batches = [torch.randn(8, 4, device=device) for _ in range(40)]
        self.scale = 1.0
        self.in_probe: Callable[[Tensor], Tensor] = lambda loss: loss
        self.in_gradient = 0.0

    def loss_of(self, x: Tensor) -> Tensor:
        loss = (self.model(x) - x.sum(1, keepdim=True)).square().mean() * self.scale
        return loss if torch.is_grad_enabled() else self.in_probe(loss)

    def auto(self) -> hdet.AutoLR:
        probe = hdet.Probe(self.loss_of, self.batches[:8], model=self.model)
        return hdet.AutoLR(self.optimizer, total_steps=100, probe=probe)

    def train(self) -> None:
        auto = self.auto()
        for step in range(100):
            self.optimizer.zero_grad()
            loss = self.loss_of(self.batches[8 + step % 32])
            loss.backward()  # type: ignore[no-untyped-call]
            for weight in self.model.parameters():
                assert weight.grad is not None
                weight.grad.add_(self.in_gradient)
            self.optimizer.step()
            auto.step(loss.detach())


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_a_gradient_that_is_never_a_number(optimizer: str) -> None:
    task = Task(optimizer=optimizer)
    task.in_gradient = math.nan
    with pytest.raises(RuntimeError, match=r"moved by nan .* rollbacks did not help \(5 retries"):
        task.train()


@pytest.mark.parametrize(
    ("optimizer", "scale", "words"),
    [
        ("SGD", 0.0, r"must move, and did not.*does loss\.backward\(\) reach"),
        ("SGD", 1e-30, r"must move, and did not.*scale the loss"),
        ("SGD", 1e30, r"moved by nan of their norm .*rollbacks did not help"),
        ("Adam", 1e-30, r"must move, and did not.*below 1e-22"),
        ("Adam", 1e30, r"state became infinite or NaN .*above 1e19.*rollbacks did not help"),
        ("AdamW", 1e30, r"state became infinite or NaN .*above 1e19.*rollbacks did not help"),
    ],
)
def test_a_loss_of_no_size_to_train_at(optimizer: str, scale: float, words: str) -> None:
    task = Task(optimizer=optimizer)
    task.scale = scale
    with pytest.raises(RuntimeError, match=words):
        task.train()


def test_a_probe_with_a_batch_that_is_no_number() -> None:
    task = Task()
    task.batches[1][0, 0] = math.nan
    with pytest.raises(ValueError, match="the probe's loss must be finite at weights that training has left"):
        task.train()


def test_an_error_of_the_probe_is_the_users_own() -> None:
    task = Task()

    def fail(loss: Tensor) -> Tensor:
        raise KeyError("mine")

    task.in_probe = fail
    with pytest.raises(KeyError, match="mine"):
        task.train()


def test_weights_that_are_not_there_yet() -> None:
    with pytest.raises(
        ValueError, match=r"AutoLR: the weights must be there, .* meta device; call model\.to_"
    ):
        Task(device="meta").auto()


def test_nothing_to_train() -> None:
    with pytest.raises(ValueError, match="AutoLR: the optimizer must train something"):
        Task(frozen=True).auto()


@pytest.mark.parametrize("lost", [["1.running_mean"], ["ema"], ["ema", "1.running_mean"], []])
def test_a_buffer_that_is_lost_is_told_once(lost: list[str], caplog: pytest.LogCaptureFixture) -> None:
    """The weights and the probe's loss are sound: nobody else would notice. A mask was given as it is."""
    task = Task()
    task.model.insert(1, nn.BatchNorm1d(8))
    task.model.register_buffer("ema", torch.zeros(3))
    task.model.register_buffer("mask", torch.full((2, 2), -math.inf).triu(1))
    buffers = dict(task.model.named_buffers())
    auto = task.auto()
    events: list[str] = []
    with caplog.at_level(logging.WARNING, logger="hdet"):
        for step in range(100):
            task.optimizer.zero_grad()
            loss = task.loss_of(task.batches[8 + step % 32])
            loss.backward()  # type: ignore[no-untyped-call]
            task.optimizer.step()
            for name in lost if step == 30 else ():
                buffers[name].fill_(math.nan)
            record = auto.step(loss.detach())
            events += record.events if record is not None else ()
    said = [message for message in caplog.messages if "buffers" in message]
    assert len(said) == bool(lost)
    assert all(f"({', '.join(lost)})" in message and "hdet.Guard" in message for message in said)
    assert any("buffers" in event for event in events) == bool(lost), "a record has it, too"
