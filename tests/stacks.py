"""A small model and its replicas in one process, for the tests of StackedReplicas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import hdet


def mlp(seed: int = 0, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Dropout(dropout), nn.Linear(5, 1))


def loss_fn(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def stack(
    model: nn.Module, size: int = 4, make: Callable[..., Optimizer] = SGD, lr: float = 0.1, **options: Any
) -> hdet.StackedReplicas:
    return hdet.StackedReplicas(model, make(model.parameters(), lr=lr), size, **options)


def train(replicas: hdet.StackedReplicas, x: Tensor, fn: Callable[..., Tensor] = loss_fn) -> Tensor:
    losses = replicas.losses(fn, x)
    replicas.optimizer.zero_grad(set_to_none=False)  # the memory of the gradient is used again
    replicas.backward(losses)
    replicas.optimizer.step()
    return losses


def batches(count: int, rows: int = 16, seed: int = 1) -> Tensor:
    return torch.randn(count, rows, 3, generator=torch.Generator().manual_seed(seed))


def rows_of(replicas: hdet.StackedReplicas) -> Tensor:
    return torch.stack([torch.cat([s.flatten() for s in replicas.slices(r)]) for r in range(replicas.size)])


def alone(model: nn.Module, optimizer: Optimizer, parts: list[Tensor]) -> Tensor:
    """The weights of one model trained by torch itself."""
    for part in parts:
        optimizer.zero_grad()
        loss_fn(model, part).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
