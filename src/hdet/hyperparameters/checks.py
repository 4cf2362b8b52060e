"""What ``spread=`` and ``bounds=`` may be, for every hyperparameter alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["check_bounds", "check_spread", "spread_of_each"]


def check_spread(name: str, spread: object) -> None:
    """A width, in units of the coordinate."""
    numeric = isinstance(spread, (int, float)) and not isinstance(spread, bool)
    if not (numeric and math.isfinite(spread) and spread >= 0):  # type: ignore[arg-type,operator]
        raise ValueError(f"{name}: spread must be a finite number of at least 0, got {spread!r}")


def spread_of_each(name: str, spread: float | Sequence[float], count: int) -> list[float]:
    """One spread for all groups, or one for each."""
    if not isinstance(spread, Sequence):
        return [spread] * count
    if len(spread) != count:
        raise ValueError(
            f"{name}: spread must be one number, or one for each of the {count} explored groups, got "
            f"{len(spread)}"
        )
    return list(spread)


def check_bounds(
    name: str,
    bounds: object,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
) -> tuple[float, float]:
    """Two numbers, the lower one first, within what the hyperparameter can be."""
    try:
        low, high = math.nan, math.nan
        if not isinstance(bounds, (str, bytes)):
            low, high = map(float, bounds)  # type: ignore[call-overload]
    except (TypeError, ValueError):
        low, high = math.nan, math.nan
    if not (
        low < high
        and least <= low
        and (above == -math.inf or above < low)
        and (below == math.inf or high < below)
    ):
        lower = f" of at least {least:g}" if math.isfinite(least) else ""
        lower += f" above {above:g}" if math.isfinite(above) else ""
        upper = f" below {below:g}" if math.isfinite(below) else ""
        raise ValueError(
            f"{name}: bounds must be two numbers{lower}{upper}, the lower one first, got {bounds!r}"
        )
    return low, high
