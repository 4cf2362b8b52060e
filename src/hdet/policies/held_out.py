"""The signal that regularisers need: each replica's loss on held-out batches, with the regularisers off.

Every replica measures its own weights, then, on the same batches, the mean of all. What counts is the
difference: how much better than the mean this replica is. It does not matter then whether the ranks
probe the same batches or each its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor

from hdet.probes import Probe
from hdet.replicas import Replicas

__all__ = ["HeldOut", "judge"]


class HeldOut:
    """Probes one replica before and after the mean.

    Args:
        probe: measures the loss.
        regularisers_off: a context in which they are.
        replicas: whose losses the probe gives.
    """

    def __init__(
        self,
        probe: Probe,
        regularisers_off: Callable[[], AbstractContextManager[None]],
        replicas: Replicas,
    ) -> None:
        self._probe = probe
        self._regularisers_off = regularisers_off
        self._replicas = replicas
        self._batches: list[Any] = []
        #: At this replica's own weights, since the last sync.
        self.own_loss: float | Tensor | None = None

    def at_own(self) -> list[float | Tensor]:
        """The loss at this replica's weights, on new batches."""
        self.own_loss = None
        self._batches = self._probe.draw()
        self.own_loss = self._measure()
        return [self.own_loss]

    def at_mean(self) -> list[float | Tensor]:
        """The loss on the same batches, the weights being by now the mean's."""
        loss = self._measure()
        self._batches = []
        return [loss]

    def _measure(self) -> float | Tensor:
        here = self._replicas.here
        with self._regularisers_off(), self._buffers_kept():
            losses = self._probe.losses_of_each(self._batches, here)
        means = [_mean(column) for column in zip(*losses, strict=True)]
        return means[0] if here == 1 else torch.tensor(means, dtype=torch.float64)

    @contextmanager
    def _buffers_kept(self) -> Iterator[None]:
        """The probe puts the model's buffers back, but does not know of those stacked in this process."""
        stacked = self._replicas.buffers_of(self._probe.model) if self._replicas.here > 1 else []
        before = [buffer.clone() for buffer in stacked]
        try:
            yield
        finally:
            for buffer, value in zip(stacked, before, strict=True):
                buffer.copy_(value)


def _mean(losses: Sequence[float]) -> float:
    return math.fsum(losses) / len(losses) if all(map(math.isfinite, losses)) else math.nan


def judge(rows: Sequence[tuple[float, float]]) -> tuple[tuple[float, ...], float]:
    """From (own loss, the mean model's loss) of every replica: losses that can be compared, and the mean's.

    >>> judge([(1.0, 1.5), (2.0, 1.5)])
    ((1.0, 2.0), 1.5)
    >>> judge([(1.0, 1.5), (3.0, 2.5)])  # the second one's batches are harder
    ((1.5, 2.5), 2.0)
    """
    known = [mean for _, mean in rows if math.isfinite(mean)]
    if not known:  # without the mean there is nothing to compare with but one another
        return tuple(own for own, _ in rows), math.nan
    level = math.fsum(known) / len(known)
    return tuple(own - mean + level for own, mean in rows), level
