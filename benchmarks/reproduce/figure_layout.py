"""What a figure of several seeds has to decide before it is drawn: the line, the axis, the place of a name.

Plain values in, plain values out; nothing here draws.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = [
    "Curve",
    "Limits",
    "across_seeds",
    "apart",
    "factor_ticks",
    "limits_of",
    "rate_text",
    "sentence_case",
    "trailing",
]


@dataclass(frozen=True)
class Curve:
    """Of all seeds at each step: lowest, median, highest. What is not finite counts as infinite."""

    steps: list[float]
    low: list[float]
    middle: list[float]
    high: list[float]

    def before(self, step: float, otherwise: float) -> float:
        """The last finite median up to ``step``."""
        known = [y for x, y in zip(self.steps, self.middle, strict=True) if x <= step and math.isfinite(y)]
        return known[-1] if known else otherwise


def across_seeds(runs: Iterable[tuple[Sequence[float], Sequence[float | None]]]) -> Curve:
    """One curve of several (steps, values), of which None is a value that is not finite."""
    at: dict[float, list[float]] = {}
    for steps, values in runs:
        for step, value in zip(steps, values, strict=True):
            at.setdefault(step, []).append(math.inf if value is None else value)
    found = sorted(at.items())
    return Curve(
        [step for step, _ in found],
        [min(ys) for _, ys in found],
        [statistics.median(ys) for _, ys in found],
        [max(ys) for _, ys in found],
    )


def trailing(values: Sequence[float | None], share: float = 0.05) -> list[float | None]:
    """Each value's mean with those before it, up to this share of all; fewer at the start. None stays None.

    >>> trailing([4.0, 2.0, None, 1.0], share=0.5)
    [4.0, 3.0, None, 1.0]
    """
    window = max(1, round(share * len(values)))
    found: list[float | None] = []
    for i, value in enumerate(values):
        near = [v for v in values[max(0, i + 1 - window) : i + 1] if v is not None]
        found.append(None if value is None else sum(near) / len(near))
    return found


@dataclass(frozen=True)
class Limits:
    """Of an axis, and whether something lies above."""

    low: float
    high: float
    is_cut: bool


def limits_of(curves: Iterable[Curve], inits: Iterable[float], levels: Iterable[float]) -> Limits | None:
    """From the lowest to the highest, but at most a quarter above what the runs gained from their start.

    A loss that diverged says no more by how far: drawn in full, it would make a flat line of all the others.
    """
    curves = list(curves)
    seen = [y for curve in curves for y in (*curve.low, *curve.high) if math.isfinite(y)]
    if not seen:
        return None
    best = min([*seen, *levels])
    start = max([*inits, *levels, best])
    highest, most = max([*seen, *levels]), best + 1.25 * (start - best)
    gone = any(not math.isfinite(y) for curve in curves for y in curve.high)
    is_cut = gone or highest > most
    high = min(highest, most) if most > best else highest
    room = 0.04 * (high - best) or 0.04 * abs(best) or 1.0
    return Limits(best - room, high if is_cut and highest > most else high + room, is_cut)


def apart(wanted: Sequence[float], heights: Sequence[float]) -> list[float]:
    """Middles of labels of these heights, near where wanted, none on another and none above 1.

    >>> apart([0.5, 0.5, 1.0], [0.2, 0.2, 0.2])
    [0.5, 0.7, 0.9]
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    places = list(wanted)
    floor = -math.inf
    for i in order:
        places[i] = max(places[i], floor + heights[i] / 2)
        floor = places[i] + heights[i] / 2
    ceiling = 1.0
    for i in reversed(order):
        places[i] = min(places[i], ceiling - heights[i] / 2)
        ceiling = places[i] - heights[i] / 2
    return places


def factor_ticks(largest: float) -> list[float]:
    """Round factors around 1 for an axis that ends at e^±largest; none where powers of ten are rounder.

    >>> factor_ticks(0.004)
    [0.996, 0.998, 1.0, 1.002, 1.004]
    """
    if largest > math.log(5):
        return []
    if largest > 0.25:
        return [0.25, 0.5, 1.0, 2.0, 4.0] if largest > math.log(2.2) else [0.5, 0.7, 1.0, 1.4, 2.0]
    unit = 10.0 ** math.floor(math.log10(largest / 2))
    step = max(unit * times for times in (1, 2, 5) if unit * times <= largest / 2 * (1 + 1e-9))
    ticks = [round(1 + k * step, 12) for k in range(-5, 6)]
    return [tick for tick in ticks if tick > 0 and abs(math.log(tick)) <= 1.1 * largest]


def rate_text(value: float) -> str:
    """A learning rate as people write it.

    >>> [rate_text(value) for value in (0.0009, 1e-10, 0.01, 3.1623)]
    ['9e-4', '1e-10', '0.01', '3.16']
    """
    if value == 0 or abs(value) >= 0.01:
        return f"{value:.3g}"
    return re.sub(r"\.?0*e-0*", "e-", f"{value:.2e}")


def sentence_case(text: str) -> str:
    """The same text, beginning with a capital."""
    return text[:1].upper() + text[1:]
