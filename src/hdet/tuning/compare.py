"""All hyperparameters at once, each by its slope: the losses of all arms are regressed on what they had.

The estimate stands in :mod:`hdet.tuning.regression`; here it is applied, along each one's coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hdet.hyperparameters import Axis, Explorable
from hdet.loop.comparison import Clock, Comparison
from hdet.loop.policy import Context, Decided
from hdet.probes import Probe
from hdet.tuning.regression import RegressionController, RegressionState

__all__ = ["Regression"]


class Regression(Comparison):
    """One controller for all hyperparameters together; their spreads follow what could be seen.

    Args:
        explore: what is moved.
        clock: when rounds end.
        controller: the rule.
        probe: judges by held-out batches instead of the training loss.
        act_from: S_w, the first step at which anything moves.
    """

    kind = "regression"
    estimates_jointly = True
    _moves_at_the_end = False

    def __init__(
        self,
        explore: Sequence[Explorable],
        clock: Clock,
        controller: RegressionController,
        *,
        probe: Probe | None = None,
        act_from: int = 0,
    ) -> None:
        super().__init__(explore, clock, probe=probe, act_from=act_from)
        self._controller = controller
        self._state = RegressionState(())

    def facts(self) -> dict[str, str]:
        return {**super().facts(), "controller": repr(self._controller)}

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
