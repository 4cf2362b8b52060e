"""The published signal: a replica's mean training loss over the round, taken without waiting for the
device."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, SupportsFloat

import torch
from torch import Tensor

from hdet.loop.policy import Sample

__all__ = ["TrainingLoss", "mean_losses", "sample_of"]

_FLUSH = 32


class TrainingLoss:
    """Mean of the losses given to ``step`` since the last sync, without ever waiting for the device.

    A loss on an accelerator is only kept (its storage, not its graph) and summed there in batches; one on
    the CPU is read at once. Sums are float64 where the device has it.

    Args:
        replicas: how many this process holds; each loss is then a tensor of theirs, and so are the sums.
    """

    def __init__(self, replicas: int = 1) -> None:
        self.count = 0
        self._replicas = replicas
        self.restored: tuple[float | Tensor, int] = (0.0, 0)
        #: Sum and count of every rank, where they were gathered since the last loss.
        self._everyone: list[list[float]] = []
        self._sum: float | Tensor = 0.0
        self._device_sum: Tensor | None = None
        #: Of the squares, for one replica; what was before a resume is not known.
        self._squares = 0.0
        self._device_squares: Tensor | None = None
        self._pending: dict[int, Tensor] = {}
        self._storage_is_reused = False
        #: The last loss, without keeping a tensor, and its graph, alive.
        self._last: Callable[[], object] = lambda: None

    def add(self, loss: Tensor | SupportsFloat) -> None:
        """Add one loss: a tensor with one element, or anything that ``float()`` takes."""
        if self._replicas > 1:
            self._check_rows(loss)
        if isinstance(loss, Tensor):
            if not loss.is_cpu:
                self._keep(loss)
            elif self._replicas > 1:
                self._sum = self._sum + loss.detach().double()
            else:
                try:
                    value = loss.item()
                except RuntimeError:
                    raise _not_a_scalar(loss) from None
                self._sum += value
                self._squares += value * value
            self._last = weakref.ref(loss)
        else:
            value = float(loss)
            self._sum += value
            self._squares += value * value
            self._last = lambda: loss
        self.count += 1
        if self._everyone:
            self._everyone = []

    def _check_rows(self, loss: object) -> None:
        if not isinstance(loss, Tensor) or loss.shape != (self._replicas,):
            got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
            raise ValueError(
                f"step(loss): loss must be the losses of the {self._replicas} replicas in this process, as "
                f"StackedReplicas.losses gives them, got {got}"
            )

    def has_taken(self, loss: object) -> bool:
        """Whether this very object was the last one that was taken. Where the optimizer has not stepped since
        it is no other micro-batch: Accelerate steps a scheduler once for every process."""
        return loss is not None and self._last() is loss

    def row(self) -> list[float | Tensor]:
        """Sum and count of this replica, how much of both is from before a resume, and the sum of squares."""
        before, earlier = self.restored
        total, squares = self.total(), math.nan
        if self._replicas == 1 and not earlier:
            squares = self._squares + (0.0 if self._device_squares is None else float(self._device_squares))
        return [total, float(self.count), before, float(earlier), squares]

    def total(self) -> float | Tensor:
        """The sum since the last reset. Waits for the device."""
        self._flush()
        if self._device_sum is None:
            return self._sum
        on_device = self._device_sum.cpu().double()
        return self._sum + (on_device if self._replicas > 1 else float(on_device))

    def meet(self, rows: list[list[float]]) -> None:
        """Learn the sum and count of every rank: until the next loss, the state of one is that of all."""
        if len(rows) > 1 and self._replicas == 1:
            self._everyone = rows

    def state_dict(self, rank: int) -> dict[str, Any]:
        """The sum of an unfinished round, and whose it is; where all have met, those of all ranks."""
        everyone = [(total, int(count)) for total, count in self._everyone]
        total = self.total()
        plain = total.tolist() if isinstance(total, Tensor) else total
        return {"rank": rank, "sum": plain, "count": self.count, "everyone": everyone}

    def load_state_dict(self, saved: Mapping[str, Any], rank: int, ranks: int) -> None:
        """Take up an interrupted round, if it was this rank's; else begin one."""
        everyone = saved["everyone"]
        if len(everyone) == ranks:
            self.reset(everyone[rank])
            return
        replicas = len(saved["sum"]) if isinstance(saved["sum"], list) else 1
        own = saved["rank"] == rank and replicas == self._replicas
        self.reset((saved["sum"], saved["count"]) if own else (0.0, 0))

    def reset(self, restored: tuple[float | list[float], int] = (0.0, 0)) -> None:
        """Begin a round, or take up an interrupted one: sum and count of the losses before it."""
        before, self.count = restored
        self._everyone = []
        self._sum = torch.tensor(before, dtype=torch.float64) if isinstance(before, list) else before
        self.restored = (self._sum, self.count)
        self._squares = 0.0
        self._device_sum = self._device_squares = None
        self._pending.clear()

    def _keep(self, loss: Tensor) -> None:
        if loss.numel() != self._replicas:
            raise _not_a_scalar(loss)
        address = loss.data_ptr()
        # A loss that is still kept cannot have been freed. The same address again therefore means that
        # one storage is written over at every step (the static output of a CUDA graph): what was kept
        # there is lost, and from now on each loss is summed at once.
        if address in self._pending:
            self._storage_is_reused = True
            self.count -= 1
        single = self._replicas == 1 and loss.dim()
        self._pending[address] = loss.detach().reshape(()) if single else loss.detach()
        if self._storage_is_reused or len(self._pending) >= _FLUSH:
            self._flush()

    def _flush(self) -> None:
        if not self._pending:
            return
        losses = torch.stack(list(self._pending.values()))
        exact = torch.float32 if losses.device.type == "mps" else torch.float64
        batch = losses.sum(0, dtype=exact)
        self._device_sum = batch if self._device_sum is None else self._device_sum + batch
        if self._replicas == 1:
            squares = losses.to(exact).square().sum()
            self._device_squares = squares if self._device_squares is None else self._device_squares + squares
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
    alike = len({row[3] for row in rows}) == 1
    sums = [
        (total, count) if alike else (total - before, count - earlier)
        for total, count, before, earlier, *_ in rows
    ]
    return tuple(total / count if count else math.nan for total, count in sums)


def sample_of(rows: Sequence[Sequence[float]]) -> Sample:
    """The losses of all replicas together, from all their rows.

    >>> sample_of([[4.0, 2.0, 0.0, 0.0, 10.0], [6.0, 2.0, 0.0, 0.0, 18.0]])
    Sample(mean=2.5, spread=1.0, count=4)
    """
    total, count, squares = (math.fsum(row[k] for row in rows) for k in (0, 1, 4))
    if count < 2:
        return Sample()
    mean = total / count
    variance = (squares - count * mean * mean) / (count - 1)
    return Sample(mean, math.sqrt(variance) if variance > 0 else 0.0 * variance, int(count))


def _not_a_scalar(loss: Tensor) -> ValueError:
    return ValueError(
        f"step(loss): loss must be a scalar, got a tensor of shape {tuple(loss.shape)}; reduce it first, "
        "e.g. loss.mean()"
    )
