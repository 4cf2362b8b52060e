"""Whether one replica is always worse, or better, than the others, whatever its values: of other data, say.

Every window deals other values, so none should be. No torch, no I/O.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Standing"]

#: So many standard errors from where a replica should stand on average, and in no fewer windows: one far
#: off in a few of them may be so by chance.
_CLEAR, _LEAST_WINDOWS = 5.0, 8
#: A relative difference that is none: replicas that share gradients have equal weights.
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True)
class Standing:
    """The sum, over windows, of how far each replica's loss was above the mean of all, in units of their
    standard deviation: of variance one in every window, whatever the losses are.

    >>> standing = Standing()
    >>> for _ in range(9):
    ...     standing, said = standing.after([1.0, 1.0, 1.0, 1.5])
    >>> said[:51]
    'replica 3 is worse than the others, whatever its va'
    """

    sums: tuple[float, ...] = ()
    windows: int = 0
    said: bool = False

    def after(self, losses: Sequence[float]) -> tuple[Standing, str]:
        """After a window with these losses; and what to log of it, once, or ""."""
        if not all(map(math.isfinite, losses)):
            return self, ""
        mean, deviation = statistics.fmean(losses), statistics.pstdev(losses)
        if deviation <= _ROUNDING * abs(mean):
            return self, ""
        before = self.sums if len(self.sums) == len(losses) else (0.0,) * len(losses)
        windows = self.windows + 1 if self.sums == before else 1
        sums = tuple(s + (loss - mean) / deviation for s, loss in zip(before, losses, strict=True))
        odd = max(range(len(sums)), key=lambda r: abs(sums[r]))
        if self.said or windows < _LEAST_WINDOWS or abs(sums[odd]) < _CLEAR * math.sqrt(windows):
            return Standing(sums, windows, self.said), ""
        how = "worse" if sums[odd] > 0 else "better"
        return Standing(sums, windows, True), (
            f"replica {odd} is {how} than the others, whatever its values, over {windows} windows: it may "
            "train on other data, on another mix of classes or with a fault of its own, and the others are "
            "averaged with it; compare its data with theirs"
        )

    def to_row(self) -> list[float]:
        """Plain numbers, for a checkpoint."""
        return [*self.sums, float(self.windows), float(self.said)]

    @classmethod
    def from_row(cls, row: Sequence[float]) -> Standing:
        """What :meth:`to_row` wrote."""
        *sums, windows, said = row
        return cls(tuple(sums), int(windows), bool(said))
