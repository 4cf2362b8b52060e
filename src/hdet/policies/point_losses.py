"""The losses at a window's points, taken apart as they come from all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hdet.controllers import Window
from hdet.policies.clock import Clock

__all__ = ["PointLosses"]


class PointLosses:
    """Losses at m, and at p and e for every scope, on the batches of all ranks in turn.

    A row holds L(m) of all batches; for every scope L(p), unless it is remembered, and L(e) of the first few;
    then the displacements; then, where weights are chosen by other losses than these (m was each replica's
    own, or is deployed with running statistics), those at the end of the run and at m.

    Args:
        rows: of every rank.
        measured: whether there are losses at all.
        judged: whether there are those at p and e.
        scopes: how many are judged by losses of their own.
        moved: how many displacements there are; as many as scopes unless all are judged together.
        batches: to choose by, on every rank.
        few: of them e is measured on.
        apart: whether weights are chosen by other losses.
        ends: whether this is the run's last window, whose end is to choose from, too.
        remembers: whether L(p) is not measured, but what L(m) was in the window before.
        previous: L(p), where it is remembered, and known.
    """

    def __init__(
        self,
        rows: Sequence[Sequence[float]],
        *,
        measured: bool,
        judged: bool,
        scopes: int,
        moved: int | None = None,
        batches: int,
        few: int,
        apart: bool,
        ends: bool,
        remembers: bool,
        previous: Sequence[float] | None,
    ) -> None:
        self.measured, self.judged = measured, judged
        self._few = few
        self._mean = _part(rows, 0, batches) if self.measured else []
        at = batches if self.measured else 0
        self._previous: list[list[list[float]]] = []
        self._end: list[list[list[float]]] = []
        for _ in range(scopes if self.judged else 0):
            if not remembers:
                self._previous.append(_part(rows, at, few))
                at += few
            self._end.append(_part(rows, at, few))
            at += few
        self._scopes, self._remembered = scopes, previous
        moved = scopes if moved is None else moved
        displacements = _part(rows, at, moved)
        self._displacements = [math.fsum(row[i] for row in displacements) / len(rows) for i in range(moved)]
        at += moved
        self._chosen_end = self._end[0] if self.judged else []
        self._chosen = self._mean
        if apart and self.measured:
            if ends and self.judged:
                self._chosen_end = _part(rows, at, batches)
                at += batches
            self._chosen = _part(rows, at, batches)
        self._narrow = not remembers

    def windows(
        self,
        clock: Clock,
        step: int,
        middles: Sequence[float],
        best: Sequence[float] | None,
        rise: float,
        explained: float = 0.0,
    ) -> list[Window]:
        """What the window that ends at ``step`` showed of each scope.

        ``middles`` are those of the windows that p is the mean of, ``best`` the lowest losses at any m so
        far, ``rise`` how much the schedule rose, ``explained`` what others' moves changed.
        """
        after = clock.after(step) or step + (step - clock.began)
        return [
            Window(
                step=clock.since_origin(step),
                next_step=clock.since_origin(after),
                total_steps=clock.total,
                displacement=self.displacement(scope),
                apart=(clock.began + 1 + step) / 2 - middle,
                rise=rise,
                explained=explained,
                previous=self.before(scope % self._scopes),
                mean=self.mean(),
                end=self.end(scope % self._scopes),
                mean_there=self.mean_there(),
                best=best if best is not None and self.judged else (),
            )
            for scope, middle in enumerate(middles)
        ]

    def displacement(self, scope: int) -> float:
        """‖m − p‖ / ‖p‖, the mean over the ranks."""
        return self._displacements[scope]

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
        if not self.judged:
            return []
        if self._narrow:
            return _pooled(self._previous[scope])
        return list(self._remembered or ())

    def mean(self) -> list[float]:
        """L(m), on the batches of :meth:`before`."""
        return self.mean_there() if self._narrow else _pooled(self._mean)

    def mean_there(self) -> list[float]:
        """L(m), on the batches of :meth:`end`."""
        return _pooled([row[: self._few] for row in self._mean])

    def end(self, scope: int) -> list[float]:
        """L(e)."""
        return _pooled(self._end[scope]) if self.judged else []


def _part(rows: Sequence[Sequence[float]], at: int, width: int) -> list[list[float]]:
    return [list(row[at : at + width]) for row in rows]


def _pooled(rows: Sequence[Sequence[float]]) -> list[float]:
    return [loss for row in rows for loss in row]
