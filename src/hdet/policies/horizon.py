"""The horizon: one model's path is cut into windows, and what each left behind moves the learning rate.

The rule stands in :mod:`hdet.controllers.horizon`. Here are the windows themselves: the points that each
leaves behind, the losses there, and the way back. A *virtual fan-out*: one replica moves its weights to the
points, one after the other, and no divergence is needed. Several replicas probe at the same time, each its
own batches and, where they diverge, its own points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

from torch import Tensor

from hdet.best import Keeper
from hdet.controllers import HorizonController, HorizonDecision, HorizonState, Window
from hdet.hyperparameters import Axis, Explorable, GroupLearningRate
from hdet.policies.base import Context, Decided, Policy, Seen
from hdet.policies.incumbent import Incumbent
from hdet.policies.point_losses import PointLosses, measure_chosen, measure_own
from hdet.policies.scopes import Scopes
from hdet.policies.telling import (
    never_moved,
    no_way_back,
    record_of,
    refuse,
    refuse_frozen,
    refuse_other_scope,
    say_early_descent,
    what_rose,
)
from hdet.policies.useless_probe import UselessProbe
from hdet.probes import Probe
from hdet.replicas import local
from hdet.schedules import Windows
from hdet.weights.snapshot import Snapshot, Where
from hdet.weights.trail import Trail

__all__ = ["Horizon"]

#: The learning rate of the first window: as good as none, and the same whatever the optimizer was given.
FIRST_LR = 1e-5
#: One probe batch for so many steps of a window: what probing costs stays a small share of training.
_STEPS_PER_BATCH = 50
_MAX_BACKS, _MAX_BACKS_IN_A_ROW = 20, 5
#: What a saved state calls the plain values.
_PLAIN = {
    n.lstrip("_"): n for n in ("_began", "window_end", "_taken", "_fresh", "_searching", "_total_steps")
}
#: A schedule below this share of its peak is in its final descent.
_DESCENT = 0.7


class Horizon(Policy):
    """Windows, their means, the probe at their points, and the way back.

    Args:
        explore: learning rates.
        probe: measures the loss.
        controller: decides.
        windows: how long they are.
        scope: ``"together"`` moves all parameter groups by one factor; ``"each"`` compares, and moves, every
            group by itself, which takes two points more for each.
        snapshot: where the way back is kept: on the device, in host memory, or not at all.
        keep: where the best weights seen are kept, likewise.
        patience: so often training goes back to the best weights without a better one coming of it.
        parts: how many groups each optimizer has, if there are several: each has a factor of its own.
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
        snapshot: Where = "device",
        keep: Where = "device",
        patience: int | None = None,
        parts: Sequence[int] = (),
    ) -> None:
        super().__init__(explore)
        self._probe, self._controller = probe, controller
        self._windows = windows
        self._scope, self._parts, self._patience = scope, parts, patience
        self._where, self._keep = snapshot, keep
        self._states: list[HorizonState] = []
        self._searching = True

    def facts(self) -> dict[str, str]:
        return {
            "horizon controller": repr(self._controller),
            "windows": repr(self._windows),
            "scope": f"{self._scope} {list(self._parts)}",
            "snapshot": self._where,
            "best weights": f"{self._keep}, patience {self._patience}",
            "probe batches a sync": repr(self._probe.per_sync),
            "probe batches to choose by": repr(self._probe.choosing),
        }

    def bind(self, axes: Sequence[Axis], context: Context) -> None:
        """Take the weights of an optimizer; the window begins with its first step."""
        super().bind(axes, context)
        refuse(context, axes)
        self._context, optimizer = context, context.optimizer
        self._scopes = Scopes.of(self._scope, self._parts, len(optimizer.param_groups))
        self._trail = Trail(optimizer, context.replicas, *self._scopes.cut, diverges=context.diverges)
        refuse_frozen(context.caller, self._trail.weights)
        # The frozen ones too: they may be freed within a window.
        weights = [local(p) for group in optimizer.param_groups for p in group["params"]]
        self.incumbent = Incumbent(
            Keeper(self._probe, self._probe.model, weights, context.replicas, self._keep),
            self._patience,
            remembers=not (self._scopes.apart or context.diverges),
            apart=context.diverges or self._scopes.apart or self._probe.has_norms,
        )
        self._snapshot = (
            Snapshot(weights, optimizer, self._probe.model, self._where) if self._where != "off" else None
        )
        self._total_steps = context.total_steps
        self._useless = UselessProbe(context.caller, self._probe, by_group=self._scopes.apart)
        # The first factor: next to no learning rate, whatever the schedule's values are.
        curves = [axis.curve for axis in self._learning_rates]
        self._states = [HorizonState(FIRST_LR / highest) for highest in self._scopes.highest(curves)]
        self._curve_peak = self._curve_before = curves[0]
        self._take_factors()

    @property
    def _learning_rates(self) -> list[GroupLearningRate]:
        return self.axes  # type: ignore[return-value]  # no other is taken

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
        return self._windows.round_at(step)

    def _begin(self, step: int) -> None:
        self._began = step
        if self._windows.end_after(step) is None:
            self._searching = False
        self.window_end = self._window_after(step)
        self._taken = False

    def _window_after(self, step: int) -> int | None:
        """While it searches, as it was told; in the descent until the run ends, if that is known."""
        end = self._windows.end_after(step) if self._searching else None
        if end is not None:
            return end if self._total_steps is None else min(end, self._total_steps)
        if self._total_steps is None:
            return None
        return replace(self._windows, last=self._total_steps).end_after(step)

    @property
    def learns(self) -> bool:
        return self._searching and self.window_end is not None

    @property
    def stalled(self) -> bool:
        """Whether the search has come to nothing better for longer than patience lasts."""
        return self._searching and self.incumbent.stalled

    def stop(self) -> None:
        """The search is over; windows are measured on, to the end of the run."""
        if self._searching:
            self._searching = False
            self.end_at(self._total_steps)

    def end_at(self, step: int | None) -> None:
        self._total_steps = step
        if not self._searching:
            self.window_end = None if step is None else min(self.window_end or step, step)

    def before_step(self) -> None:
        """The way back leads to the weights as the window's first step finds them."""
        if self._taken:
            return
        self._taken = True
        if self.window_end is not None:
            if self._trail.follow():
                self.incumbent.previous = None  # of other weights
                self.incumbent.keeper.follow(self._numbered(self._trail.weights))
            self._trail.mean.begin(self.window_end - self._began)
        if self._fresh:
            self._trail.start()
            self._fresh = False
        if self._snapshot is not None and self.window_end is not None:
            self._snapshot.take()

    def after_step(self) -> None:
        """An iterate more. Waits for nothing."""
        if self.window_end is not None:
            self._trail.mean.add()

    def judges(self, step: int) -> bool:
        return self.window_end is not None and step >= self.window_end

    def at_own(self) -> Sequence[float | Tensor]:
        """Losses at this replica's points. Empty until weights have moved."""
        if not self._measures:
            return ()
        self._useless.drew(self._few())
        with self._context.regularisers_off():
            return measure_own(self._trail, self.incumbent, self._few())

    @property
    def _measures(self) -> bool:
        return any(state.windows > 0 for state in self._states)

    def _few(self) -> int:
        """How many batches e is measured on: all of them where it may be handed over."""
        if self._ends or self.window_end is None:
            return self._probe.choosing
        return min(max(2, (self.window_end - self._began) // _STEPS_PER_BATCH), self._probe.choosing)

    def at_mean(self) -> Sequence[float | Tensor]:
        """‖m − p‖ / ‖p‖ of each scope, m being that of all replicas by now; and other losses to choose by."""
        found = self._trail.displacements()
        if not (self.incumbent.apart and self._measures):
            return found
        with self._context.regularisers_off():
            return [*found, *measure_chosen(self._trail, self.incumbent, ends=self._ends)]

    @property
    def _ends(self) -> bool:
        """Whether the run ends with this window."""
        return self.window_end is not None and self.window_end == self._total_steps

    def decide(self, seen: Seen) -> Decided:
        """The controller's decision for each scope and what follows from it.

        Once the schedule is well below its peak it is on its way down, and what follows is its own doing: the
        factor moves no more.
        """
        before = self.before(seen.levels)
        curve = self._learning_rates[0].curve
        lowest = min(curve, self._curve_before)
        rise = math.log(curve / self._curve_before) if lowest > 0 else 0.0
        losses = PointLosses(
            seen.rows,
            scopes=self._scopes.judged,
            moved=len(self._states),
            batches=self._probe.choosing,
            few=self._few(),
            apart=self.incumbent.apart,
            ends=self._ends,
            previous=self.incumbent.previous if self.incumbent.remembers else None,
            remembers=self.incumbent.remembers,
        )
        windows = self._read(seen, losses, rise)
        self.incumbent.start(self._began, losses, self._numbered(self._trail.previous))
        decisions, events, went_back = self._act(seen.step, windows)
        if not went_back and losses.measured:
            improved = self.incumbent.keeper.choice.improved_at
            end = self._numbered(self._trail.weights) if seen.step == self._total_steps else None
            self.incumbent.offer(seen.step, losses, self._numbered(self._trail.mean.tensors), end)
            self.incumbent.count(improved, rises=any(d.action in ("up", "scale") for d in decisions))
            if self._searching and self.incumbent.leads_back:
                events, went_back = (*events, self._retreat(seen.step)), True
            elif self.stalled:
                events = (*events, f"nothing has improved since step {improved}")
        self._curve_peak, self._curve_before = max(self._curve_peak, curve), curve
        if self._searching and curve < _DESCENT * self._curve_peak:
            self.stop()
            if seen.total_steps is None or seen.step < seen.total_steps / 3:
                say_early_descent(self._context.caller, seen.step, _DESCENT)
        self._take_factors()
        records = tuple(b.record(delta=b.axis.base - b.base) for b in before)
        horizon = tuple(map(record_of, self._scopes.names(), decisions, windows))
        return Decided(records, horizon=horizon, events=events, went_back=went_back)

    def _numbered(self, values: Sequence[Tensor]) -> dict[int, Tensor]:
        return dict(zip(self._trail.numbers, values, strict=True))

    def _retreat(self, step: int) -> str:
        """To the best weights, with a smaller factor; the steps taken are spent."""
        of_step = self.incumbent.go_back_()
        self._states = [self._controller.retreat(state) for state in self._states]
        self._trail.stand()
        self._previous_middle = [float(step) for _ in self._previous_middle]
        return f"nothing better since step {of_step}: back to those weights, learning rate times 0.33"

    def _read(self, seen: Seen, losses: PointLosses, rise: float) -> list[Window]:
        """What the window showed of each scope, from the rows of all replicas."""
        middle = (self._began + 1 + seen.step) / 2
        windows = []
        for scope in range(len(self._states)):
            timing = Window(
                step=seen.step,
                next_step=self._window_after(seen.step) or seen.step + (seen.step - self._began),
                total_steps=seen.total_steps,
                displacement=losses.displacement(scope),
                apart=middle - self._previous_middle[scope],
                rise=rise,
            )
            windows.append(losses.fill(timing, self._scopes.judged_as(scope), self.incumbent.best))
        self._useless.refuse(seen.step, windows)
        return windows

    def _act(
        self, step: int, windows: Sequence[Window]
    ) -> tuple[list[HorizonDecision], tuple[str, ...], bool]:
        """Decide for each scope; then on to the next window, or back to this one's start."""
        rule = self._controller.update if self._searching else self._controller.descend
        decisions = [
            rule(state, window)
            if self._trail.weights[part]
            else HorizonDecision(state, "hold", 0.0, why="nothing is trained")
            for state, window, part in zip(self._states, windows, self._trail.scopes, strict=True)
        ]
        if any(decision.action == "back" for decision in decisions):
            return decisions, (self._go_back(step, decisions, windows),), True
        if all(decision.why == "does not move" for decision in decisions):
            raise never_moved(f"{self._context.caller}.step: step {step}", self._states[0].blind)
        decisions = self._scopes.as_one(self._states, decisions)
        self._states = [decision.state for decision in decisions]
        for i, state in enumerate(self._states):
            if state.windows > 0:
                self._trail.keep(i)
                self._previous_middle[i] = (self._began + 1 + step) / 2
            else:  # it hardly moved: what it will have moved by is the next window's doing alone
                self._previous_middle[i] = step
        self._begin(step)
        return decisions, (), False

    def _go_back(self, step: int, decisions: Sequence[HorizonDecision], windows: Sequence[Window]) -> str:
        """To the window's start, with smaller factors where the loss rose; the steps taken are spent."""
        before = self._states
        self._states = [d.state if d.action == "back" else s for d, s in zip(decisions, before, strict=True)]
        total, in_a_row = (max(getattr(s, n) for s in self._states) for n in ("total_backs", "backs"))
        worst = next(i for i, decision in enumerate(decisions) if decision.action == "back")
        rose = what_rose(windows[worst], first=before[worst].windows == 0)
        if self._snapshot is None or total > _MAX_BACKS or in_a_row > _MAX_BACKS_IN_A_ROW:
            tried = (
                "snapshot='off'" if self._snapshot is None else f"{in_a_row - 1} retries, {total - 1} in all"
            )
            raise no_way_back(f"{self._context.caller}.step: step {step}: {rose}", tried)
        self._snapshot.restore()
        shrunk = min(new.value / old.value for new, old in zip(self._states, before, strict=True))
        event = f"{rose}: back to the weights of step {self._began}, learning rate times {shrunk:.2g}"
        # The steps taken are spent, but they lead nowhere: the weights have not travelled in them.
        self._previous_middle = [middle + step - self._began for middle in self._previous_middle]
        self._begin(step)
        return event

    def check_end(self) -> str:
        """What is wrong with the weights that training ends with, if anything. Waits for the device."""
        return "" if self._trail.is_finite() else "the weights are not finite at the end of training"

    def state_dict(self) -> dict[str, Any]:
        """Numbers, and the tensors without which a window in progress could not go on bit for bit."""
        return {
            "states": [asdict(state) for state in self._states],
            **{name: getattr(self, attribute) for name, attribute in _PLAIN.items()},
            "previous_middle": list(self._previous_middle),
            "incumbent": self.incumbent.state_dict(),
            "curve": [self._curve_peak, self._curve_before],
            "constant": self._useless.state(),
            "trail": self._trail.state_dict(),
            "snapshot": None if self._snapshot is None else self._snapshot.state_dict(),
            "probe": self._probe.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        refuse_other_scope(self._context.caller, len(state["states"]), len(self._states))
        self._states = [HorizonState(**saved) for saved in state["states"]]
        # A state saved before the descent was measured has less: without a window the search was over.
        for name, attribute in _PLAIN.items():
            setattr(self, attribute, state.get(name, getattr(self, attribute)))
        self._previous_middle = list(state["previous_middle"])
        self._curve_peak, self._curve_before = state["curve"]
        if "incumbent" in state:
            self.incumbent.load_state_dict(state["incumbent"])
        else:
            self._searching = self.window_end is not None
        self._useless.load(state["constant"])
        self._trail.load_state_dict(state["trail"])
        if self._snapshot is not None and state["snapshot"] is not None:
            self._snapshot.load_state_dict(state["snapshot"])
        self._probe.load_state_dict(state["probe"])

    def extra_bytes(self) -> int:
        """Memory beyond training itself, the way back included once it has been taken."""
        own = self._trail.bytes() + self.incumbent.keeper.bytes()
        return own if self._snapshot is None else own + self._snapshot.bytes()
