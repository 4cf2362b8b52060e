"""Numbers that the forward pass reads, one for each replica: tensors that stand in for them within a pass.

Outside of a pass the number itself stands where it was: the base. The tensors are filled in place and stay
where they are in memory, so that a recorded pass reads what was written since.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from hdet.replicas.stacked.functions import ByRow

__all__ = ["StandIn", "StandIns"]


class StandIn:
    """The values of all replicas for what one attribute holds; :meth:`StandIns.of` makes it.

    Args:
        owner: the module, or whatever else the loss reads the attribute of.
        attribute: a number, or a tensor of one element.
        rows: a tensor with a first dimension for the replicas.
        in_pass: whether the pass has them anyway, as it has the rows of a buffer.
    """

    def __init__(self, owner: Any, attribute: str, rows: Tensor, *, in_pass: bool) -> None:
        self.owner = owner
        self.attribute = attribute
        self.rows = rows
        self.in_pass = in_pass
        #: The number that all rows hold; None while each has its own.
        self._number: float | None = None
        self.follow_()

    @torch.no_grad()
    def part_(self, values: Tensor) -> None:
        """Let each replica have its own value, until :meth:`follow_`."""
        self._number = None
        self._apart = True
        self.rows.copy_(values.view(-1, *[1] * (self.rows.dim() - 1)))

    @torch.no_grad()
    def follow_(self) -> None:
        """Let all replicas have what the attribute holds."""
        self._apart = False
        held = getattr(self.owner, self.attribute)
        if isinstance(held, Tensor):
            self.rows.copy_(held.expand_as(self.rows))
        elif held != self._number:
            self.rows.fill_(held)
            self._number = held

    def keep_up_(self) -> None:
        """Follow a number that somebody has written since. A tensor may lie on a device: nobody asks it."""
        if not self._apart and not isinstance(getattr(self.owner, self.attribute), Tensor):
            self.follow_()


class StandIns:
    """All that stands in for something within a pass.

    They stay for good: a pass that was recorded with them goes on reading them.

    Args:
        size: how many replicas there are.
        matrices: what they train, of whose type and on whose device numbers are.
    """

    def __init__(self, size: int, matrices: Sequence[Tensor]) -> None:
        self._size = size
        self._device = matrices[0].device
        self._dtype = reduce(torch.promote_types, (matrix.dtype for matrix in matrices), torch.float32)
        self._all: list[StandIn] = []

    def __len__(self) -> int:
        return len(self._all)

    def of(self, owner: Any, attribute: str, rows: Tensor | None = None) -> StandIn:
        """The one for an attribute; ``rows``: where the values lie already, as those of a buffer do."""
        for known in self._all:
            if known.owner is owner and known.attribute == attribute:
                return known
        made = self._room_for(owner, attribute) if rows is None else rows
        self._all.append(StandIn(owner, attribute, made, in_pass=rows is not None))
        return self._all[-1]

    def _room_for(self, owner: Any, attribute: str) -> Tensor:
        held = getattr(owner, attribute)
        if isinstance(held, nn.Parameter):
            raise TypeError(
                "StackedReplicas: what replicas differ in must be a number or a buffer, got an nn.Parameter "
                f"in {type(owner).__name__}.{attribute}; register it as a buffer, or keep a float"
            )
        if isinstance(held, Tensor):
            return torch.empty(self._size, *held.shape, dtype=held.dtype, device=held.device)
        # At least float32, as torch's own kernels have a number. Doubles would make doubles of a mean.
        return torch.empty(self._size, dtype=self._dtype, device=self._device)

    def keep_up_(self) -> None:
        """Follow the numbers that somebody has written since."""
        for one in self._all:
            one.keep_up_()

    @property
    def rows(self) -> list[Tensor]:
        """The values of those that take a number's place, for ``torch.vmap``."""
        return [one.rows for one in self._all if not one.in_pass]

    @contextmanager
    def standing(self, values: Sequence[Tensor]) -> Iterator[None]:
        """Within, one replica's values stand where the numbers did, and torch's functions take them."""
        if not self._all:
            yield
            return
        placed = [one for one in self._all if not one.in_pass]
        before = [getattr(one.owner, one.attribute) for one in placed]
        try:
            for one, value in zip(placed, values, strict=True):
                setattr(one.owner, one.attribute, value)
            with ByRow():
                yield
        finally:
            for one, held in zip(placed, before, strict=True):
                setattr(one.owner, one.attribute, held)
