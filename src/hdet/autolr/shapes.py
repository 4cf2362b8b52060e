"""Shapes of a run, as multipliers of its peak: pure functions of the step. No torch, no I/O.

A shape says nothing of the learning rate's size; that is for a controller to find.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["COOLDOWN_SHARE", "SHAPES", "Cosine", "OneCycle", "Shape", "WarmStableDecay"]

#: The share of a run in which warmup-stable-decay comes down.
COOLDOWN_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class WarmStableDecay:
    """Constant, then linearly to zero from step ``decay_from`` to ``total_steps``; without an end, constant.

    Its warm-up is the controller's climb. ``height`` is where it comes down from.

    >>> shape = WarmStableDecay.of(100)
    >>> [shape(step) for step in (0, 75, 85, 99, 100)]
    [1.0, 1.0, 0.6, 0.04, 0.0]
    """

    total_steps: int | None = None
    decay_from: int | None = None
    height: float = 1.0

    @classmethod
    def of(cls, total_steps: int | None) -> WarmStableDecay:
        """The usual proportions."""
        if total_steps is None:
            return cls()
        return cls(total_steps, total_steps - round(COOLDOWN_SHARE * total_steps))

    def __call__(self, step: int) -> float:
        if self.total_steps is None or self.decay_from is None or step < self.decay_from:
            return self.height
        return self.height * max(0.0, (self.total_steps - step) / (self.total_steps - self.decay_from))

    @property
    def search_until(self) -> int | None:
        """Until when the learning rate's size is looked for."""
        return self.decay_from


@dataclass(frozen=True, slots=True)
class Cosine:
    """Half a cosine from 1 to 0."""

    total_steps: int
    search_until: None = None

    def __call__(self, step: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * min(step / self.total_steps, 1.0)))


@dataclass(frozen=True, slots=True)
class OneCycle:
    """OneCycleLR's curve with its defaults: up from 1/25 over 30 % of the steps, then down to nothing."""

    total_steps: int
    search_until: None = None

    def __call__(self, step: int) -> float:
        top, low, end = 0.3 * self.total_steps - 1, 1 / 25, 1 / 25 / 1e4
        if step <= top:
            return low + (1 - low) * 0.5 * (1 - math.cos(math.pi * step / max(top, 1.0)))
        along = min((step - top) / max(self.total_steps - 1 - top, 1.0), 1.0)
        return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * along))


Shape = WarmStableDecay | Cosine | OneCycle

SHAPES: dict[str, Callable[[int], Shape]] = {
    "wsd": WarmStableDecay.of,
    "cosine": Cosine,
    "onecycle": OneCycle,
}
