"""How a run went, in one line at its end: what it found, or that it found nothing better than its start."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from hdet.autolr.keeper import Keeper
from hdet.history import SyncRecord

__all__ = ["Verdict"]


class Verdict:
    """Counts windows as they end, and says once what became of them.

    Args:
        caller: begins the line.
    """

    def __init__(self, caller: str) -> None:
        self._caller = caller
        self._windows = self._backs = 0
        self._first = self._last = self._peak = math.nan
        self._said = False

    def see(self, record: SyncRecord, lrs: Sequence[float]) -> None:
        """A window has ended, trained at ``lrs``."""
        self._windows += 1
        self._backs += any(": back to " in event for event in record.events)
        seen = record.horizon[0]
        if math.isnan(self._first):
            self._first = seen.loss_previous
        # The end is measured on all batches where it may be handed over; within a run the mean stands for it.
        for loss in (seen.loss_mean, seen.loss_end):
            self._last = loss if math.isfinite(loss) else self._last
        self._peak = max([lr for lr in (self._peak, *lrs) if math.isfinite(lr)], default=math.nan)

    def say(self, logger: logging.Logger, steps: int, promised: int | None, keeper: Keeper) -> None:
        """One line, the first time it is called after something was measured: ``steps`` were taken of those
        ``promised``."""
        if self._said or math.isnan(self._first):
            return
        self._said = True
        best, improved = keeper.best, keeper.choice.improved
        handed = "nothing was kept for finish_()"
        if best is not None:
            handed = f"finish_() hands over the {best.kind} of step {best.step}, at {best.loss:.4g}"
        counted = f"{steps} steps" if promised is None else f"{steps} of {promised} steps"
        course = f"{self._windows} windows, {self._backs} way{'' if self._backs == 1 else 's'} back"
        lowest = self._last if best is None else min(best.loss, self._last)
        # Where the start was measured like the rest, nothing since was better than it by more than the error.
        if (improved is not None and improved.kind == "start") or not lowest < self._first:
            logger.warning(
                "%s: %s: the run did not improve: the probe's loss was %.4g at the start and is %.4g "
                "(%s); %s. Is the probe's data of the kind that is trained on, and does the training loss "
                "fall?",
                self._caller,
                counted,
                self._first,
                self._last,
                course,
                handed,
            )
            return
        logger.info(
            "%s: %s: the probe's loss went from %.4g to %.4g; the highest learning rate was %.3g (%s); %s",
            self._caller,
            counted,
            self._first,
            self._last,
            self._peak,
            course,
            handed,
        )

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return {
            "counts": [self._windows, self._backs],
            "losses": [self._first, self._last],
            "peak": self._peak,
            "said": self._said,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off."""
        self._windows, self._backs = state["counts"]
        self._first, self._last = state["losses"]
        self._peak, self._said = state["peak"], state["said"]
