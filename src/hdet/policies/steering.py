"""The three ways in which what was seen moves hyperparameters: each by a vote of the replicas' losses (the
paper), all together by a regression of the losses on them, or the learning rate by a horizon.

Controllers see factors on a schedule, or distances along a coordinate; the records are in the
hyperparameter's own units.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from hdet.controllers import Controller, ControlState, Decision, RegressionController, RegressionState
from hdet.history import HorizonRecord, HyperparameterRecord
from hdet.hyperparameters import Axis, GroupLearningRate
from hdet.policies.horizon import Horizon, Verdict, average

__all__ = ["Steered", "Steering", "by_horizon", "by_losses", "by_regression", "take_factors"]


class Steered(NamedTuple):
    """What was done to the hyperparameters, as a record keeps it."""

    hyperparameters: tuple[HyperparameterRecord, ...]
    weights: tuple[float, ...] = ()
    horizon: tuple[HorizonRecord, ...] = ()
    events: tuple[str, ...] = ()


class Steering:
    """A controller and what it remembers of every hyperparameter.

    Args:
        controller: of one hyperparameter at a time, or of all of them together; None moves nothing.
        explored: what is moved.
    """

    def __init__(
        self, controller: Controller | RegressionController | None, explored: Sequence[Axis]
    ) -> None:
        self._controller = controller
        self._explored = explored
        # The factor on the schedule that a controller moves; 1 is the schedule as it stands.
        self._states = [ControlState(1.0) for _ in explored]
        self._joint = RegressionState(())
        if isinstance(controller, RegressionController):
            spreads = [axis.spread for axis in explored]
            self._joint = controller.start(spreads, [axis.widest for axis in explored])

    def __call__(
        self, levels: Sequence[tuple[float, ...]], losses: tuple[float, ...], *, acts: bool
    ) -> Steered:
        """One sync: what every arm had, and what it came to."""
        if acts and isinstance(self._controller, RegressionController):
            self._joint, steered = by_regression(
                self._controller, self._explored, self._joint, levels, losses
            )
            return steered
        alone = self._controller if acts and isinstance(self._controller, Controller) else None
        return by_losses(alone, self._explored, self._states, levels, losses)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return {
            "states": [(state.value, state.velocity) for state in self._states],
            "joint": self._joint.to_rows(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off; a state of another kind of controller says nothing."""
        self._states = [ControlState(*saved) for saved in state["states"]]
        saved = RegressionState.from_rows(state.get("joint", [[0.0, 0.0]]))
        if len(saved.axes) == len(self._joint.axes):
            self._joint = saved


def by_losses(
    controller: Controller | None,
    explored: Sequence[Axis],
    states: list[ControlState],
    levels: Sequence[tuple[float, ...]],
    losses: tuple[float, ...],
) -> Steered:
    """Eq. 4–8 for every explored hyperparameter; ``states`` are replaced by those after it."""
    weights: tuple[float, ...] = ()
    events: list[str] = []
    records: list[HyperparameterRecord] = []
    for i, (axis, row) in enumerate(zip(explored, levels, strict=True)):
        seen = _Seen.now(axis, row)
        if controller is None:
            records.append(seen.record())
        elif isinstance(axis, GroupLearningRate):
            if controller.decay is not None:
                axis.hold()
            decision = controller.update(states[i], losses=losses, multipliers=axis.multipliers(row))
            events += _departures(axis, decision, losses)
            states[i] = decision.state
            axis.move(decision.state.value)
            weights = decision.weights
            velocity = states[i].velocity * axis.curve
            records.append(seen.record(delta=decision.delta * axis.curve, velocity=velocity))
        else:
            # Remark 1: the same rule along the coordinate, which unlike the value may be 0 or below. The
            # controller's value is 1 plus the distance from the base, and begins anew at each base.
            offsets = tuple(1.0 + offset for offset in axis.offsets(row))
            decision = controller.update(
                ControlState(1.0, states[i].velocity), losses=losses, multipliers=offsets
            )
            events += _left_out(decision.left_out, losses)
            states[i] = decision.state
            # The decay of Eq. 8 is a learning rate's.
            axis.shift(decision.state.value - (1.0 - (controller.decay or 0.0)))
            weights = decision.weights
            records.append(seen.record(delta=decision.delta, velocity=decision.state.velocity))
    return Steered(tuple(records), weights, events=tuple(events))


def by_regression(
    controller: RegressionController,
    explored: Sequence[Axis],
    state: RegressionState,
    levels: Sequence[tuple[float, ...]],
    losses: tuple[float, ...],
) -> tuple[RegressionState, Steered]:
    """All hyperparameters at once, each by its slope; their spreads follow what could be seen."""
    seen = [_Seen.now(axis, row) for axis, row in zip(explored, levels, strict=True)]
    offsets = [axis.offsets(row) for axis, row in zip(explored, levels, strict=True)]
    decision = controller.update(state, losses=losses, offsets=offsets)
    records = []
    for axis, before, estimate, known in zip(
        explored, seen, decision.estimates, decision.state.axes, strict=True
    ):
        axis.shift(estimate.move)
        axis.spread = known.spread
        records.append(before.record(delta=estimate.move, slope=estimate.slope, error=estimate.error))
    events = [f"replica {r} is heard, but not as loud: its loss is {losses[r]}" for r in decision.capped]
    events += [decision.why] if decision.why else []
    return decision.state, Steered(tuple(records), events=tuple(events))


def by_horizon(
    horizon: Horizon,
    explored: Sequence[GroupLearningRate],
    levels: Sequence[tuple[float, ...]],
    step: int,
    total_steps: int | None,
    rows: Sequence[Sequence[float]],
) -> Steered:
    """The horizon controller's turn: one factor for all hyperparameters, or one for each."""
    seen = [_Seen.now(axis, row) for axis, row in zip(explored, levels, strict=True)]
    verdict = horizon.decide(step, total_steps, rows, explored[0].curve)
    take_factors(horizon, explored)
    records = tuple(before.record(delta=before.axis.base - before.base) for before in seen)
    return Steered(records, horizon=_windows(horizon, verdict), events=tuple(verdict.events))


def _windows(horizon: Horizon, verdict: Verdict) -> tuple[HorizonRecord, ...]:
    return tuple(
        HorizonRecord(
            name="lr" if horizon.scope == "together" else f"lr/{i}",
            action=decision.action,
            speed=decision.speed,
            lag=decision.lag,
            tolerated=decision.tolerated,
            gap=decision.gap,
            progress=decision.progress,
            loss_previous=average(window.previous),
            loss_mean=average(window.mean),
            loss_end=average(window.end),
            why=decision.why,
        )
        for i, (decision, window) in enumerate(zip(verdict.decisions, verdict.windows, strict=True))
    )


def take_factors(horizon: Horizon, explored: Sequence[GroupLearningRate]) -> None:
    """Let the hyperparameters stand at the horizon's factors."""
    values = [state.value for state in horizon.states]
    for i, axis in enumerate(explored):
        axis.move(values[i % len(values)])


@dataclass(frozen=True, slots=True)
class _Seen:
    """A hyperparameter as the round that ends has had it."""

    axis: Axis
    base: float
    values: tuple[float, ...]
    multipliers: tuple[float, ...]
    spread: float

    @classmethod
    def now(cls, axis: Axis, levels: tuple[float, ...]) -> _Seen:
        multipliers = axis.multipliers(levels) if isinstance(axis, GroupLearningRate) else ()
        return cls(axis, axis.base, axis.values(levels), multipliers, axis.spread)

    def record(
        self, *, delta: float = 0.0, velocity: float = 0.0, slope: float = math.nan, error: float = math.nan
    ) -> HyperparameterRecord:
        """With what has become of it since."""
        return HyperparameterRecord(
            name=self.axis.name,
            multipliers=self.multipliers,
            values=self.values,
            base_before=self.base,
            base_after=self.axis.base,
            delta=delta,
            velocity=velocity,
            spread=self.spread,
            slope=slope,
            error=error,
        )


def _left_out(replicas: Sequence[int], losses: Sequence[float]) -> list[str]:
    return [f"replica {r} left out of the decision: its loss is {losses[r]}" for r in replicas]


def _departures(axis: GroupLearningRate, decision: Decision, losses: Sequence[float]) -> list[str]:
    events = _left_out(decision.left_out, losses)
    if decision.clamped_from is not None:
        asked = decision.clamped_from * axis.curve
        given = decision.state.value * axis.curve
        events.append(f"{axis.name}: {asked:.3g} clamped to the slowest replica's {given:.3g}")
    return events
