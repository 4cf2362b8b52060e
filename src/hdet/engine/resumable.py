"""What a cycle saves, and how it takes a state up: checked whole before anything is taken.

How a state is made stands in :mod:`hdet.engine.state`, what it says of itself in :mod:`hdet.engine.envelope`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from hdet.engine import envelope, state, telling
from hdet.engine.rounds import Rounds
from hdet.engine.step_hooks import StepHooks
from hdet.weights.parameters import every_parameter

__all__ = ["Resumable"]


class Resumable(Rounds):
    """Rounds that go on where others left off; :class:`hdet.engine.cycle.Cycle` sets all of it."""

    _optimizer: Optimizer
    _hooks: StepHooks
    #: As the run was set up: they may have become wider or narrower since.
    _spreads: list[float]

    @property
    def apart(self) -> bool:
        """Whether the replicas' weights differ now, so that one rank's are not the run's."""
        differs = self._parts.sharing.own_gradients or self._fan_out.explores
        return self._replicas.size > 1 and self._since_sync > 0 and differs

    def state_dict(self, *, compact: bool = False) -> dict[str, Any]:
        """Numbers, strings, and tensors of a horizon or an outer optimizer. Save it beside the weights, at a
        sync or after :meth:`converge`: within a round replicas differ, and one rank's are not the run; that
        is said once. After either one rank's state will do for all, but with a horizon that diverges.
        ``compact`` leaves out what the window in progress has collected: it begins anew where the state is
        taken up, which is then no longer bit for bit."""
        return envelope.sealed(self._caller, self.configuration(), self.inner_state(compact=compact))

    def inner_state(self, *, compact: bool = False) -> dict[str, Any]:
        """The state without its envelope, for a door that has one of its own."""
        if self._hooks.stepped:
            self._announcer.say_once(logging.WARNING, telling.saved_between(self._steps), "saved between")
        if self.apart and self._replicas.size > self._replicas.here:  # rows of one process are saved together
            said = telling.saved_apart(self._since_sync)
            self._announcer.say_once(logging.WARNING, said, "saved apart")
        return self._state(compact=compact)

    def _state(self, *, compact: bool = False) -> dict[str, Any]:
        policies = [{"kind": policy.kind, **policy.state_dict()} for policy in self._policies]
        if compact:
            both = zip(self._policies, policies, strict=True)
            policies = [policy.compacted(full, self._steps) for policy, full in both]
        every = {
            "steps": self._steps,
            "round": self._round,
            "seed": self._fan_out.seed,
            "explored": [axis.state_dict() for axis in self._fan_out.axes],
            "policies": policies,
            "explained": self._decide.explained,
            "loss": self._training_loss.state_dict(self._replicas.place),
            **({"arms": self._fan_out.arms} if self._replicas.elastic else {}),
            **state.of_outer(self._parts.converge.outer),
            **state.of_skips(self._skips, self.schedule),
        }
        return state.make(self._replicas, every_parameter(self._optimizer), every)

    def configuration(self) -> dict[str, Any]:
        """What must be as it was for a state to be taken; each door says what of it may change."""
        return state.configuration(self._optimizer, self._policies, self._spreads, self._total_steps)

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off. The losses of an unfinished round are one rank's own,
        unless :meth:`converge` has just told them to all: they count if every rank resumes from its own state
        or such a one, and for none otherwise. What cannot be taken is refused whole: nothing changes then."""
        names = {"needed": state.NEEDED, "known": state.KNOWN}
        inner, configuration = envelope.opened(self._caller, saved, **names)
        checked = self.checked_state(inner)
        envelope.refuse_other_run(self._caller, self.configuration(), configuration, free={"total_steps"})
        self.take_state(checked)

    def checked_state(self, saved: Mapping[str, Any], most: int | None = None) -> Mapping[str, Any]:
        """What a state holds, of at most so many steps. Raises ValueError for what cannot be taken, and
        changes nothing."""
        most = self._total_steps if most is None else most
        return envelope.sound(self._caller, lambda: self._checked(saved, most))  # type: ignore[no-any-return]

    def _checked(self, saved: Mapping[str, Any], most: int | None) -> Mapping[str, Any]:
        caller, axes = self._caller, self._fan_out.axes
        mine, raw = (self._replicas, every_parameter(self._optimizer)), saved
        saved = state.take(caller, *mine, raw)
        state.check_explored(caller, saved["explored"], [axis.name for axis in axes])
        state.check_tensors(caller, *mine, raw)
        state.check_numbers(caller, saved, most)
        for axis, of_axis in zip(axes, saved["explored"], strict=True):
            axis.check_state(caller, of_axis)
        for policy, of_policy in state.of_policies(saved, [policy.kind for policy in self._policies]):
            if of_policy is not None:
                self._policies[policy].check_state(caller, of_policy, saved["steps"])
        return saved

    def take_state(self, saved: Mapping[str, Any]) -> None:
        """Take over what :meth:`checked_state` gave."""
        axes = self._fan_out.axes
        self._steps = saved["steps"]
        self._round = saved["round"]
        self._decide.explained = saved.get("explained", 0.0)
        self._fan_out.seed = saved["seed"]
        self._fan_out.stand_down()
        for axis, of_axis in zip(axes, saved["explored"], strict=True):
            axis.load_state_dict(of_axis)
        self.schedule.look()
        for policy, of_policy in state.of_policies(saved, [policy.kind for policy in self._policies]):
            self._policies[policy].start(self._steps)
            if of_policy is not None:
                self._policies[policy].load_state_dict(of_policy)
        self._training_loss.load_state_dict(saved["loss"], self._replicas.place, self._replicas.ranks)
        self._forget()
        state.load_outer(self._parts.converge.outer, saved)
        self._hooks.forget()  # a step taken before is another run's
        state.load_skips(self._skips, self.schedule, saved)
        self._begin_round(saved.get("arms") if self._replicas.elastic else None)
        self._announcer.resumed(self._steps)

    def resume_at(self, step: int) -> None:
        """Go on from a checkpoint that hdet did not write, at the start of the round that holds ``step``."""
        self._steps = step
        self._round = max(policy.round_at(step) for policy in self._policies)
        for policy in self._policies:
            policy.start(step)
        self._training_loss.reset()
        self._forget()
        state.load_skips(self._skips, self.schedule, {})
        self._begin_round()
