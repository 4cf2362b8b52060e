"""What a replica is judged by. The published signal is its mean training loss over the interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import SupportsFloat

import torch
from torch import Tensor

__all__ = ["TrainingLoss", "mean_losses"]

_FLUSH = 32


class TrainingLoss:
    """Mean of the losses handed over since the last sync, without ever waiting for the device.

    A loss on an accelerator is only kept (its storage, not its graph) and summed there in batches; one on
    the CPU is read at once. Sums are float64 where the device has it.
    """

    def __init__(self) -> None:
        self.count = 0
        self.restored = (0.0, 0)
        self._sum = 0.0
        self._device_sum: Tensor | None = None
        self._pending: dict[int, Tensor] = {}
        self._storage_is_reused = False

    def add(self, loss: Tensor | SupportsFloat) -> None:
        """Take one loss: a tensor with one element, or anything that ``float()`` takes."""
        if not isinstance(loss, Tensor):
            self._sum += float(loss)
        elif not loss.is_cpu:
            self._keep(loss)
        else:
            try:
                self._sum += loss.item()
            except RuntimeError:
                raise _not_a_scalar(loss) from None
        self.count += 1

    def row(self) -> list[float]:
        """What this replica tells the others: sum and count, and how much of both is from before a resume."""
        return [self.total(), float(self.count), self.restored[0], float(self.restored[1])]

    def total(self) -> float:
        """The sum since the last reset. Waits for the device."""
        self._flush()
        on_device = 0.0 if self._device_sum is None else float(self._device_sum)
        return self._sum + on_device

    def reset(self, restored: tuple[float, int] = (0.0, 0)) -> None:
        """Begin an interval, or take up an interrupted one: sum and count of the losses before it."""
        self.restored = restored
        self._sum, self.count = restored
        self._device_sum = None
        self._pending.clear()

    def _keep(self, loss: Tensor) -> None:
        if loss.numel() != 1:
            raise _not_a_scalar(loss)
        address = loss.data_ptr()
        # A loss that is still kept cannot have been freed. The same address again therefore means that
        # one storage is written over at every step (the static output of a CUDA graph): what was kept
        # there is lost, and from now on each loss is summed at once.
        if address in self._pending:
            self._storage_is_reused = True
            self.count -= 1
        self._pending[address] = loss.detach().reshape(()) if loss.dim() else loss.detach()
        if self._storage_is_reused or len(self._pending) >= _FLUSH:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        losses = torch.stack(list(self._pending.values()))
        batch = losses.sum(dtype=torch.float32 if losses.device.type == "mps" else torch.float64)
        self._device_sum = batch if self._device_sum is None else self._device_sum + batch
        self._pending.clear()


def mean_losses(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """The mean loss of every replica from all their rows; NaN for one that saw no loss.

    Losses from before a resume count only if every replica brought as many: where all ranks resume from
    rank 0's state, rank 0 alone would be judged by older, higher losses.

    >>> mean_losses([[4.0, 2.0, 0.0, 0.0], [6.0, 2.0, 0.0, 0.0]])
    (2.0, 3.0)
    >>> mean_losses([[94.0, 11.0, 90.0, 9.0], [6.0, 2.0, 0.0, 0.0]])
    (2.0, 3.0)
    """
    alike = len({restored for *_, restored in rows}) == 1
    sums = [
        (total, count) if alike else (total - before, count - earlier)
        for total, count, before, earlier in rows
    ]
    return tuple(total / count if count else math.nan for total, count in sums)


def _not_a_scalar(loss: Tensor) -> ValueError:
    return ValueError(
        f"step(loss): loss must be a scalar, got a tensor of shape {tuple(loss.shape)}; reduce it first, "
        "e.g. loss.mean()"
    )
