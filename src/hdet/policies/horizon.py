"""The horizon: one model's path is cut into windows, and what each left behind moves the learning rate.

The rule stands in :mod:`hdet.controllers.horizon`. Here are the windows themselves: the points that each
leaves behind, the losses there, and the way back. A *virtual fan-out*: one replica moves its weights to the
points, one after the other, and no divergence is needed. Several replicas probe at the same time, each its
own batches and, where they diverge, its own points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal

from torch import Tensor

import hdet.policies.telling as telling
from hdet.best import Keeper
from hdet.controllers import HorizonController, HorizonDecision, HorizonState, Window
from hdet.hyperparameters import Axis, Explorable, GroupLearningRate
from hdet.policies.base import Context, Decided, Policy, Seen
from hdet.policies.clock import DESCENT, Clock, Curve
from hdet.policies.evidence import PathEvidence
from hdet.policies.incumbent import Incumbent
from hdet.policies.point_losses import PointLosses
from hdet.policies.saved import check_horizon
from hdet.policies.scopes import Scopes
from hdet.policies.useless_probe import UselessProbe
from hdet.probes import Probe
from hdet.schedules import Windows
from hdet.weights.mirrors import Mirrors
from hdet.weights.parameters import every_parameter
from hdet.weights.room import Where
from hdet.weights.trail import PointsTrail, Trail
from hdet.weights.way_back import WayBack

__all__ = ["Horizon"]

#: The learning rate of the first window: as good as none, and the same whatever the optimizer was given.
FIRST_LR = 1e-5
#: One probe batch for so many steps of a window: what probing costs stays a small share of training.
_STEPS_PER_BATCH = 50
_MAX_BACKS, _MAX_BACKS_IN_A_ROW = 20, 5


class Horizon(Policy):
    """Windows, their means, the probe at their points, and the way back.

    Args:
        explore: learning rates.
        probe: measures the loss.
        controller: decides.
        windows: how long they are.
        scope: ``"together"`` moves all parameter groups by one factor; ``"each"`` compares, and moves, every
            group by itself, which takes two points more for each.
        snapshot, keep: where the way back and the best weights seen lie: on the device, the host, or nowhere.
        patience: so often training goes back to the best weights without a better one coming of it.
        parts: how many groups each optimizer has, if there are several: each has a factor of its own.
        averaged: whether replicas that diverge are judged by the path of their mean, not at points of their
            own.
    """

    kind = "horizon"
    probes = True
    follows_weights = True

    def __init__(
        self,
        explore: Sequence[Explorable],
        probe: Probe,
        controller: HorizonController,
        windows: Windows,
        *,
        scope: Literal["together", "each"] = "together",
        snapshot: Where = "host",
        keep: Where = "host",
        patience: int | None = None,
        parts: Sequence[int] = (),
        averaged: bool = False,
    ) -> None:
        super().__init__(explore)
        self._probe, self._controller, self.windows = probe, controller, windows
        self._clock = Clock(windows)
        self._scope, self._parts, self._patience = scope, parts, patience
        self._where, self._keep, self._averaged = snapshot, keep, averaged
        self.sync_every = None if windows.share else windows.first
        self._states: list[HorizonState] = []

    def facts(self) -> dict[str, str]:
        return {
            "horizon controller": repr(self._controller),
            "windows": repr(self.windows),
            "scope": f"{self._scope} {list(self._parts)}",
            "snapshot": self._where,
            "best weights": f"{self._keep}, patience {self._patience}",
            "probe batches a sync": repr(self._probe.per_sync),
            "probe batches to choose by": repr(self._probe.choosing),
        }

    def describe(self) -> str:
        trained = sum(weight.numel() * weight.element_size() for weight in self._trail.weights)
        places = self._where, self._keep, 3 if self._points else 1
        return telling.described(self._probe, self.windows, trained, *places)

    def bind(self, axes: Sequence[Axis], context: Context) -> None:
        """Take the weights of an optimizer; the window begins with its first step."""
        super().bind(axes, context)
        telling.refuse(context, axes, self._probe, averaged=self._averaged)
        self._context, optimizer = context, context.optimizer
        self._scopes = Scopes.of(self._scope, self._parts, len(optimizer.param_groups))
        groups, apart = self._scopes.cut
        among, diverges, self._points = context.replicas, context.diverges, None
        if self._scopes.apart or (diverges and not self._averaged):
            self._points = PointsTrail(optimizer, groups, among, diverges=diverges, apart=apart)
        self._trail = self._points or Trail(optimizer, groups, among, diverges=diverges)
        telling.refuse_frozen(context.caller, self._trail.weights)
        parameters = every_parameter(optimizer)
        self.incumbent = Incumbent(
            Keeper(self._probe, self._probe.model, parameters, context.replicas, self._keep),
            self._patience,
            remembers=self._points is None,
            apart=self._points is not None or self._probe.has_norms,
        )
        self._mirrors = Mirrors(optimizer, context.replicas)
        self._way_back = WayBack(parameters, optimizer, self._probe.model, self._where)
        self._clock.total_steps = context.total_steps
        one = context.replicas.here == 1  # what several see at once is no sample
        self._useless = UselessProbe(context.caller, self._probe, by_group=self._scopes.apart, watches=one)
        by = self._trail, self.incumbent, self._useless, context.regularisers_off, self._probe.choosing
        self.evidence = PathEvidence(*by, averaged=self._averaged)
        self._states = [HorizonState(factor) for factor in self._first_factors()]
        self._curve = Curve(self._learning_rates[0].curve, self._learning_rates[0].curve)
        self._take_factors()

    @property
    def _learning_rates(self) -> list[GroupLearningRate]:
        return self.axes  # type: ignore[return-value]  # no other is taken

    def _first_factors(self) -> list[float]:
        """Next to no learning rate, whatever the schedule's values are."""
        curves = [axis.curve for axis in self._learning_rates]
        return [FIRST_LR / highest for highest in self._scopes.highest(curves)]

    def _take_factors(self) -> None:
        for i, axis in enumerate(self._learning_rates):
            axis.move(self._states[self._scopes.of_group(i)].value)

    def start(self, step: int) -> None:
        """Begin the first window; the weights before it are those that its first step will find."""
        self._fresh = True
        self.incumbent.forget()
        self._previous_middle = [float(step) for _ in self._trail.scopes]
        self._begin(step)

    def round_at(self, step: int) -> int:
        return self.windows.round_at(step)

    def _begin(self, step: int) -> None:
        self._clock.begin(step)
        self.window_end, self._taken = self._clock.end, False

    @property
    def learns(self) -> bool:
        return self._clock.searching and self.window_end is not None

    @property
    def stalled(self) -> bool:
        """Whether the search has come to nothing better for longer than patience lasts."""
        return self._clock.searching and self.incumbent.stalled

    def stop(self) -> None:
        """The search is over; windows are measured on, to the end of the run."""
        self._clock.stop()
        self.window_end = self._clock.end

    def end_at(self, step: int | None) -> None:
        self._clock.end_at(step)
        self.window_end = self._clock.end

    def before_step(self) -> None:
        """The way back leads to what the window's first step finds."""
        if self._taken:
            return
        self._taken = True
        self._useless.watch()
        if self.window_end is not None:
            if self._trail.follow():
                self.incumbent.keeper.follow(self._numbered(self._trail.weights))
                if self._points is None:  # the weights of now are p
                    self._previous_middle = [float(self._clock.began) for _ in self._states]
            # Several ranks could disagree by a step, and wait for each other: they look at its end.
            self._trail.begin(self._clock.length, alone=self._context.replicas.ranks == 1)
        if self._fresh:
            self._trail.start()
            if self.incumbent.keeper.choice.kept is None:
                self._way_back.begin_run()
            self._fresh = False
        if self.window_end is not None:
            self._way_back.begin_window()

    def after_step(self) -> bool:
        """An iterate more. Weights that were lost end the window at once."""
        if self.window_end is None or not self._trail.add():
            return False
        self.window_end = self._clock.end = self.window_end - self._trail.mean.left
        return True

    def judges(self, step: int) -> bool:
        return self.window_end is not None and step >= self.window_end

    def recounted(self, step: int) -> None:
        self._trail.mean.left = (self.window_end or step) - step

    def at_own(self) -> Sequence[float | Tensor]:
        """Losses at this replica's points, unless only those of the mean of all count."""
        return self.evidence.at_own(self._few() if self._judges else None)

    @property
    def _judges(self) -> bool:
        """Whether weights have moved, and there is something to compare with."""
        known = self._points is not None or self.incumbent.previous is not None
        return known and any(state.windows > 0 for state in self._states)

    def _few(self) -> int:
        """How many batches e is measured on: all of them where it may be handed over."""
        some = max(2, self._clock.length // _STEPS_PER_BATCH)
        return self._probe.choosing if self._clock.ends_run else min(some, self._probe.choosing)

    def at_mean(self) -> Sequence[float | Tensor]:
        """‖m − p‖ / ‖p‖ of each scope, m being that of all replicas by now; and other losses to choose by."""
        few = self._few() if self._judges else None
        return self.evidence.at_mean(few, ends=self._clock.ends_run)

    def decide(self, seen: Seen) -> Decided:
        """The controller's decision for each scope and what follows from it; the factor moves no more once
        the schedule is well below its peak, and on its way down."""
        before = self.before(seen.levels)
        losses = PointLosses(
            seen.rows,
            measured=self._judges or self._points is None,
            judged=self._judges,
            scopes=self._scopes.judged,
            moved=len(self._states),
            batches=self._probe.choosing,
            few=self._few(),
            apart=self.incumbent.apart,
            ends=self._clock.ends_run,
            remembers=self._points is None,
            previous=self.incumbent.previous,
        )
        compared = self.incumbent.best, self._curve.rise(self._learning_rates[0].curve), seen.explained
        windows = losses.windows(self._clock, seen.step, self._previous_middle, *compared)
        doubts = self._useless.judge(seen, windows, judged=losses.judged)
        factors = [state.value for state in self._states]
        began, mean = self._clock.began, self._numbered(self._trail.mean.tensors)
        decisions, events, went_back = self._act(seen.step, windows)
        retreated, self.improves, best = False, True, False
        if not went_back and losses.measured and not losses.judged:
            self.incumbent.start(began, losses, mean)
        elif not went_back and losses.judged:
            end = self._numbered(self._trail.weights) if seen.step == seen.total_steps else None
            self.incumbent.offer(seen.step, losses, mean, end)
            rises = any(decision.action in ("up", "scale") for decision in decisions)
            self.incumbent.count(seen.step, factors, rises=rises, moved=seen.explained != 0)
            self.improves = self.incumbent.improves
            best = self.incumbent.keeper.choice.improved_at == seen.step
            if self._clock.searching and self.incumbent.leads_back:
                events, retreated = (*events, self._retreat(seen.step)), True
            elif self.stalled:
                events = (*events, f"nothing has improved since step {self.incumbent.improved_at}")
        if self._clock.searching and self._curve.descends:
            self.stop()
            if seen.total_steps is None or seen.step < seen.total_steps / 3:
                telling.say_early_descent(self._context.caller, seen.step, DESCENT)
        self._take_factors()
        records = tuple(b.record(delta=b.axis.base - b.base) for b in before)
        horizon = tuple(map(telling.record_of, self._scopes.names(), decisions, windows))
        told, back = (*doubts, *events), went_back or retreated
        return Decided(records, horizon=horizon, events=told, void=went_back, went_back=back, best=best)

    def _numbered(self, values: Sequence[Tensor]) -> dict[int, Tensor]:
        return dict(zip(self._trail.numbers, values, strict=True))

    def _retreat(self, step: int) -> str:
        """To the best weights, or with time enough to the beginning, with a smaller factor, unless something
        else has been moved since that may do better; the steps taken are spent."""
        improved, slower = self.incumbent.improved_at, not self.incumbent.others_moved
        anew = self.incumbent.may_begin_anew(step, self._clock.origin, self._clock.total_steps)
        if self._way_back.exists and anew:
            self._begin_anew(step, slower=slower)
            return telling.told_retreat(improved, anew=True, slower=slower)
        with self._mirrors.following(), self._context.regularisers_off():
            of_step = self.incumbent.go_back_()
        self._states = [self._controller.retreat(state, slower=slower) for state in self._states]
        self._trail.stand()
        self._previous_middle = [float(step) for _ in self._previous_middle]
        return telling.told_retreat(of_step, anew=False, slower=slower)

    def _begin_anew(self, step: int, *, slower: bool) -> None:
        self._way_back.to_beginning()
        self.incumbent.begin_anew()
        pairs = zip(self._first_factors(), self.incumbent.factors, strict=True)
        self._states = [self._controller.restart(*pair, slower=slower) for pair in pairs]
        self._clock.origin = step
        self.start(step)

    def _act(
        self, step: int, windows: Sequence[Window]
    ) -> tuple[list[HorizonDecision], tuple[str, ...], bool]:
        """Decide for each scope; then on to the next window, or back to this one's start."""
        rule = self._controller.update if self._clock.searching else self._controller.descend
        decisions = [
            rule(state, window)
            if self._trail.weights[part] and (window.previous or not window.mean or state.windows == 0)
            else HorizonDecision(state, "hold", 0.0, why="nothing to compare")
            for state, window, part in zip(self._states, windows, self._trail.scopes, strict=True)
        ]
        events: tuple[str, ...] = ()
        if any(decision.action == "back" for decision in decisions):
            event, went_back = self._go_back(step, decisions, windows)
            if went_back:
                return decisions, (event,), True
            events = (event,)
        if all(decision.why == "does not move" for decision in decisions):
            raise telling.never_moved(f"{self._context.caller}.step: step {step}", self._states[0].blind)
        decisions = self._scopes.as_one(self._states, decisions)
        self._states = [decision.state for decision in decisions]
        for i, state in enumerate(self._states):
            if state.windows > 0:
                self._trail.keep(i)
                self._previous_middle[i] = (self._clock.began + 1 + step) / 2
            else:  # it hardly moved: what it will have moved by is the next window's doing alone
                self._previous_middle[i] = step
        self._begin(step)
        return decisions, events, False

    def _go_back(
        self, step: int, decisions: Sequence[HorizonDecision], windows: Sequence[Window]
    ) -> tuple[str, bool]:
        """To the window's start, with smaller factors where the loss rose; without a snapshot, or where that
        has not helped, the weights stay, if they are still weights. The steps taken are spent."""
        before = self._states
        self._states = [d.state if d.action == "back" else s for d, s in zip(decisions, before, strict=True)]
        total, in_a_row = (max(getattr(s, n) for s in self._states) for n in ("total_backs", "backs"))
        worst = next(i for i, decision in enumerate(decisions) if decision.action == "back")
        rose = telling.what_rose(windows[worst], first=before[worst].windows == 0)
        exhausted = total > _MAX_BACKS or in_a_row > _MAX_BACKS_IN_A_ROW
        shrunk = min(new.value / old.value for new, old in zip(self._states, before, strict=True))
        if exhausted or not self._way_back.exists:
            retries = f"{in_a_row - 1} retries, {total - 1} in all"
            tried = retries if self._way_back.exists else "snapshot='off'"
            where = f"{self._context.caller}.step: step {step}: {rose}"
            telling.refuse_lost(windows[worst], where, tried)
            return f"{rose}: no way back ({tried}), learning rate times {shrunk:.2g}", False
        self._way_back.to_window()
        event = f"{rose}: back to the weights of step {self._clock.began}, learning rate times {shrunk:.2g}"
        # The steps taken are spent, but they lead nowhere: the weights have not travelled in them.
        self._previous_middle = [middle + step - self._clock.began for middle in self._previous_middle]
        self._begin(step)
        return event, True

    def check_end(self) -> str:
        """What is wrong with the weights that training ends with, if anything. Waits for the device."""
        return "" if self._trail.is_finite() else "the weights are not finite at the end of training"

    def state_dict(self) -> dict[str, Any]:
        """Numbers, and the tensors without which a window in progress could not go on bit for bit."""
        return {
            "states": [asdict(state) for state in self._states],
            **self._clock.state_dict(),
            "taken": self._taken,
            "fresh": self._fresh,
            "previous_middle": list(self._previous_middle),
            "incumbent": self.incumbent.state_dict(),
            "curve": [self._curve.peak, self._curve.now],
            "constant": self._useless.state(),
            "trail": self._trail.state_dict(),
            **self._way_back.state_dict(),
            "probe": self._probe.state_dict(self._context.replicas.place),
        }

    def check_state(self, caller: str, state: Mapping[str, Any], step: int) -> None:
        kept = self._trail, self.incumbent, self._way_back, self._probe
        check_horizon(caller, state, step, len(self._states), *kept)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._states = [HorizonState(**saved) for saved in state["states"]]
        self._clock.load_state_dict(state)
        self.window_end, self._taken, self._fresh = self._clock.end, state["taken"], state["fresh"]
        self._previous_middle, self._curve = list(state["previous_middle"]), Curve(*state["curve"])
        self.incumbent.load_state_dict(state.get("incumbent"))
        self._useless.load(state["constant"])
        self._trail.load_state_dict(state["trail"])
        self._way_back.load_state_dict(state)
        self._probe.load_state_dict(state["probe"], self._context.replicas.place)

    def extra_bytes(self) -> int:
        """Memory beyond training itself, the way back included once it has been taken."""
        return self._trail.bytes() + self.incumbent.keeper.bytes() + self._way_back.bytes()
