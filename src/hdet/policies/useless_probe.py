"""A probe that says nothing must not steer: losses that are not finite, that never change, or of one batch
alone."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

from hdet.controllers import Window
from hdet.probes import Probe

__all__ = ["UselessProbe", "average"]

logger = logging.getLogger("hdet")

_MAX_CONSTANT = 3
#: After so many draws of one and the same batch there is reason to say so.
_SAME_BATCH = 8


class UselessProbe:
    """Looks at what a probe finds, window by window, and raises or warns.

    Args:
        caller: begins errors and log lines.
        probe: what is looked at.
        by_group: whether every parameter group is moved by itself.
    """

    def __init__(self, caller: str, probe: Probe, *, by_group: bool) -> None:
        self._caller = caller
        self._probe = probe
        self._by_group = by_group
        self._constant = self._drawn = 0
        self._varied = self._said_same_batch = False

    def drew(self, count: int) -> None:
        """So many batches more were looked at."""
        self._drawn += count
        if self._drawn >= _SAME_BATCH and self._probe.distinct == 1 and not self._said_same_batch:
            self._said_same_batch = True
            logger.warning(
                "%s: the probe's %d batches so far were one and the same: the learning rate is fitted to it. "
                "Training goes on; give Probe more batches",
                self._caller,
                self._drawn,
            )

    def refuse(self, step: int, seen: Sequence[Window]) -> None:
        """Raise ValueError where losses at known weights are not finite, or do not depend on the weights."""
        losses = [loss for window in seen for loss in (*window.previous, *window.mean, *window.end)]
        if not losses:
            return
        lost = not all(math.isfinite(loss) for window in seen for loss in window.previous)
        # One group's p has the other groups at m, which may be what is lost: then there is a way back.
        if lost and (not self._by_group or math.isfinite(average(seen[0].mean))):
            raise ValueError(
                f"{self._caller}.step: step {step}: the probe's loss must be finite at weights that training "
                f"has left behind, got {seen[0].previous}; check loss_fn and its batches"
            )
        moved = any(window.displacement > 0 for window in seen)
        alike = moved and all(
            list(window.previous) == list(window.mean)
            and list(window.end) == list(window.mean_there or window.mean)
            for window in seen
        )
        self._varied = self._varied or not alike
        # A loss that did depend on the weights may end at zero, or at the precision of a float.
        self._constant = 0 if self._varied else self._constant + 1
        if self._constant >= _MAX_CONSTANT:
            raise ValueError(
                f"{self._caller}.step: step {step}: the probe's loss must depend on the weights, and was "
                f"{losses[0]:.6g} at all points of {self._constant} windows; does loss_fn call the model "
                "that the optimizer trains?"
            )

    def state(self) -> list[Any]:
        """Plain values."""
        return [self._constant, self._varied]

    def load(self, state: Sequence[Any]) -> None:
        """Take up where :meth:`state` left off."""
        self._constant, self._varied = state


def average(losses: Sequence[float]) -> float:
    """The mean; NaN where one of them is not finite, or there is none."""
    return math.fsum(losses) / len(losses) if losses and all(map(math.isfinite, losses)) else math.nan
