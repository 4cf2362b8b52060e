"""A tiny regression in four parameter groups that both the twin and the real ranks can train."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Regression(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(w.to(dtype)) for w in start()])

    def forward(self, x: Tensor) -> Tensor:
        return predict(list(self.weights), x)


def start() -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    shapes = [(5, 8), (8,), (8, 1), (1,)]
    return [0.5 * torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes]


def predict(weights: Sequence[Tensor], x: Tensor) -> Tensor:
    a, b, c, d = weights
    return torch.tanh(x @ a + b) @ c + d


def batch(rank: int, step: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(16, 5, generator=generator, dtype=torch.float64)
    y = torch.sin(x[:, :1]) * x[:, 1:2]
    return x.to(dtype), y.to(dtype)


def loss(weights: Sequence[Tensor], rank: int, step: int) -> Tensor:
    x, y = batch(rank, step)
    return (predict(weights, x) - y).square().mean()


def build(
    kind: str = "sgd", dtype: torch.dtype = torch.float64, groups: int = 4
) -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    """DDP around the regression, and an optimizer with one or four parameter groups."""
    model = DistributedDataParallel(Regression(dtype))
    parameters: Any = list(model.parameters())
    if groups == 4:
        parameters = [{"params": [p]} for p in parameters]
    optimizer: torch.optim.Optimizer
    if kind == "sgd":
        optimizer = torch.optim.SGD(parameters, lr=1.0, momentum=0.9)
    elif kind == "adam":
        optimizer = torch.optim.Adam(parameters, lr=1.0)
    else:
        optimizer = torch.optim.AdamW(parameters, lr=1.0)
    return model, optimizer


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int) -> Tensor:
    dtype = next(model.parameters()).dtype
    x, y = batch(rank, step, dtype)
    value = (model(x) - y).square().mean()
    optimizer.zero_grad()
    value.backward()
    optimizer.step()
    return value


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])
