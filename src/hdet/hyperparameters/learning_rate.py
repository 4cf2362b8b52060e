"""The learning rate: one explored value per parameter group.

``group["lr"]`` always holds the *base* value. The replica's own value replaces it only during the optimizer's
step, so schedulers and loggers see what they would see without hdet.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from hdet.hyperparameters.axis import Axis
from hdet.hyperparameters.scales import spread_of_each

__all__ = ["GroupLearningRate", "LearningRate", "separate_learning_rates"]


@dataclass(frozen=True, slots=True)
class LearningRate:
    """Explore the learning rate of every parameter group, replicas spread over ``base·[1 − α, 1 + α]``.

    Args:
        spread: α of Eq. 1, in [0, 1), for all groups or one for each. 0 explores nothing.
    """

    spread: float | Sequence[float] = 1 / 9

    def __post_init__(self) -> None:
        for spread in self.spread if isinstance(self.spread, Sequence) else [self.spread]:
            numeric = isinstance(spread, (int, float)) and not isinstance(spread, bool)
            if not (numeric and 0 <= spread < 1):
                raise ValueError(
                    f"LearningRate: spread (ensemble_lr_spread_ratio, α) must be in [0, 1), got {spread!r}"
                )

    def bind(self, optimizer: Optimizer) -> list[GroupLearningRate]:
        """One axis per parameter group."""
        spreads = spread_of_each("LearningRate", self.spread, len(optimizer.param_groups))
        return [GroupLearningRate(optimizer, i, spread) for i, spread in enumerate(spreads)]


class GroupLearningRate(Axis):
    """The learning rate of one parameter group, ``base(t) = factor · curve(t)``.

    ``curve`` is the user's schedule; ``factor`` is what a controller moves. Until it does, only the schedule
    writes ``group["lr"]``. A held curve no longer follows the schedule: the controller brings its own decay
    (Eq. 8). Learning rates that are tensors are written in place and not read between syncs, so nothing waits
    for the device; floats stay floats.
    """

    acts_in_step = True
    widest = 0.9

    def __init__(self, optimizer: Optimizer, index: int, spread: float) -> None:
        # The group is looked up every time: Optimizer.load_state_dict replaces its dictionary.
        self._optimizer = optimizer
        self._index = index
        self.name = f"lr/{index}"
        self.spread = spread
        self.factor = 1.0
        self._held_at: float | None = None
        #: The schedule's own value, once group["lr"] no longer shows it.
        self._schedule_value: float | Tensor | None = None
        #: The base while group["lr"] holds the replica's own value, and that value.
        self._base: float | Tensor | None = None
        self._own: float | Tensor = 0.0

    @property
    def curve(self) -> float:
        """What ``factor`` multiplies. Waits for the device if it is a tensor there."""
        if self._held_at is not None:
            return self._held_at
        return self.base if self._schedule_value is None else float(self._schedule_value)

    @property
    def base(self) -> float:
        """The shared value, as ``group["lr"]`` shows it. Waits for the device if it is a tensor there."""
        return float(self._optimizer.param_groups[self._index]["lr"])

    def multipliers(self, levels: Sequence[float]) -> tuple[float, ...]:
        """ρ_r = 1 + α·z_r (Eq. 1)."""
        return tuple(1.0 + self.spread * level for level in levels)

    def values(self, levels: Sequence[float]) -> tuple[float, ...]:
        base = self.base
        return tuple(base * multiplier for multiplier in self.multipliers(levels))

    def offsets(self, levels: Sequence[float]) -> tuple[float, ...]:
        return tuple(math.log(multiplier) for multiplier in self.multipliers(levels))

    def shift(self, by: float) -> None:
        self.move(self.factor * math.exp(by))

    def fan_out(self, level: float | Tensor) -> None:
        """Eq. 2: write this replica's own value into ``group["lr"]`` until :meth:`restore`.

        Both are called in every step, and call no Python themselves: ``loop/hooks.py`` counts on it.
        """
        group, multiplier = self._optimizer.param_groups[self._index], 1.0 + self.spread * level
        lr = group["lr"]
        if isinstance(lr, Tensor):
            self._base = lr.detach().clone()
            lr.mul_(multiplier)
        else:
            self._base = lr
            self._own = group["lr"] = lr * multiplier

    def restore(self) -> None:
        """Write the base value back, bit for bit, unless someone has written another one since."""
        if self._base is None:
            return
        group, own = self._optimizer.param_groups[self._index], self._own
        if isinstance(self._base, Tensor):
            group["lr"].copy_(self._base)
        elif group["lr"] is own or (not isinstance(own, Tensor) and group["lr"] == own):
            group["lr"] = self._base
        self._base = None

    @property
    def moved(self) -> bool:
        """Whether ``group["lr"]`` is no longer the schedule's alone."""
        return self._schedule_value is not None

    def uncover(self) -> None:
        """Show the schedule the value it wrote last: many schedules compute the next one from it."""
        if self._schedule_value is not None:
            _write(self._optimizer.param_groups[self._index], self._schedule_value)

    def covered(self, schedule_value: float | Tensor) -> float | Tensor:
        """Remember the schedule's new value; returns the base value that replaces it."""
        if self._schedule_value is None:
            return schedule_value
        self._schedule_value = schedule_value
        return self.factor * (schedule_value if self._held_at is None else self._held_at)

    def cover(self) -> None:
        """Show the base value again after the schedule has written its own."""
        group = self._optimizer.param_groups[self._index]
        _write(group, self.covered(_copy(group["lr"])))

    def move(self, factor: float) -> None:
        """Set the controller's factor."""
        if factor == self.factor:
            return
        if self._schedule_value is None:
            self._schedule_value = _copy(self._optimizer.param_groups[self._index]["lr"])
        self.factor = factor
        self.uncover()
        self.cover()

    def hold(self) -> None:
        """From now on the curve stays where it is, whatever the schedule does."""
        if self._held_at is None:
            self._held_at = self.curve
            self._schedule_value = _copy(self._optimizer.param_groups[self._index]["lr"])

    def state_dict(self) -> dict[str, Any]:
        kept = self._schedule_value
        return {
            "name": self.name,
            "spread": self.spread,
            "factor": self.factor,
            "held_at": self._held_at,
            "schedule_value": None if kept is None else float(kept),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.spread, self.factor, self._held_at = state["spread"], state["factor"], state["held_at"]
        self._schedule_value = state["schedule_value"]


def separate_learning_rates(optimizer: Optimizer) -> None:
    """Give every group a tensor of its own where torch has put one ``lr`` tensor into several."""
    seen: set[int] = set()
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            if id(group["lr"]) in seen:
                group["lr"] = group["lr"].detach().clone()
            seen.add(id(group["lr"]))


def _copy(value: float | Tensor) -> float | Tensor:
    return value.detach().clone() if isinstance(value, Tensor) else value


def _write(group: dict[str, Any], value: float | Tensor) -> None:
    if not isinstance(group["lr"], Tensor):
        group["lr"] = value
    elif isinstance(value, Tensor):
        group["lr"].copy_(value)
    else:
        group["lr"].fill_(value)
