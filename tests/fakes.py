"""Stand-ins that several test files share: other ranks without processes, a module with a temperature."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from hdet.hyperparameters import Axis, LearningRate
from hdet.loop.levels import levels
from hdet.loop.policy import Context, Policy
from hdet.replicas import SoloReplica
from hdet.replicas.averaging import always
from hdet.replicas.base import Mean
from hdet.replicas.processes import agree_among


class Alike(SoloReplica):
    """Rank r of N; the others say and hold the same as this one. In round 0 its level is z_r."""

    def __init__(self, rank: int = 1, size: int = 2) -> None:
        super().__init__()
        self.rank, self.size = rank, size

    def gather(self, row: Sequence[float]) -> list[list[float]]:
        return [list(row)] * self.size


class Faster(SoloReplica):
    """Rank 1 of two, and the one that does better."""

    rank, size = 1, 2

    def gather(self, row: Any) -> list[list[float]]:
        return [[*row[:3], row[3] + row[4], *row[4:]], list(row)]  # its mean loss is 1 higher


class Thread(SoloReplica):
    """Rank r of N threads, each with a model of its own: they wait for one another as processes do."""

    def __init__(self, rank: int, said: list[Any], barrier: threading.Barrier) -> None:
        super().__init__()
        self.rank, self.size = rank, len(said)
        self._said, self._barrier = said, barrier

    def exchange(self, item: Any) -> list[Any]:
        self._said[self.rank] = item
        self._barrier.wait()
        every = list(self._said)
        self._barrier.wait()
        return every

    def gather(self, row: Sequence[float | Tensor]) -> list[list[float]]:
        return self.exchange([float(value) for value in row])

    def agree(self, caller: str, facts: Mapping[str, str]) -> None:
        agree_among(caller, facts, self.exchange)

    def plan_mean(self, tensors: Sequence[Tensor], buffers: Sequence[Tensor] = ()) -> Mean:
        def mean(sound: Callable[[], bool] = always) -> tuple[str, ...]:
            if not sound():
                return ()
            for tensor in (*tensors, *buffers):
                every = self.exchange(tensor.detach().clone())
                tensor.detach().copy_(torch.stack(every).mean(0))
            return ()

        return mean


def on_threads(count: int, act: Callable[[Thread], Any], seconds: float = 10.0) -> list[Any]:
    """What it returns on every rank, or the exception that it raises there."""
    said, barrier = [None] * count, threading.Barrier(count, timeout=seconds)
    with ThreadPoolExecutor(count) as pool:
        results = [pool.submit(act, Thread(rank, said, barrier)) for rank in range(count)]
    return [result.exception() or result.result() for result in results]


def multipliers(size: int, spread: float) -> tuple[float, ...]:
    """ρ of every replica in round 0 (Eq. 1)."""
    (axis,) = LearningRate(spread).bind(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0))
    return axis.multipliers(levels(size))


class Attention(nn.Module):
    """Logits times a temperature, which is a number or a buffer."""

    def __init__(self, scale: float | Tensor) -> None:
        super().__init__()
        if isinstance(scale, Tensor):
            self.register_buffer("scale", scale)
        else:
            self.scale = scale

    def forward(self, logits: Tensor) -> Tensor:
        return logits * self.scale


P = TypeVar("P", bound=Policy)


def bound(policy: P, axes: Sequence[Axis]) -> P:
    """A policy with its hyperparameters, in a process by itself."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    policy.bind(axes, Context("test", optimizer, SoloReplica(), None, True, tuple, nullcontext))
    return policy
