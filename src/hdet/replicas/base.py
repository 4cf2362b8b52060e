"""The one thing the engine knows of other replicas: how many there are, and how to meet them.

A replica may itself be spread over several ranks, each of which holds a *part* of it. What is said of a
replica (a loss, a norm, a distance) is then taken over all its parts.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

from torch import Tensor, nn

from hdet.replicas.norms import norm_of

__all__ = ["Mean", "Replicas", "Undone"]

#: Replaces tensors by their mean over the replicas, in place; returns what was odd about them.
Mean = Callable[[], tuple[str, ...]]


class Undone(RuntimeError):
    """A meeting failed half-way, and what it did was taken back; training goes on until the next one."""


class Replicas(ABC):
    """N copies of one model that differ in what they explore."""

    #: Of the first replica that this process holds. Both are to be read when they are needed, not kept.
    rank: int
    size: int
    #: Whether replicas come and go. Others are then known within a :meth:`meeting` alone; outside of it
    #: rank and size are those of the last one, and a replica gathers, and agrees with, itself.
    elastic: bool = False
    #: How many replicas this process holds. Where there are several, tensors have a first dimension for them.
    here: int = 1
    #: On how many ranks one replica lies, and which of them this one is.
    parts: int = 1
    part: int = 0
    #: Whether a state can be cut into other parts than these; else it is of this part, of so many, for good.
    reshards: bool = True
    #: Who shares gradients, where the replicas themselves see to it.
    gradients: Literal["all", "none"] | None = None
    #: What this process has sent to others since it began, where a ring is how sums travel.
    sent_bytes: int = 0

    @property
    def ranks(self) -> int:
        """How many there are in all."""
        return self.size * self.parts

    @property
    def place(self) -> int:
        """Of this rank among all of them, a replica's parts together."""
        return self.rank * self.parts + self.part

    @abstractmethod
    def gather(self, row: Sequence[float | Tensor]) -> list[list[float]]:
        """The row of every replica, in order. All rows have the same length; NaN passes unharmed.

        Of a replica in parts it is the mean of theirs: a loss on the data of all of them. Where this process
        holds several replicas, an item is one number for all or a tensor of each one's.
        """

    def gather_ranks(self, row: Sequence[float | Tensor]) -> list[list[float]]:
        """The row of every rank, in order of :attr:`place`; :meth:`of_replicas` makes replicas' of them."""
        return self.gather(row)

    def of_replicas(self, rows: list[list[float]]) -> list[list[float]]:
        """What :meth:`gather` would have given for the rows of all ranks."""
        return [
            [_mean(column) for column in zip(*rows[at : at + self.parts], strict=True)]
            for at in range(0, len(rows), self.parts)
        ]

    def unlike(self, row: Sequence[float]) -> list[int]:
        """The ranks whose row is not that of the same part of the first replica. A collective; all know."""
        rows = self.gather_ranks(row)
        return [r for r, other in enumerate(rows) if other != rows[r % self.parts]]

    def shard_of(self, parameter: Tensor) -> tuple[int, int]:
        """Which shard of a parameter lies on this rank, and into how many the replica has cut it."""
        return 0, 1

    def share_of(self, parameter: Tensor) -> float:
        """What squares of this rank's shard count in a sum over the parts: what several hold counts once."""
        return self.shard_of(parameter)[1] / self.parts

    def whole_norms(self, norms: Sequence[float]) -> list[float]:
        """Norms over this replica, from those of each part. A collective of the parts, if there are any."""
        return list(norms)

    def whole_sum(self, tensor: Tensor) -> Tensor:
        """The sum of a tensor over the parts of this replica, the same on all of them. A collective of the
        parts, if there are any."""
        return tensor

    def norm_of(self, tensors: Sequence[Tensor]) -> float | Tensor:
        """The norm of tensors on this rank, of several replicas here each one's; NaN if any value is not
        finite. Waits for the device."""
        return norm_of(tensors)

    def anywhere(self, seen: bool) -> bool:
        """Whether any part of this replica has seen it. A collective of the parts."""
        return self.whole_norms([float(seen)])[0] > 0

    @abstractmethod
    def agree(self, caller: str, facts: Mapping[str, str]) -> None:
        """Raise on every rank, saying who believes what, unless all ranks hold the same facts."""

    @abstractmethod
    def plan_mean(self, tensors: Sequence[Tensor], buffers: Sequence[Tensor] = ()) -> Mean:
        """Prepare, once, the in-place mean of floating ``tensors`` and ``buffers`` (Eq. 3).

        Integer buffers cannot be averaged: they become their maximum, and a difference is reported.
        """

    def begin(self, caller: str) -> None:  # noqa: B027 — most were told who they are
        """The first step is about to be taken. Raises RuntimeError where others are there by now."""

    @property
    def several(self) -> bool:
        """Whether there are others, or may be."""
        return self.elastic or self.size > 1

    def about_to(self, doing: str) -> None:  # noqa: B027 — most never wait
        """What this rank is about to do with the others: told if it waits for them in vain."""

    def meeting(self) -> AbstractContextManager[None]:
        """Within, those who are alive act together. Raises :class:`Undone` on leaving where that failed: all
        that was given to :meth:`keep` is then as it was. Who joined has loaded the others' state on entering.
        """
        return nullcontext()

    def keep(self, tensors: Sequence[Tensor]) -> None:  # noqa: B027 — most cannot undo a mean
        """These will change in this meeting, and are to be put back if it fails."""

    def carry(  # noqa: B027 — most have nobody to hand it to
        self, name: str, load: Callable[[Mapping[str, Any]], None], save: Callable[[], dict[str, Any]]
    ) -> None:
        """The state that one who joins is to load."""

    def buffers_of(self, model: nn.Module | None) -> list[Tensor]:
        """What the replicas hold beside parameters."""
        return [] if model is None else list(model.buffers())

    def rows_of(self, tensor: Tensor) -> list[Tensor]:
        """A tensor of every replica that this process holds."""
        return [tensor]

    def deliver_(self) -> None:  # noqa: B027 — most train the model itself
        """Let the model that the user knows hold what the replicas have become."""

    def together(self, what: str, measure: Callable[[], Sequence[float | Tensor]]) -> list[float | Tensor]:
        """What may fail on one rank fails on all of them, so that none is left waiting."""
        failure: Exception | None = None
        measured: list[float | Tensor] = []
        try:
            measured = list(measure())
        except Exception as error:
            failure = error
        failed = [row[0] for row in self.gather_ranks([float(failure is not None)])]
        if failure is not None:
            raise failure
        if any(failed):
            raise RuntimeError(f"{what} raised on rank {failed.index(1.0)}; its own error says why")
        return measured


def _mean(column: Sequence[float]) -> float:
    """Of values that are one and the same, that value, bit for bit."""
    return column[0] if len(set(column)) == 1 else math.fsum(column) / len(column)
