"""How long a window is: it follows from the steps taken, never from the user's guess. No torch, no I/O.

A short window early, because the run changes quickly; a long one later, because only a horizon of the order
of the run itself tells noise from progress.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Every", "Windows"]


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of ``max(first, share·t)`` steps, t being the steps taken before.

    Args:
        first: the shortest window.
        share: 0 makes all windows equally long.
        last: no window ends after this step; None for no end. One ends there.

    >>> windows = Windows(first=10, share=0.2, last=100)
    >>> windows.end_after(0), windows.end_after(60), windows.end_after(90), windows.end_after(100)
    (10, 72, 100, None)
    """

    first: int = 10
    share: float = 0.2
    last: int | None = None

    def end_after(self, step: int, origin: int = 0) -> int | None:
        """Where the window ends that begins after ``step`` steps; None where none begins any more.

        A rest too short for a window of its own is added to the last one. t is counted from ``origin``.
        """
        if self.last is not None and step >= self.last:
            return None
        length = max(self.first, int(self.share * (step - origin)))
        end = step + length
        if self.last is not None and self.last - end < length // 2:
            return self.last
        return end

    def round_at(self, step: int) -> int:
        """How many windows end at or before ``step``."""
        count, end = 0, self.end_after(0)
        while end is not None and end <= step:
            count, end = count + 1, self.end_after(end)
        return count


@dataclass(frozen=True, slots=True)
class Every:
    """Rounds of T steps, as in the paper: they end at the multiples of ``steps``.

    >>> Every(10).end_after(0), Every(10).end_after(13)
    (10, 20)
    """

    steps: int

    def end_after(self, step: int) -> int:
        """Where the round ends that begins after ``step`` steps."""
        return (step // self.steps + 1) * self.steps

    def round_at(self, step: int) -> int:
        """How many rounds end at or before ``step``."""
        return step // self.steps
