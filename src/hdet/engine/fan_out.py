"""Fan-out (Eq. 2): which level each replica has of every hyperparameter, and its own values in their places.

The levels are dealt anew in every round (Eq. 9). What the optimizer reads stands at the replica's own value
while it steps; what the forward pass reads does so from one round's deal until :meth:`FanOut.stand_down`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from hdet.engine.design import hadamard, orthogonal, permuted
from hdet.hyperparameters import Axis, Explorable, GroupLearningRate

__all__ = ["Design", "FanOut", "bind", "choose_design"]

Design = Literal["permutation", "orthogonal"]
_DEAL: dict[Design, Callable[..., list[tuple[float, ...]]]] = {
    "permutation": permuted,
    "orthogonal": orthogonal,
}


class FanOut:
    """The explored hyperparameters of one replica among several.

    Args:
        axes: what is explored.
        arms: how many different sets of values there are: one for each group of ranks that shares gradients.
        arm: this replica's.
        here: how many replicas this process holds; ``arm`` is the first one's.
        design: how levels are dealt.
        seed: of the deal.
        first_round: the number of the design's round that is dealt first.
    """

    def __init__(
        self,
        axes: Sequence[Axis],
        *,
        arms: int,
        arm: int,
        here: int = 1,
        design: Design,
        seed: int,
        first_round: int = 0,
    ) -> None:
        self._first_round = first_round
        self.axes = list(axes)
        self.learning_rates = [axis for axis in axes if isinstance(axis, GroupLearningRate)]
        self.seed = seed
        self._arms = arms
        self._arm = arm
        self._here = here
        self._deal = _DEAL[design]
        self._up = self._closed = False
        #: The level of every arm, for each axis.
        self.levels: list[tuple[float, ...]] = []

    def assign(self, round: int, *, explore: bool = True) -> None:
        """Deal the levels of a round; without ``explore`` everybody has the base values."""
        self.stand_down()
        explore = explore and not self._closed
        spread_out = [axis.name for axis in self.axes if explore and axis.spread > 0]
        dealt = (
            self._deal(self._arms, spread_out, seed=self.seed, round=round + self._first_round)
            if spread_out
            else []
        )
        by_name = dict(zip(spread_out, dealt, strict=True))
        nobody = (0.0,) * self._arms
        self.levels = [by_name.get(axis.name, nobody) for axis in self.axes]
        own = [
            (axis, self._own(row))
            for axis, row in zip(self.axes, self.levels, strict=True)
            if self._differs(row)
        ]
        self._in_step = [(axis, level) for axis, level in own if axis.acts_in_step]
        self._throughout = [(axis, level) for axis, level in own if not axis.acts_in_step]
        self._stand_up()

    def _differs(self, row: Sequence[float]) -> bool:
        return any(row[self._arm : self._arm + self._here])

    def _own(self, row: Sequence[float]) -> float | Tensor:
        own = row[self._arm : self._arm + self._here]
        return own[0] if self._here == 1 else torch.tensor(own, dtype=torch.float64)

    @property
    def explores(self) -> bool:
        """Whether any arm has another value than the base in this round."""
        return any(map(any, self.levels))

    def doubt(self) -> str:
        """Whether the design tells hyperparameters apart poorly."""
        count = sum(axis.spread > 0 for axis in self.axes)
        if self._deal is not permuted or count < 2 or self._arms == 1 or count <= (self._arms - 1) / 2:
            return ""
        return (
            f"{self._arms} replicas with values of their own tell {count} hyperparameters apart poorly by "
            "random permutations; use a multiple of 4 of them, or explore fewer"
        )

    @property
    def multipliers(self) -> list[tuple[float, ...]]:
        """ρ of every arm, for each learning rate (Eq. 1)."""
        rows = zip(self.axes, self.levels, strict=True)
        return [axis.multipliers(row) for axis, row in rows if isinstance(axis, GroupLearningRate)]

    def enter_step(self) -> None:
        """The optimizer is about to read."""
        for axis, level in self._in_step:
            axis.fan_out(level)

    def leave_step(self) -> None:
        """It has."""
        for axis, _ in self._in_step:
            axis.restore()

    def stand_down(self) -> None:
        """The base values stand everywhere."""
        for axis in self.axes:
            axis.restore()
        self._up = False

    @contextmanager
    def at_base(self) -> Iterator[None]:
        """Within, the base values stand everywhere."""
        was_up = self._up
        self.stand_down()
        try:
            yield
        finally:
            if was_up:
                self._stand_up()

    @contextmanager
    def silenced(self) -> Iterator[None]:
        """Within, regularisers are off; what is no regulariser stays as it stands."""
        was_up = self._up
        for axis in self.axes:
            if axis.regulariser:
                axis.silence()
        try:
            yield
        finally:
            for axis in self.axes:
                if axis.regulariser:
                    axis.restore()
            if was_up:
                self._stand_up()

    def close(self) -> None:
        """For good: the base values stay. One that cannot be written keeps none of the others."""
        self._closed = True
        self._in_step = self._throughout = []
        failures = []
        for axis in self.axes:
            try:
                axis.close()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _stand_up(self) -> None:
        for axis, level in self._throughout:
            axis.fan_out(level)
        self._up = True


def bind(
    caller: str, explore: Sequence[Explorable], optimizer: Optimizer, *, learning_rate_alone: bool
) -> list[Axis]:
    """The explored scalars in their places, each under a name of its own."""
    for item in explore:
        if isinstance(item, type) or not isinstance(item, Explorable):
            got = f"the class {item.__name__}" if isinstance(item, type) else type(item).__name__
            raise TypeError(
                f"{caller}: explore must be a list of hyperparameters such as hdet.WeightDecay(), got "
                f"{got}; wrap any other scalar in hdet.Hyperparameter"
            )
    axes: list[Axis] = []
    try:
        for item in explore:
            axes += item.bind(optimizer)
        names = [axis.name for axis in axes]
        if len(set(names)) < len(names):
            raise ValueError(
                f"{caller}: explore must name each hyperparameter once, got {', '.join(names)}; give those "
                "of one kind a name= each"
            )
        others = [axis.name for axis in axes if not isinstance(axis, GroupLearningRate)]
        if learning_rate_alone and others:
            raise TypeError(f"{caller}: a horizon judges the learning rate alone, got {', '.join(others)}")
    except BaseException:
        for axis in axes:
            axis.close()
        raise
    return axes


def choose_design(
    caller: str, asked: Design | None, axes: Sequence[Axis], arms: int, *, regresses: bool
) -> Design:
    """The design asked for, or the best there is; an error where it cannot separate the axes."""
    explored = [axis.name for axis in axes if axis.spread > 0]
    if asked not in (None, *_DEAL):
        raise ValueError(f"{caller}: design must be 'permutation' or 'orthogonal', got {asked!r}")
    if arms == 1:
        return "permutation"  # one level each, and that is 0
    if regresses and len(explored) > arms - 1:
        raise ValueError(
            f"{caller}: {arms} replicas with values of their own tell at most {arms - 1} hyperparameters "
            f"apart, got {len(explored)} ({', '.join(explored)}); explore fewer, or use more replicas or arms"
        )
    if asked == "orthogonal":
        try:
            hadamard(arms)
            orthogonal(arms, explored, seed=0, round=0)
        except ValueError as error:
            raise ValueError(f"{caller}: {error}") from error
        return asked
    if asked is None and regresses and arms >= 4 and _exists(arms):
        return "orthogonal"
    return "permutation"


def _exists(size: int) -> bool:
    try:
        hadamard(size)
    except ValueError:
        return False
    return True
