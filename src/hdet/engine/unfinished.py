"""A run that stops before its last step has no end at which anything could be said: it is said when the
process ends, once, of the run that stepped last."""

from __future__ import annotations

import atexit
import logging
import os
import sys

__all__ = ["Course", "unfinished"]

logger = logging.getLogger("hdet")


class Course:
    """How far a run has come.

    Args:
        caller: begins what is said.
        speaks: whether this rank speaks for all. When the process ends there may be no group left to ask.
    """

    #: Who stepped last in this process. What is kept is this alone, not the run.
    last: Course | None = None

    def __init__(self, caller: str, *, speaks: bool = True) -> None:
        self._caller = caller
        self._steps = 0
        self._total: int | None = None
        self.speaks = speaks

    def at(self, steps: int, total: int | None) -> None:
        """A step was counted."""
        self._steps, self._total = steps, total
        if Course.last is not self:
            if Course.last is None:
                atexit.register(_say_unfinished)
            Course.last = self

    def close(self) -> None:
        """Whatever becomes of it, its user knows."""
        self._total = None

    def said(self) -> str:
        """What there is to say if nothing more happens."""
        if self._total is None or not self.speaks or self._steps >= self._total:
            return ""
        return f"{self._caller}: {unfinished(self._steps, self._total)}"


def unfinished(steps: int, total_steps: int) -> str:
    """The schedule was made for more steps."""
    return (
        f"{steps} of {total_steps} steps were counted: the schedule has not come to its end, and the "
        "learning rate has not come down; take the run up from its state, or give total_steps as many as "
        "there are optimizer steps (steps that a GradScaler skips are not among them)"
    )


def _say_unfinished() -> None:
    # Nobody is told what they see: a traceback, or a notebook in which they stopped. Tests stop anywhere.
    raised = getattr(sys, "last_value", None) is not None
    if raised or hasattr(sys, "ps1") or "PYTEST_VERSION" in os.environ or Course.last is None:
        return
    if said := Course.last.said():
        logger.warning("%s", said)
