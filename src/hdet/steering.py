"""The two ways in which what was seen moves a hyperparameter: by the replicas' losses, or by a horizon.

Controllers see factors on a schedule; the records are in the hyperparameter's own units.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from hdet.controllers import Controller, ControlState, Decision
from hdet.history import HorizonRecord, HyperparameterRecord
from hdet.horizon import Horizon, Verdict, average
from hdet.hyperparameters import GroupLearningRate

__all__ = ["Steered", "by_horizon", "by_losses", "take_factors"]


class Steered(NamedTuple):
    """What was done to the hyperparameters, as a record keeps it."""

    hyperparameters: tuple[HyperparameterRecord, ...]
    weights: tuple[float, ...] = ()
    horizon: tuple[HorizonRecord, ...] = ()
    events: tuple[str, ...] = ()


def by_losses(
    controller: Controller | None,
    explored: Sequence[GroupLearningRate],
    states: list[ControlState],
    multipliers: Sequence[tuple[float, ...]],
    losses: tuple[float, ...],
) -> Steered:
    """Eq. 4–8 for every explored hyperparameter; ``states`` are replaced by those after it."""
    weights: tuple[float, ...] = ()
    events: list[str] = []
    records: list[HyperparameterRecord] = []
    for i, (axis, rho) in enumerate(zip(explored, multipliers, strict=True)):
        before, delta = axis.base, 0.0
        if controller is not None:
            if controller.decay is not None:
                axis.hold()
            decision = controller.update(states[i], losses=losses, multipliers=rho)
            events += _departures(axis, decision, losses)
            states[i] = decision.state
            axis.move(decision.state.value)
            weights, delta = decision.weights, decision.delta
        records.append(_record(axis, rho, before, delta * axis.curve, states[i].velocity * axis.curve))
    return Steered(tuple(records), weights, events=tuple(events))


def by_horizon(
    horizon: Horizon,
    explored: Sequence[GroupLearningRate],
    multipliers: Sequence[tuple[float, ...]],
    step: int,
    total_steps: int | None,
    rows: Sequence[Sequence[float]],
) -> Steered:
    """The horizon controller's turn: one factor for all hyperparameters, or one for each."""
    before = [axis.base for axis in explored]
    verdict = horizon.decide(step, total_steps, rows, explored[0].curve)
    take_factors(horizon, explored)
    records = tuple(
        _record(axis, rho, was, axis.base - was, 0.0)
        for axis, rho, was in zip(explored, multipliers, before, strict=True)
    )
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


def _record(
    axis: GroupLearningRate, multipliers: tuple[float, ...], before: float, delta: float, velocity: float
) -> HyperparameterRecord:
    return HyperparameterRecord(
        name=axis.name,
        multipliers=multipliers,
        values=tuple(before * multiplier for multiplier in multipliers),
        base_before=before,
        base_after=axis.base,
        delta=delta,
        velocity=velocity,
    )


def _departures(axis: GroupLearningRate, decision: Decision, losses: Sequence[float]) -> list[str]:
    events = [f"replica {r} left out of the decision: its loss is {losses[r]}" for r in decision.left_out]
    if decision.clamped_from is not None:
        asked = decision.clamped_from * axis.curve
        given = decision.state.value * axis.curve
        events.append(f"{axis.name}: {asked:.3g} clamped to the slowest replica's {given:.3g}")
    return events
