"""What everything is judged by, in one place.

    who                what is compared                                      measured
    a learning rate    progress L(p) − L(m) and gap L(e) − L(m) of a window  where weights and mean stand
                       of one path: of one model, or of the replicas' mean
    a learning rate    the same at each replica's own points                 before the replicas are one
      with a spread
    a regulariser      a replica's held-out loss minus that of the mean of   before, and after
                       all, at the last step or at the window's means
    the end of a run   the window's mean, and the last iterate, as they      after
                       would be deployed

All on batches that are not trained on, with regularisers off. A replica's loss is always taken as the
difference to the averaged model on the same batches: what another policy did to all replicas cancels there.
What a regulariser's move did to the averaged model is explained by its slope, and is no progress of the
learning rate's (``explained``, in :mod:`hdet.policies.base`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from hdet.best import Keeper
from hdet.policies.incumbent import Incumbent
from hdet.policies.useless_probe import UselessProbe
from hdet.probes import Probe
from hdet.replicas import Replicas
from hdet.weights.trail import PointsTrail, Trail

__all__ = [
    "AtWindowMean",
    "HeldOut",
    "HeldOutLoss",
    "PathEvidence",
    "judge",
]


class HeldOutLoss(Protocol):
    """A replica's own held-out loss, and that of the mean of all."""

    #: This replica's, since the last sync.
    own_loss: float | Tensor | None

    def at_own(self) -> list[float | Tensor]:
        """Before the replicas' weights are one."""

    def at_mean(self) -> list[float | Tensor]:
        """After, on the same batches."""


class HeldOut:
    """The loss where the weights stand: one replica's last iterate, then the mean of them.

    It does not matter whether the ranks probe the same batches or each its own.

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


class AtWindowMean:
    """The loss at the mean of the window: one replica's own, then that of all; on the batches that choose.

    Args:
        path: whose mean it is, and who has measured that of all replicas by the time it is asked for.
    """

    def __init__(self, path: PathEvidence) -> None:
        self._path = path
        self.own_loss: float | Tensor | None = None

    def at_own(self) -> list[float | Tensor]:
        """A mean is finite only if every iterate was: who was lost is seen here."""
        self.own_loss = None
        self.own_loss = _mean_of_each(self._path.at_m())
        return [self.own_loss]

    def at_mean(self) -> list[float | Tensor]:
        return [_mean_of_each(self._path.mean_losses)]


def _mean_of_each(losses: Sequence[float | Tensor]) -> float | Tensor:
    """Over batches; where there are several replicas here, for each of them."""
    rows = [loss for loss in losses if isinstance(loss, Tensor)]
    return torch.stack(rows).mean(0) if rows else _mean([float(loss) for loss in losses])


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


class PathEvidence:
    """The losses along a path: at m, p and e, of this replica or of the mean of all.

    Args:
        trail: the path.
        incumbent: whose keeper's batches they are measured on, and whether weights are chosen by others.
        useless: looks after the probe.
        regularisers_off: a context in which they are.
        batches: how many there are to choose by.
        averaged: whether only the mean of all replicas counts.
    """

    def __init__(
        self,
        trail: Trail,
        incumbent: Incumbent,
        useless: UselessProbe,
        regularisers_off: Callable[[], AbstractContextManager[None]],
        batches: int,
        *,
        averaged: bool,
    ) -> None:
        self._trail, self._incumbent, self._useless = trail, incumbent, useless
        self._keeper = incumbent.keeper
        self._regularisers_off = regularisers_off
        self._batches, self._averaged = batches, averaged
        #: At the mean of all replicas, since they are one.
        self.mean_losses: list[float | Tensor] = []

    def at_m(self) -> list[float | Tensor]:
        """At this replica's own mean over the window, until the replicas' weights are one."""
        with self._regularisers_off(), self._trail.at_mean():
            return self._keeper.measure()

    def at_own(self, few: int | None) -> list[float | Tensor]:
        """Before the replicas are one; e on a ``few`` batches, None before windows are judged."""
        return [] if self._averaged else self._at_points(few)

    def at_mean(self, few: int | None, *, ends: bool) -> list[float | Tensor]:
        """After: displacements, and the losses that weights are chosen by, where those are others; the end is
        among them if the run ``ends`` here."""
        self._trail.converge()
        found: list[float | Tensor] = []
        if self._averaged:
            found = self._at_points(few)
            self.mean_losses = found[: self._batches]
        found += self._trail.displacements()
        if self._incumbent.apart and (few is not None or not isinstance(self._trail, PointsTrail)):
            with self._regularisers_off():
                found += _chosen(self._trail, self._keeper, ends=ends and few is not None)
        return [*found, *self._useless.row()]

    def _at_points(self, few: int | None) -> list[float | Tensor]:
        with self._regularisers_off():
            self._useless.drew(few or 0)
            if not isinstance(self._trail, PointsTrail):
                return _path(self._trail, self._keeper, few)
            return [] if few is None else _points(self._trail, self._keeper, few)


def _path(trail: Trail, keeper: Keeper, few: int | None) -> list[float | Tensor]:
    """This rank's losses at m on all batches and, unless ``few`` is None, at e, where the weights are, on a
    few."""
    at_end = [] if few is None else keeper.measure(few)
    with trail.at_mean():
        return keeper.measure() + at_end


def _points(trail: PointsTrail, keeper: Keeper, few: int) -> list[float | Tensor]:
    """This rank's losses at its own points: at m on all batches; then, for every scope, at p and at e on a
    few. The weights are put back."""
    with trail.visited():
        mean, *others = trail.points()
        trail.go(mean)
        losses = keeper.measure()
        for point in others:
            trail.go(point)
            losses += keeper.measure(few)
    return losses


def _chosen(trail: Trail, keeper: Keeper, *, ends: bool) -> list[float | Tensor]:
    """This rank's losses to choose by, as the weights would be deployed: at e if the run ``ends`` there, and
    at m, which is by now that of all replicas. The weights are put back."""
    losses = keeper.measure_deployed(refresh=False) if ends else []
    with trail.at_mean():
        return losses + keeper.measure_deployed(refresh=True)
