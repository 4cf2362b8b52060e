"""What is tuned, and within which bounds: the same space for every search.

The learning rate is that of AdamW at the peak of its schedule; who looks for it knows no more than its
decades. AutoTune is given no learning rate at all, and the same bounds for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, replace

import torch
from torch.quasirandom import SobolEngine

from benchmarks.workloads.base import generator

__all__ = ["DEFAULTS", "RANGES", "Range", "Setting", "at", "drawn", "restricted", "sobol"]


@dataclass(frozen=True, slots=True)
class Setting:
    """What one training run is done with."""

    lr: float
    weight_decay: float
    dropout: float
    label_smoothing: float

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:.3g}" for name, value in asdict(self).items())


@dataclass(frozen=True, slots=True)
class Range:
    """Bounds of one value, and whether it is drawn evenly on the scale of its logarithm.

    >>> Range(1e-4, 1.0, log=True).at(0.5)
    0.01
    """

    low: float
    high: float
    log: bool = False

    def at(self, share: float) -> float:
        """The value that lies so far between the bounds, in four digits: it reads the same everywhere."""
        if self.log:
            value = math.exp(math.log(self.low) + share * math.log(self.high / self.low))
        else:
            value = self.low + share * (self.high - self.low)
        return float(f"{value:.4g}")

    def clip(self, value: float) -> float:
        """The nearest value within the bounds."""
        return min(max(value, self.low), self.high)


#: Four decades for AdamW's learning rate; the order is that of :class:`Setting`.
RANGES = {
    "lr": Range(1e-5, 1e-1, log=True),
    "weight_decay": Range(1e-4, 1.0, log=True),
    "dropout": Range(0.0, 0.6),
    "label_smoothing": Range(0.0, 0.3),
}
#: What torch gives to who gives nothing.
DEFAULTS = Setting(lr=1e-3, weight_decay=0.01, dropout=0.0, label_smoothing=0.0)


def at(shares: Sequence[float]) -> Setting:
    """The setting at a point of the unit cube.

    >>> print(at([0.5, 0.5, 0.5, 0.5]))
    lr 0.001, weight_decay 0.01, dropout 0.3, label_smoothing 0.15
    """
    return Setting(*(known.at(share) for known, share in zip(RANGES.values(), shares, strict=True)))


def drawn(seed: int, task: str, tuned: Collection[str]) -> Iterator[Setting]:
    """Settings at random, without end: those of random search, and where populations begin.

    Each task has its own, so that one lucky draw is not counted as often as there are tasks.
    """
    draw = generator(seed, f"autotune settings {task}")
    while True:
        whole = at(torch.rand(len(RANGES), generator=draw, dtype=torch.float64).tolist())
        yield restricted(whole, tuned)


def restricted(setting: Setting, tuned: Collection[str]) -> Setting:
    """What is not tuned is as torch gives it."""
    return replace(DEFAULTS, **{name: getattr(setting, name) for name in tuned})


def sobol(number: int, tuned: Collection[str]) -> Setting:
    """A point of a scrambled Sobol sequence, which fills the space evenly: those of the sweep.

    The settings are the same for all tasks and seeds.
    """
    engine = SobolEngine(len(RANGES), scramble=True, seed=0)  # type: ignore[no-untyped-call]
    engine.fast_forward(number)  # type: ignore[no-untyped-call]
    return restricted(at(engine.draw(1, dtype=torch.float64)[0].tolist()), tuned)
