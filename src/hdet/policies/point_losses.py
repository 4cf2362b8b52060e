"""The losses at a window's points: measured on each rank, and taken apart as they come from all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from hdet.best import Keeper
from hdet.controllers import Window
from hdet.weights.trail import Trail

__all__ = ["PointLosses", "measure_chosen", "measure_own"]


class _Compared(Protocol):
    """What windows are compared with: an :class:`~hdet.policies.incumbent.Incumbent`."""

    keeper: Keeper
    remembers: bool
    previous: list[float] | None


def measure_own(trail: Trail, known: _Compared, few: int) -> list[float]:
    """This rank's losses at its own points: at m on all batches; then, for every scope, at p, unless they are
    remembered, and at e on a few. The weights are put back."""
    trail.leave()
    mean, *others = trail.points()
    losses: list[float] = []
    try:
        trail.go(mean)
        losses += known.keeper.measure()
        for k, point in enumerate(others):
            before = k % 2 == 0
            if before and known.remembers and known.previous is not None:
                continue
            trail.go(point)
            losses += known.keeper.measure(None if before and known.remembers else few)
    finally:
        trail.go(trail.end)
    return losses


def measure_chosen(trail: Trail, known: _Compared, *, ends: bool) -> list[float]:
    """This rank's losses to choose by, as the weights would be deployed: at e if the run ``ends`` there, and
    at m, which is by now that of all replicas. The weights are put back."""
    losses = known.keeper.measure_deployed(refresh=False) if ends else []
    trail.leave()
    try:
        trail.go(trail.mean.tensors)
        return losses + known.keeper.measure_deployed(refresh=True)
    finally:
        trail.go(trail.end)


class PointLosses:
    """Losses at m, and at p and e for every scope, on the batches of all ranks in turn.

    A row holds L(m) of all batches; for every scope L(p), unless it is remembered, and L(e) of the first few;
    then the displacements; then, where weights are chosen by other losses than these (m was each replica's
    own, or is deployed with running statistics), those at the end of the run and at m.

    Args:
        rows: of every rank. Without losses before weights have moved.
        scopes: how many are judged by losses of their own.
        moved: how many displacements there are; as many as scopes unless all are judged together.
        batches: to choose by, on every rank.
        few: of them e is measured on.
        apart: whether weights are chosen by other losses.
        ends: whether this is the run's last window, whose end is to choose from, too.
        previous: L(p), where it is remembered from the window before; None if it was measured.
        remembers: whether p is measured on all batches, since it is one point for all.
    """

    def __init__(
        self,
        rows: Sequence[Sequence[float]],
        *,
        scopes: int,
        moved: int | None = None,
        batches: int,
        few: int,
        apart: bool,
        ends: bool,
        previous: Sequence[float] | None,
        remembers: bool,
    ) -> None:
        moved = scopes if moved is None else moved
        self.measured = len(rows[0]) > moved
        self._few = few
        self._mean = _part(rows, 0, batches) if self.measured else []
        at = batches
        self._previous: list[list[list[float]]] = []
        self._end: list[list[list[float]]] = []
        for _ in range(scopes if self.measured else 0):
            if previous is None:
                width = batches if remembers else few
                self._previous.append(_part(rows, at, width))
                at += width
            self._end.append(_part(rows, at, few))
            at += few
        self._remembered = previous
        at = at if self.measured else 0
        displacements = _part(rows, at, moved)
        self._displacements = [math.fsum(row[i] for row in displacements) / len(rows) for i in range(moved)]
        at += moved
        self._chosen_end = self._end[0] if self.measured else []
        self._chosen = self._mean
        if apart and self.measured:
            if ends:
                self._chosen_end = _part(rows, at, batches)
                at += batches
            self._chosen = _part(rows, at, batches)
        self._narrow = previous is None and not remembers

    def fill(self, timing: Window, scope: int, best: Sequence[float] | None) -> Window:
        """A window with its losses."""
        return replace(
            timing,
            previous=self.before(scope),
            mean=self.mean(),
            end=self.end(scope),
            mean_there=self.mean_there(),
            best=best if best is not None and self.measured else (),
        )

    def displacement(self, scope: int) -> float:
        """‖m − p‖ / ‖p‖, the mean over the ranks."""
        return self._displacements[scope]

    @property
    def previous(self) -> list[float]:
        """L(p) of all weights together."""
        return self.before(0)

    @property
    def chosen(self) -> list[float]:
        """L(m) by which the weights are chosen: of the mean over the replicas, on all batches."""
        return _pooled(self._chosen)

    @property
    def chosen_end(self) -> list[float]:
        """L(e), likewise, in the run's last window."""
        return _pooled(self._chosen_end)

    def before(self, scope: int) -> list[float]:
        """L(p)."""
        if not self.measured:
            return []
        return list(self._remembered) if self._remembered is not None else _pooled(self._previous[scope])

    def mean(self) -> list[float]:
        """L(m), on the batches of :meth:`before`."""
        return self.mean_there() if self._narrow else _pooled(self._mean)

    def mean_there(self) -> list[float]:
        """L(m), on the batches of :meth:`end`."""
        return _pooled([row[: self._few] for row in self._mean])

    def end(self, scope: int) -> list[float]:
        """L(e)."""
        return _pooled(self._end[scope]) if self.measured else []


def _part(rows: Sequence[Sequence[float]], at: int, width: int) -> list[list[float]]:
    return [list(row[at : at + width]) for row in rows]


def _pooled(rows: Sequence[Sequence[float]]) -> list[float]:
    return [loss for row in rows for loss in row]
