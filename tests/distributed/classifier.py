"""A small classifier that ranks train with gradients of their own, and what they say while they do."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

import hdet
from hdet.history import SyncRecord

Answer = tuple[str, str, float]


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 12)
        self.norm = nn.BatchNorm1d(12)
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.drop(torch.tanh(self.norm(self.first(x)))))
        return out


def batch(rank: int, step: int, size: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(size, 6, generator=generator)
    noise = torch.randn(size, 3, generator=generator)
    return x, (x[:, :3] + 0.5 * noise).argmax(1)


def gradient(model: nn.Module, criterion: nn.Module, rank: int, step: int) -> Tensor:
    """Forward and backward; the dropout of a rank and step is always the same."""
    torch.manual_seed(7919 * step + rank)
    x, y = batch(rank, step)
    loss: Tensor = criterion(model(x), y)
    loss.backward()
    return loss


def advance(
    model: nn.Module, criterion: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int
) -> Tensor:
    optimizer.zero_grad()
    loss = gradient(model, criterion, rank, step)
    optimizer.step()
    return loss.detach()


def probe_of(model: nn.Module, criterion: nn.Module, rank: int = 0) -> hdet.Probe:
    """Every rank probes batches of its own."""
    return hdet.Probe(
        lambda pair: criterion(model(pair[0]), pair[1]),
        [batch(rank, 10_000 + i, 64) for i in range(4)],
        model=model,
        per_sync=2,
    )


@contextmanager
def listening() -> Iterator[list[str]]:
    """What hdet logs on this rank."""
    heard: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    listener = Listener()
    logging.getLogger("hdet").addHandler(listener)
    try:
        yield heard
    finally:
        logging.getLogger("hdet").removeHandler(listener)


def answer_to(call: Callable[[], object]) -> Answer:
    began = time.monotonic()
    try:
        return "", repr(call()), time.monotonic() - began
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - began


def all_equal(tensors: list[Tensor]) -> bool:
    return all(torch.equal(tensors[0], other) for other in tensors)


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    names = {name for state in optimizer.state.values() for name in state} - {"step"}
    return {
        name: torch.cat([state[name].reshape(-1).clone() for state in optimizer.state.values()])
        for name in sorted(names)
    }


def timeless(record: SyncRecord) -> str:
    return replace(record, milliseconds=0.0).to_json()
