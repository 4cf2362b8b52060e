"""Fan-out (Eq. 2): which level each replica has of every hyperparameter, and its own values in their places.

The levels are dealt anew in every round (Eq. 9). What the optimizer reads stands at the replica's own value
while it steps; what the forward pass reads does so from one round's deal until :meth:`FanOut.stand_down`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer

from hdet.engine.design import DESIGNS, Design, permuted
from hdet.hyperparameters import Axis, Explorable, GroupLearningRate, Rows
from hdet.replicas import Replicas

__all__ = ["FanOut", "bind", "stack"]


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
        refit: the design for another number of arms, and what is wrong with it; None keeps the one there is.
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
        refit: Callable[[int], tuple[Design, str]] | None = None,
    ) -> None:
        self._first_round = first_round
        self.axes = list(axes)
        self.learning_rates = [axis for axis in axes if isinstance(axis, GroupLearningRate)]
        self.seed = seed
        self.arms = arms
        #: None where this replica has joined since the round was dealt: it has the base values.
        self.arm: int | None = arm
        self._here = here
        self._refit = refit
        self._deal = DESIGNS[design]
        self._up = self._closed = False
        #: The level of every arm, for each axis.
        self.levels: list[tuple[float, ...]] = []

    def seat(self, arms: int, arm: int | None) -> str:
        """Who is there when the next round is dealt; what is wrong with its design, if anything."""
        trouble = ""
        if arms != self.arms and self._refit is not None:
            design, trouble = self._refit(arms)
            self._deal = DESIGNS[design]
        self.arms, self.arm = arms, arm
        return trouble

    def narrow(self, arms: Sequence[int]) -> None:
        """Of the round that ends, let the levels be those of some arms, in this order."""
        self.levels = [tuple(row[arm] for arm in arms) for row in self.levels]

    def assign(self, round: int, exploring: Collection[Axis] | None = None) -> None:
        """Deal the levels of a round; of what is not among ``exploring`` everybody has the base value."""
        self.stand_down()
        exploring = self.axes if exploring is None else exploring
        spread_out = [
            axis.name for axis in self.axes if not self._closed and axis in exploring and axis.spread > 0
        ]
        dealt = (
            self._deal(self.arms, spread_out, seed=self.seed, round=round + self._first_round)
            if spread_out
            else []
        )
        by_name = dict(zip(spread_out, dealt, strict=True))
        nobody = (0.0,) * self.arms
        self.levels = [by_name.get(axis.name, nobody) for axis in self.axes]
        own = [
            (axis, self._own(row))
            for axis, row in zip(self.axes, self.levels, strict=True)
            if self._differs(row)
        ]
        self._in_step = [(axis, level) for axis, level in own if axis.acts_in_step]
        self._throughout = [(axis, level) for axis, level in own if not axis.acts_in_step]
        self._stand_up()

    def levels_of(self, axes: Sequence[Axis]) -> list[tuple[float, ...]]:
        """The levels of some of them."""
        by_name = dict(zip((axis.name for axis in self.axes), self.levels, strict=True))
        return [by_name[axis.name] for axis in axes]

    def values_of(self, name: str) -> tuple[float, ...] | None:
        """What every arm has of one hyperparameter in this round; None where it is not explored."""
        for axis, row in zip(self.axes, self.levels or [(0.0,) * self.arms] * len(self.axes), strict=True):
            if axis.name == name:
                return axis.values(row)
        return None

    def _differs(self, row: Sequence[float]) -> bool:
        return self.arm is not None and any(row[self.arm : self.arm + self._here])

    def _own(self, row: Sequence[float]) -> float | Tensor:
        assert self.arm is not None
        own = row[self.arm : self.arm + self._here]
        return own[0] if self._here == 1 else torch.tensor(own, dtype=torch.float64)

    @property
    def explores(self) -> bool:
        """Whether any arm has another value than the base in this round."""
        return any(map(any, self.levels))

    def doubt(self) -> str:
        """Whether the design tells hyperparameters apart poorly."""
        count = sum(axis.spread > 0 for axis in self.axes)
        if self._deal is not permuted or count < 2 or self.arms == 1 or count <= (self.arms - 1) / 2:
            return ""
        return (
            f"{self.arms} replicas with values of their own tell {count} hyperparameters apart poorly by "
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

    @contextmanager
    def held(self, moving: Collection[Axis]) -> Iterator[None]:
        """Within, only what is ``moving`` moves: weights that go back may bring older values of others with
        them, in the optimizer's groups or in a model's buffers. The base values stand everywhere."""
        kept = [(axis, axis.base, axis.state_dict()) for axis in self.axes if axis not in moving]
        yield
        for axis, base, state in kept:
            if axis.base != base:
                axis.load_state_dict(state)

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


def bind(caller: str, explore: Sequence[Sequence[Explorable]], optimizer: Optimizer) -> list[list[Axis]]:
    """The explored scalars of every policy in their places, each under a name of its own."""
    for item in (item for items in explore for item in items):
        if isinstance(item, type) or not isinstance(item, Explorable):
            got = f"the class {item.__name__}" if isinstance(item, type) else type(item).__name__
            raise TypeError(
                f"{caller}: explore must be a list of hyperparameters such as hdet.WeightDecay(), got "
                f"{got}; wrap any other scalar in hdet.Hyperparameter"
            )
    bound: list[list[Axis]] = []
    try:
        for items in explore:
            bound.append([])
            for item in items:
                bound[-1] += item.bind(optimizer)
        names = [axis.name for axes in bound for axis in axes]
        if len(set(names)) < len(names):
            raise ValueError(
                f"{caller}: explore must name each hyperparameter once, got {', '.join(names)}; give those "
                "of one kind a name= each"
            )
    except BaseException:
        for axis in (axis for axes in bound for axis in axes):
            axis.close()
        raise
    return bound


def stack(caller: str, axes: Sequence[Axis], replicas: Replicas) -> None:
    """Let the replicas that this process holds differ in all that is explored, or raise TypeError."""
    for axis in axes:
        if axis.acts_in_step:
            continue
        if not isinstance(replicas, Rows):
            raise TypeError(
                f"{caller}: several replicas of one process differ in {axis.name} as rows of one matrix, "
                f"got {type(replicas).__name__}; use hdet.StackedReplicas, or one process per replica"
            )
        axis.stack(caller, replicas)
