"""When windows begin and end: in the search as ``Windows`` says, in the decay to the last step, and counted
from where the search began or restarted. No torch, no I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hdet.loop.windows import Windows

__all__ = ["DECAY", "Clock", "Curve"]

#: A schedule below this share of its peak is in its final decay.
DECAY = 0.7


@dataclass(slots=True)
class Curve:
    """The schedule's value as windows end: its ``peak`` so far, and ``now``."""

    peak: float
    now: float

    def rise(self, value: float) -> float:
        """By how much it has risen since the last window, as a logarithm; remembers ``value``."""
        risen = math.log(value / self.now) if min(value, self.now) > 0 else 0.0
        self.peak, self.now = max(self.peak, value), value
        return risen

    @property
    def decays(self) -> bool:
        """Whether the final decay has begun."""
        return self.now < DECAY * self.peak


@dataclass(slots=True)
class Clock:
    """The window in progress.

    Args:
        windows: how long they are while the search lasts.
        total_steps: S, or None while it is not known.
        searching: whether the search goes on; else the schedule decays.
        origin: the step at which this search began.
        began, end: of the window; no ``end`` where none is in progress.
    """

    windows: Windows
    total_steps: int | None = None
    searching: bool = True
    origin: int = 0
    began: int = 0
    end: int | None = None

    def begin(self, step: int) -> None:
        """A window follows ``step``."""
        self.began = step
        self.searching = self.searches_after(step)
        self.end = self.after(step)

    def searches_after(self, step: int) -> bool:
        """Whether the window that follows ``step`` is still one of the search."""
        return self.searching and self.windows.end_after(step, self.origin) is not None

    def after(self, step: int) -> int | None:
        """Where a window that follows ``step`` ends."""
        end = self.windows.end_after(step, self.origin) if self.searching else None
        if end is not None:
            return end if self.total_steps is None else min(end, self.total_steps)
        if self.total_steps is None:
            return None
        return replace(self.windows, last=self.total_steps).end_after(step, self.origin)

    def stop(self) -> None:
        """The search is over; windows go on to the end of the run."""
        if self.searching:
            self.searching = False
            self.end_at(self.total_steps)

    def end_at(self, step: int | None) -> None:
        """The run now has an end, or another one."""
        self.total_steps = step
        if not self.searching:
            self.end = None if step is None else min(self.end or step, step)
        elif self.end is not None and self.windows.last is not None:  # one of a run that was to be longer
            self.end = min(self.end, self.windows.last)

    @property
    def length(self) -> int:
        """Of the window, in steps; 0 without one."""
        return 0 if self.end is None else self.end - self.began

    @property
    def ends_run(self) -> bool:
        """Whether the run ends with this window."""
        return self.end is not None and self.end == self.total_steps

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        names = ("began", "searching", "total_steps", "origin")
        return {"window_end": self.end, **{name: getattr(self, name) for name in names}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.began, self.end, self.searching = state["began"], state["window_end"], state["searching"]
        self.total_steps, self.origin = state["total_steps"], state["origin"]
