"""The protocol: how many replicas there are, and how they exchange numbers and average tensors.

A replica may lie on several ranks, each with a shard of it. A number about a replica (a loss, a norm, a
distance) is then taken over all its ranks.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol, TypeVar, cast

import torch.distributed as dist
from torch import Tensor, nn

from hdet.replicas.averaging import always
from hdet.replicas.norms import norm_of

__all__ = ["AFTER_INIT", "Mean", "Replicas", "SoloReplica", "raise_together"]

T = TypeVar("T")

#: Where a framework has made its process group, for error messages.
AFTER_INIT = (
    "after torch.distributed.init_process_group (Transformers: after TrainingArguments; Accelerate: after "
    "Accelerator(); Lightning: in configure_optimizers)"
)


class Mean(Protocol):
    """Replaces tensors by their mean over the replicas, in place; returns warnings about them.

    It asks ``sound`` once, while the first sums are under way: where that says no, or raises, nothing is
    written.
    """

    def __call__(self, sound: Callable[[], bool] = always) -> tuple[str, ...]: ...


class Replicas(ABC):
    """N copies of one model that differ in what they explore."""

    #: Of the first replica that this process holds.
    rank: int
    size: int
    #: How many replicas this process holds. Where there are several, tensors have a first dimension for them.
    local_count: int = 1
    #: On how many ranks one replica lies, and which of them this one is.
    ranks_per_replica: int = 1
    rank_in_replica: int = 0
    #: Whether a state can be loaded with another number of ranks per replica; else only by the same rank.
    can_reshard: bool = True
    #: Who shares gradients, where the replicas themselves see to it; a number is that of arms.
    gradients: Literal["all", "none"] | int | None = None

    @property
    def world_size(self) -> int:
        """The number of ranks, over all replicas."""
        return self.size * self.ranks_per_replica

    @property
    def world_rank(self) -> int:
        """This rank's number among all ranks; the ranks of one replica are consecutive."""
        return self.rank * self.ranks_per_replica + self.rank_in_replica

    @abstractmethod
    def gather(self, row: Sequence[float | Tensor]) -> list[list[float]]:
        """The row of every replica, in order. All rows have the same length; NaN is kept.

        The row of a replica on several ranks is the mean of theirs: a loss on the data of all of them. Where
        this process holds several replicas, an item is one number for all or a tensor of each one's.
        """

    def gather_ranks(self, row: Sequence[float | Tensor]) -> list[list[float]]:
        """The row of every rank, in order of :attr:`world_rank`. :meth:`by_replica` takes their means."""
        return self.gather(row)

    def start_gather(self, row: Sequence[float | Tensor]) -> Callable[[], list[list[float]]]:
        """As :meth:`gather_ranks`, which the returned function waits for: other collectives may begin beside
        it."""
        rows = self.gather_ranks(row)
        return lambda: rows

    def by_replica(self, rows: list[list[float]]) -> list[list[float]]:
        """What :meth:`gather` returns for the rows of all ranks."""
        return [
            [_mean(column) for column in zip(*rows[at : at + self.ranks_per_replica], strict=True)]
            for at in range(0, len(rows), self.ranks_per_replica)
        ]

    def shard_of(self, parameter: Tensor) -> tuple[int, int]:
        """Which shard of a parameter lies on this rank, and into how many the replica has cut it."""
        return 0, 1

    def share_of(self, parameter: Tensor) -> float:
        """The weight of this rank's shard in a sum of squares over the replica's ranks: what several ranks
        hold counts once."""
        return self.shard_of(parameter)[1] / self.ranks_per_replica

    def replica_norms(self, norms: Sequence[float]) -> list[float]:
        """Norms over this replica, from those of each of its ranks. A collective of these ranks."""
        return list(norms)

    def replica_sum(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over the ranks of this replica, the same on all. A collective of them."""
        return tensor

    def norm_of(self, tensors: Sequence[Tensor]) -> float | Tensor:
        """The norm of tensors on this rank (of each replica, if this process holds several); NaN if any value
        is not finite. Waits for the device."""
        return norm_of(tensors)

    def agree(self, caller: str, facts: Mapping[str, str]) -> None:  # noqa: B027 — one process agrees
        """Raise on every rank, naming the values, unless all ranks hold the same facts."""

    @abstractmethod
    def plan_mean(self, tensors: Sequence[Tensor], buffers: Sequence[Tensor] = ()) -> Mean:
        """Prepare, once, the in-place mean of floating ``tensors`` and ``buffers`` (Eq. 3).

        Integer buffers cannot be averaged: they become their maximum, and a difference is reported.
        """

    def before_first_step(self, caller: str) -> None:  # noqa: B027 — only a single process checks
        """Called before the first step. Raises RuntimeError if a process group was made since."""

    def about_to(self, doing: str) -> None:  # noqa: B027 — only processes wait
        """Name what this rank does next with the others, for the error if they do not join in."""

    def buffers_of(self, model: nn.Module | None) -> dict[str, Tensor]:
        """The replicas' buffers by name, of the model or of a module in it."""
        return {} if model is None else dict(model.named_buffers())

    def parts_of(self, parameter: Tensor) -> list[Tensor]:
        """One replica's own parameters that a trained tensor consists of, as the model has them."""
        return [parameter]

    def rows_of(self, tensor: Tensor) -> list[Tensor]:
        """A tensor of every replica that this process holds."""
        return [tensor]

    def deliver_(self) -> None:  # noqa: B027 — most train the model itself
        """Write the replicas' weights into the user's model."""

    def attempt(self, what: str, act: Callable[[], T]) -> tuple[T | None, Exception | None]:
        """What ``act`` returns, or what it raises, for :func:`raise_together` to raise on all ranks."""
        try:
            return act(), None
        except Exception as error:
            return None, error

    def together(self, what: str, act: Callable[[], T]) -> T:
        """Call ``act``; if it raises on one rank, raise on all, so that no rank waits for ever."""
        result, failure = self.attempt(what, act)
        rows = self.gather_ranks([float(failure is not None)])
        raise_together(what, failure, [row[0] for row in rows])
        return cast(T, result)


class SoloReplica(Replicas):
    """N = 1. The mean of one replica is itself, bit for bit.

    Args:
        found: there was no process group when it was made, so one that appears before the first step raises.
    """

    rank = 0
    size = 1
    _found = False

    def __init__(self, *, found: bool = False) -> None:
        self._found = found

    def before_first_step(self, caller: str) -> None:
        if self._found and dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            raise RuntimeError(
                f"{caller}: the process group must exist before it is made; it was made for one process "
                f"alone, and now there are {dist.get_world_size()}; build it {AFTER_INIT}"
            )
        self._found = False

    def gather(self, row: Sequence[float | Tensor]) -> list[list[float]]:
        return [[float(value) for value in row]]

    def plan_mean(self, tensors: Sequence[Tensor], buffers: Sequence[Tensor] = ()) -> Mean:
        def itself(sound: Callable[[], bool] = always) -> tuple[str, ...]:
            sound()
            return ()

        return itself


def raise_together(what: str, failure: Exception | None, failed: Sequence[float]) -> None:
    """Raise this rank's ``failure``, or that it ``failed`` (1.0) on another."""
    if failure is not None:
        raise failure
    if any(failed):
        raise RuntimeError(f"{what} raised on rank {failed.index(1.0)}; see that rank's error")


def _mean(column: Sequence[float]) -> float:
    """The mean; of equal values that value, bit for bit."""
    return column[0] if len(set(column)) == 1 else math.fsum(column) / len(column)
