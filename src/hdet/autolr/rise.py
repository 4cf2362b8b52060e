"""Whether a loss has risen so far that training is better taken back. No torch, no I/O; float64.

Beyond noise (three deviations of what is compared) and beyond half of all that was gained: what rises by less
may be the price of exploring, harder data, or the way of every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hdet.autolr.choice import mean_of

__all__ = ["has_risen"]

_DEVIATIONS, _SHARE_OF_GAIN = 3.0, 0.5


def has_risen(first: float, before: Sequence[float], now: Sequence[float], *, paired: bool) -> bool:
    """Whether ``now`` lies far above ``before``, where ``first`` is the mean that the run began with.

    ``paired``: the k-th of each are of the same samples; else both are losses of training, each on its own.

    >>> has_risen(4.0, [1.0, 1.2, 1.1], [1.3, 1.5, 1.4], paired=True)  # of 2.9 gained, 0.3 was lost
    False
    >>> has_risen(4.0, [1.0, 1.2, 1.1], [3.0, 3.3, 3.0], paired=True)
    True
    >>> has_risen(4.0, [1.0, 1.2, 1.1], [1.0, float("nan"), 1.1], paired=True)
    True
    """
    if not all(map(math.isfinite, now)):
        return True
    if paired:
        rises = [b - a for a, b in zip(before, now, strict=True)]
        rise, noise = mean_of(rises), _deviation(rises)
    else:
        rise, noise = mean_of(now) - mean_of(before), _deviation(before)
    gained = max(first - mean_of(before), 0.0)
    return rise > _SHARE_OF_GAIN * gained + _DEVIATIONS * noise and rise > 0


def _deviation(values: Sequence[float]) -> float:
    mean = mean_of(values)
    return math.hypot(*(value - mean for value in values)) / math.sqrt(max(len(values) - 1, 1))
