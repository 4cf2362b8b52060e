"""Fan-out (Eq. 2): which level each replica has of every hyperparameter, and writing its own values.

The levels are dealt again in every round (Eq. 9), one set of values for each *arm*: the replicas that share
gradients. What the optimizer reads has the replica's own value while it steps; what the forward pass reads,
from one round's deal until :meth:`FanOut.restore`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn

from hdet.hyperparameters import Axis, GroupLearningRate
from hdet.loop.levels import DESIGNS, Design, permuted
from hdet.replicas import Arms, Replicas, ddps, refuse_wiring

__all__ = ["FanOut", "GradientSharing", "Gradients"]

#: ``"all"``: one gradient for everybody, as in the paper; replicas differ by what the optimizer makes of it.
#: ``"none"``: every rank its own. :class:`~hdet.Arms`: one for each arm, whose ranks explore the same values;
#: of replicas that are stacked, the number of arms that they were stacked with. ``"switch"``: first one for
#: everybody, and from the first window that does not improve on every rank its own.
Gradients = Literal["all", "none", "switch"] | int | Arms


class GradientSharing:
    """How many sets of values there are, and which of them is this rank's.

    Args:
        model: if it is wrapped in DDP, that must fit.
    """

    def __init__(
        self, caller: str, gradients: Gradients, replicas: Replicas, model: nn.Module | None
    ) -> None:
        if replicas.gradients not in (None, gradients):
            how = "were stacked with" if replicas.local_count > 1 else "share by the model's own mesh"
            raise ValueError(
                f"{caller}: gradients must be what the replicas {how}, {replicas.gradients!r}, "
                f"got {gradients!r}; give both the same"
            )
        known = "all", "none", "switch", replicas.gradients
        if not isinstance(gradients, Arms) and gradients not in known:
            raise ValueError(
                f"{caller}: gradients must be 'all', 'none', 'switch' or an hdet.Arms, got {gradients!r}"
            )
        if isinstance(gradients, Arms) and gradients.ranks != replicas.size:
            raise ValueError(
                f"{caller}: gradients must be arms of the {replicas.size} ranks here, got {gradients!r} of "
                f"{gradients.ranks}; give Arms and {caller} the same process_group"
            )
        arms = gradients.count if isinstance(gradients, Arms) else gradients
        among = replicas.size if arms == "all" else 1
        if isinstance(arms, int):
            among = replicas.size // arms
        #: Whether there is one gradient for everybody at first, and each rank has its own later; and now.
        self.shares_first = self.shares = gradients == "switch" and replicas.size > 1
        self._ddps = ddps(model) if self.shares_first else []
        #: Whether ranks differ by more than what the optimizer makes of one gradient.
        self.own_gradients = among < replicas.size
        #: Ranks that have all values in common.
        self.ranks_per_arm = among if self.own_gradients else 1
        #: How many sets of values there are, and which of them is this rank's.
        self.arms = replicas.size // self.ranks_per_arm
        self.arm = replicas.rank // self.ranks_per_arm
        if replicas.size > 1 and model is not None:
            wired = replicas.size if self.shares_first else among
            refuse_wiring(caller, model, wired, gradients.members if isinstance(gradients, Arms) else None)

    def part(self, apart: bool = True) -> None:
        """From the next step on DDP leaves each rank the gradient that it has, or shares them again."""
        self.shares = not apart
        for ddp in self._ddps:
            ddp.require_backward_grad_sync = not apart

    def by_arm(self, values: Sequence[float]) -> tuple[float, ...]:
        """The mean of every arm's ranks: they are one replica, measured several times."""
        k = self.ranks_per_arm
        if k == 1:
            return tuple(values)
        groups = [values[i : i + k] for i in range(0, len(values), k)]
        return tuple(math.fsum(group) / k if all(map(math.isfinite, group)) else math.nan for group in groups)


class FanOut:
    """The explored hyperparameters of one replica among several.

    Args:
        arms: how many different sets of values there are: one for each group of ranks that shares gradients.
        arm: this replica's.
        local_count: how many replicas this process holds; ``arm`` is the first one's.
        ranks_per_arm: how many consecutive replicas are one arm.
        first_round: the number of the design's round that is dealt first.
        reassign_from: the first round in which replicas swap values; before it each keeps its first one.
    """

    def __init__(
        self,
        axes: Sequence[Axis],
        *,
        arms: int,
        arm: int,
        local_count: int = 1,
        ranks_per_arm: int = 1,
        design: Design,
        seed: int,
        first_round: int = 0,
        reassign_from: float = 0,
    ) -> None:
        self._first_round = first_round
        self._reassign_from = reassign_from
        self.axes = list(axes)
        self.learning_rates = [axis for axis in axes if isinstance(axis, GroupLearningRate)]
        self.seed = seed
        self.arms = arms
        self.arm = arm
        #: Of every replica in this process.
        self._own_arms = [arm + r // ranks_per_arm for r in range(local_count)]
        self._deal = DESIGNS[design]
        self._is_out = self._closed = False
        #: What is written into the optimizer's groups while it steps, and this replica's level of it.
        self.in_step: list[tuple[Axis, float | Tensor]] = []
        #: Whether that is learning rates alone.
        self.only_rates = True
        self._throughout: list[tuple[Axis, float | Tensor]] = []
        #: The level of every arm, for each axis.
        self.levels: list[tuple[float, ...]] = []

    def assign(self, round: int, exploring: Collection[Axis] | None = None) -> None:
        """Deal the levels of a round; of what is not among ``exploring`` everybody has the base value."""
        self.restore()
        exploring = self.axes if exploring is None else exploring
        spread_out = [
            axis.name for axis in self.axes if not self._closed and axis in exploring and axis.spread > 0
        ]
        number = self._first_round + (round if round >= self._reassign_from else 0)
        dealt = self._deal(self.arms, spread_out, seed=self.seed, round=number) if spread_out else []
        by_name = dict(zip(spread_out, dealt, strict=True))
        nobody = (0.0,) * self.arms
        self.levels = [by_name.get(axis.name, nobody) for axis in self.axes]
        own = [
            (axis, self._own(row))
            for axis, row in zip(self.axes, self.levels, strict=True)
            if any(row[arm] for arm in self._own_arms)
        ]
        self.in_step = [(axis, level) for axis, level in own if axis.acts_in_step]
        self.only_rates = all(isinstance(axis, GroupLearningRate) for axis, _ in self.in_step)
        self._throughout = [(axis, level) for axis, level in own if not axis.acts_in_step]
        self._write_own()

    def levels_of(self, axes: Sequence[Axis]) -> list[tuple[float, ...]]:
        """The levels of some of them."""
        by_name = dict(zip((axis.name for axis in self.axes), self.levels, strict=True))
        return [by_name[axis.name] for axis in axes]

    def _own(self, row: Sequence[float]) -> float | Tensor:
        own = [row[arm] for arm in self._own_arms]
        return own[0] if len(own) == 1 else torch.tensor(own, dtype=torch.float64)

    @property
    def explores(self) -> bool:
        """Whether any arm has another value than the base in this round."""
        return any(map(any, self.levels))

    def warning(self) -> str:
        """Whether the design separates hyperparameters poorly; empty if not."""
        count = sum(axis.spread > 0 for axis in self.axes)
        if self._deal is not permuted or count < 2 or self.arms == 1 or count <= (self.arms - 1) / 2:
            return ""
        return (
            f"{self.arms} replicas with values of their own separate {count} hyperparameters poorly by "
            "random permutations; use a multiple of 4 of them, or explore fewer"
        )

    @property
    def multipliers(self) -> list[tuple[float, ...]]:
        """ρ of every arm, for each learning rate (Eq. 1)."""
        rows = zip(self.axes, self.levels, strict=True)
        return [axis.multipliers(row) for axis, row in rows if isinstance(axis, GroupLearningRate)]

    def restore(self) -> None:
        """Write the base values everywhere."""
        for axis in self.axes:
            axis.restore()
        self._is_out = False

    @contextmanager
    def at_base(self) -> Iterator[None]:
        """Within, everything has its base value."""
        was_out = self._is_out
        self.restore()
        try:
            yield
        finally:
            if was_out:
                self._write_own()

    @contextmanager
    def silenced(self) -> Iterator[None]:
        """Within, regularisers are off; everything else stays as it is."""
        was_out = self._is_out
        regularisers = [axis for axis in self.axes if axis.regulariser]
        for axis in regularisers:
            axis.silence()
        try:
            yield
        finally:
            for axis in regularisers:
                axis.restore()
            if was_out:
                self._write_own()

    @contextmanager
    def held(self, moving: Collection[Axis]) -> Iterator[None]:
        """Within, only what is ``moving`` moves: weights that go back may bring older values of others with
        them, in the optimizer's groups or in a model's buffers. Everything has its base value."""
        kept = [(axis, axis.base, axis.state_dict()) for axis in self.axes if axis not in moving]
        yield
        for axis, base, state in kept:
            if axis.base != base:
                axis.load_state_dict(state)

    def close(self) -> None:
        """For good: the base values stay. One that cannot be written keeps none of the others."""
        self._closed = True
        self.in_step = self._throughout = []
        failures = []
        for axis in self.axes:
            try:
                axis.close()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _write_own(self) -> None:
        for axis, level in self._throughout:
            axis.fan_out(level)
        self._is_out = bool(self._throughout)
