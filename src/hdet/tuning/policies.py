"""All hyperparameters at once, each by its slope: losses are regressed on the values that led to them.

The estimate is in :mod:`hdet.tuning.regression`; these policies apply it along each one's coordinate.
``Ensemble`` compares replicas every T steps (:class:`Regression`). ``AutoTune`` decides in the windows of
AutoLR's policy, by the means over them: several replicas are compared with one another
(:class:`WindowRegression`); one alone tries values one window after the other
(:class:`SequentialRegression`), which tells less, and later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from hdet.autolr.policy import Horizon
from hdet.hyperparameters import Axis, Explorable
from hdet.loop.comparison import Comparison, mean_loss
from hdet.loop.policy import Context, Decided, Seen
from hdet.tuning.regression import RegressionController, RegressionState
from hdet.tuning.standing import Standing

__all__ = ["Regression", "SequentialRegression", "WindowRegression", "windows_in_turn"]


class Regression(Comparison):
    """One controller for all hyperparameters together; their spreads follow what could be seen."""

    kind = "regression"
    estimates_jointly = True
    _moves_at_the_end = False
    _controller: RegressionController
    _state: RegressionState

    def bind(self, axes: Sequence[Axis], context: Context) -> None:
        super().bind(axes, context)
        self._state = self._controller.start([axis.spread for axis in axes], [axis.widest for axis in axes])

    def move(self, levels: Sequence[tuple[float, ...]], losses: tuple[float, ...]) -> Decided:
        offsets = [axis.offsets(row) for axis, row in zip(self.axes, levels, strict=True)]
        return self.apply(levels, losses, offsets)

    def apply(
        self,
        levels: Sequence[tuple[float, ...]],
        losses: tuple[float, ...],
        offsets: Sequence[tuple[float, ...]],
    ) -> Decided:
        """Move each by what the controller makes of ``losses`` at ``offsets``."""
        seen = self.before(levels)
        decision = self._controller.update(self._state, losses=losses, offsets=offsets)
        self._state = decision.state
        records = []
        for before, estimate, known in zip(seen, decision.estimates, decision.state.axes, strict=True):
            before.axis.shift(estimate.move)
            before.axis.spread = known.spread
            records.append(before.record(delta=estimate.move, slope=estimate.slope, error=estimate.error))
        events = [f"replica {r} is heard, but not as loud: its loss is {losses[r]}" for r in decision.capped]
        events += [decision.why] if decision.why else []
        moved = [e.slope * e.move for e in decision.estimates if e.move]
        return Decided(tuple(records), events=tuple(events), explained=math.fsum(moved))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "joint": self._state.to_rows()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        saved = RegressionState.from_rows(state["joint"])
        # Slopes of other hyperparameters say nothing here.
        if len(saved.axes) == len(self._state.axes):
            self._state = saved


class WindowRegression(Regression):
    """Replicas explore while the learning rate is searched; each is judged at its own mean over the window.

    Args:
        explore: what is moved.
        horizon: whose windows they are. It comes first among the policies: its decision may undo a window.
        controller: the rule.
    """

    _standing = Standing()

    def __init__(
        self, explore: Sequence[Explorable], horizon: Horizon, controller: RegressionController
    ) -> None:
        super().__init__(explore, horizon.windows, controller)
        self._horizon = horizon
        self.probes, self.needs_loss = True, False

    def facts(self) -> dict[str, str]:
        return {"regression controller": repr(self._controller)}

    def bind(self, axes: Sequence[Axis], context: Context) -> None:
        super().bind(axes, context)
        if not self._horizon.axes:
            raise ValueError(
                f"{context.caller}: the horizon must come first among the policies, got it later"
            )

    def start(self, step: int) -> None:
        self.window_end = self._horizon.window_end if self._horizon.learns else None

    @property
    def learns(self) -> bool:
        """Early on, regularisation looks bad because it slows learning, even where it helps later: nothing is
        explored before there was a window that did not improve."""
        return self._horizon.stood and super().learns

    def judges(self, step: int) -> bool:
        return self._horizon.learns and self._horizon.judges(step)

    def end_at(self, step: int) -> None:
        self.start(step)

    def at_own(self) -> list[float | Tensor]:
        """A mean is finite only if every iterate was: a lost replica shows here. As long as all have one
        gradient their means are that of all, which need not be measured twice."""
        self.own_loss = None
        if self._context.shares():
            return []
        self.own_loss = _mean_of_each(self._horizon.losses_at_own_mean())
        return [self.own_loss]

    def at_mean(self) -> list[float | Tensor]:
        """The horizon has measured it, on the same batches."""
        mean = _mean_of_each(self._horizon.mean_losses)
        return [mean, mean] if self._context.shares() else [mean]

    def move(self, levels: Sequence[tuple[float, ...]], losses: tuple[float, ...]) -> Decided:
        """By windows that did not improve alone: in others a value may be better because it learns faster."""
        self._standing, odd = self._standing.after(losses)
        decided = self.observe(levels) if self._horizon.improves else super().move(levels, losses)
        return replace(decided, events=(*decided.events, odd)) if odd else decided

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "standing": self._standing.to_row()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._standing = Standing.from_row(state["standing"])


def windows_in_turn(hyperparameters: int) -> int:
    """How many windows a decision takes: their differences separate the hyperparameters, a trend and noise.

    >>> windows_in_turn(1), windows_in_turn(3), windows_in_turn(6)
    (4, 8, 12)
    """
    return 4 * -(-(hyperparameters + 3) // 4)


class SequentialRegression(WindowRegression):
    """One replica tries values one window after the other; what a window gained speaks for those it had.

    A block of windows has each value high as often as low, in an order that tells all of them apart. Two
    neighbours are compared, relative to what both gained, so that it does not matter how much a window gains
    in this part of the run; that they gain more and more, or less and less, is the same for all.
    """

    kind = "in turn"

    def bind(self, axes: Sequence[Axis], context: Context) -> None:
        super().bind(axes, context)
        self._length = windows_in_turn(len(axes))
        self._forget()
        #: How much worse than its neighbour a window was, and by how much its values differed.
        self._block: list[tuple[float, list[float]]] = []

    def _forget(self) -> None:
        """The averaged model's loss after the last window; what that one gained, and at which offsets."""
        self._before: float | None = None
        self._last: tuple[float, list[float]] | None = None

    def warnings(self) -> list[str]:
        names = ", ".join(axis.name for axis in self.axes)
        return [
            f"one replica alone tries {names} in turn, and decides every {self._length} windows; with "
            f"{len(self.axes) + 1} replicas or more (processes, or hdet.StackedReplicas) they are compared "
            "in every window"
        ]

    def _apply(self, seen: Seen) -> Decided:
        self.start(seen.step)
        ((own, mean),) = seen.rows
        if self._before is not None and any(map(any, seen.levels)):
            offsets = [axis.offsets(row)[0] for axis, row in zip(self.axes, seen.levels, strict=True)]
            self._compare(self._before - own, offsets)
        self._before = mean
        decided = self.observe(seen.levels)
        if len(self._block) >= self._length and seen.step != seen.total_steps:
            decided = self._move_block(seen)
        return replace(decided, held_out=(own,), held_out_mean=mean)

    def missed(self, step: int) -> None:
        """The weights are not those that the last window left."""
        super().missed(step)
        self._forget()

    def _compare(self, gained: float, offsets: list[float]) -> None:
        if self._last is not None:
            before, others = self._last
            both = abs(gained) + abs(before)
            worse = (before - gained) / both if both > 0 else 0.0
            self._block.append((worse, [x - o for x, o in zip(offsets, others, strict=True)]))
        self._last = gained, offsets

    def _move_block(self, seen: Seen) -> Decided:
        worse = tuple(found for found, _ in self._block)
        columns = [tuple(values) for values in zip(*(differ for _, differ in self._block), strict=True)]
        self._block, self._last = [], None  # offsets are from another base from now on
        # A slope of shares is no loss: nothing is explained by it.
        return replace(self.apply(seen.levels, worse, columns), explained=0.0)

    def state_dict(self) -> dict[str, Any]:
        block = [[worse, list(differ)] for worse, differ in self._block]
        last = None if self._last is None else [self._last[0], list(self._last[1])]
        return {**super().state_dict(), "before": self._before, "last": last, "block": block}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._before, last = state["before"], state["last"]
        self._last = None if last is None else (last[0], list(last[1]))
        self._block = [(worse, list(differ)) for worse, differ in state["block"]]


def _mean_of_each(losses: Sequence[float | Tensor]) -> float | Tensor:
    """Over batches; where this process holds several replicas, for each of them."""
    rows = [loss for loss in losses if isinstance(loss, Tensor)]
    return torch.stack(rows).mean(0) if rows else mean_loss([float(loss) for loss in losses])
