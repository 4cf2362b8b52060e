"""The paper's policy (Eq. 4–8): each hyperparameter by itself, moved towards what the better replicas had.

The equations are in :mod:`hdet.published.softmax`. This policy applies them: a learning rate is seen as a
factor on its schedule, anything else as a distance along its coordinate (Remark 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hdet.history import HyperparameterRecord
from hdet.hyperparameters import Axis, GroupLearningRate
from hdet.loop.comparison import Comparison
from hdet.loop.policy import Context, Decided, Seen
from hdet.published.softmax import ControlState, Decision, SoftmaxController

__all__ = ["PrintedVote", "Vote"]


class Vote(Comparison):
    """One controller for every hyperparameter, each with a state of its own."""

    kind = "vote"
    _controller: SoftmaxController
    _states: list[ControlState]

    def bind(self, axes: Sequence[Axis], context: Context) -> None:
        super().bind(axes, context)
        # The factor on the schedule that a controller moves; 1 is the schedule as it stands.
        self._states = [ControlState(1.0) for _ in axes]

    def move(self, levels: Sequence[tuple[float, ...]], losses: tuple[float, ...]) -> Decided:
        weights: tuple[float, ...] = ()
        events: list[str] = []
        records: list[HyperparameterRecord] = []
        for i, before in enumerate(self.before(levels)):
            axis = before.axis
            if isinstance(axis, GroupLearningRate):
                decision = self._move_factor(axis, self._states[i], before.multipliers, losses)
                unit = axis.curve  # the controller's numbers are factors on it
            else:
                decision = self._move_along(axis, self._states[i], levels[i], losses)
                unit = 1.0
            self._states[i] = decision.state
            weights = decision.weights
            velocity = decision.state.velocity * unit
            records.append(before.record(delta=decision.delta * unit, velocity=velocity))
            events += [
                f"replica {r} left out of the decision: its loss is {losses[r]}" for r in decision.left_out
            ]
            if decision.clamped_from is not None:
                asked, given = decision.clamped_from * unit, decision.state.value * unit
                events.append(f"{axis.name}: {asked:.3g} clamped to the slowest replica's {given:.3g}")
        return Decided(tuple(records), weights, events=tuple(events))

    def _move_factor(
        self,
        axis: GroupLearningRate,
        state: ControlState,
        multipliers: tuple[float, ...],
        losses: tuple[float, ...],
    ) -> Decision:
        if self._controller.decay is not None:
            axis.hold()
        decision = self._controller.update(state, losses=losses, multipliers=multipliers)
        axis.move(decision.state.value)
        return decision

    def _move_along(
        self, axis: Axis, state: ControlState, levels: tuple[float, ...], losses: tuple[float, ...]
    ) -> Decision:
        """Remark 1: the same rule along the coordinate, which unlike the value may be 0 or below.

        The controller's value is 1 plus the distance from the base, and starts again at each base.
        """
        offsets = tuple(1.0 + offset for offset in axis.offsets(levels))
        decision = self._controller.update(
            ControlState(1.0, state.velocity), losses=losses, multipliers=offsets
        )
        # The decay of Eq. 8 is a learning rate's.
        axis.shift(decision.state.value - (1.0 - (self._controller.decay or 0.0)))
        return replace(decision, clamped_from=None)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "states": [(s.value, s.velocity) for s in self._states]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._states = [ControlState(*saved) for saved in state["states"]]


class PrintedVote(Vote):
    """As Algorithm 1 prints it: lines 8 and 12 add up losses until auto-LR acts, and then divide by T.

    So the first decision sees the loss of the whole warm-up over T, and all others the mean of a round.
    """

    def bind(self, axes: Sequence[Axis], context: Context) -> None:
        super().bind(axes, context)
        #: L_acc/T of every replica: the sum of the mean losses of all rounds since the last decision.
        self._accumulated: tuple[float, ...] = ()

    def _apply(self, seen: Seen) -> Decided:
        before = self._accumulated
        if len(before) != len(seen.losses):  # at the start, and where a run goes on with more or fewer
            before = (0.0,) * len(seen.losses)
        losses = tuple(a + b for a, b in zip(before, seen.losses, strict=True))
        self._accumulated = () if seen.step >= self._act_from else losses
        return super()._apply(replace(seen, losses=losses))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "accumulated": list(self._accumulated)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._accumulated = tuple(state["accumulated"])
