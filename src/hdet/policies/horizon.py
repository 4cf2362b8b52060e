"""The horizon: one model's path is cut into windows, and what each left behind moves the learning rate.

The rule stands in :mod:`hdet.controllers.horizon`. Here are the windows themselves: the points that each
leaves behind, the losses there, and the way back. A *virtual fan-out*: one replica moves its weights to the
points, one after the other, and no divergence is needed. Several replicas probe at the same time, each its
own batches and, where they diverge, its own points."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Literal

from torch import Tensor

from hdet.best import Keeper
from hdet.controllers import HorizonController, HorizonDecision, HorizonState, Window
from hdet.controllers.choice import Candidate
from hdet.history import HorizonRecord
from hdet.hyperparameters import Axis, Explorable, GroupLearningRate
from hdet.policies.base import Context, Decided, Policy, Seen
from hdet.policies.point_losses import PointLosses
from hdet.policies.useless_probe import UselessProbe, average
from hdet.probes import Probe
from hdet.replicas import local
from hdet.schedules import Windows
from hdet.weights.snapshot import Snapshot, Where
from hdet.weights.trail import Trail

__all__ = ["Horizon"]

logger = logging.getLogger("hdet")

#: The learning rate of the first window: as good as none, and the same whatever the optimizer was given.
FIRST_LR = 1e-5
#: One probe batch for so many steps of a window: what probing costs stays a small share of training.
_STEPS_PER_BATCH = 50
_MAX_BACKS, _MAX_BACKS_IN_A_ROW = 20, 5
#: So many windows in a row clearly worse than the best, or without an improvement, lead back to the best.
_BEHIND, _IDLE = 2, 8
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
    ) -> None:
        super().__init__(explore)
        self._probe = probe
        self._controller = controller
        self._windows = windows
        self._scope = scope
        self._where = snapshot
        self._keep = keep
        self._patience = patience
        self._states: list[HorizonState] = []
        self._searching = True
        self._idle = self._retreats = 0
        #: The losses at p, of the batches of every rank in turn; None where they have to be measured.
        self._previous: list[float] | None = None
        #: The lowest losses at any m so far, likewise.
        self._best: list[float] | None = None

    def facts(self) -> dict[str, str]:
        return {
            "horizon controller": repr(self._controller),
            "windows": repr(self._windows),
            "scope": self._scope,
            "snapshot": self._where,
            "best weights": f"{self._keep}, patience {self._patience}",
            "probe batches a sync": repr((self._probe.per_sync, self._probe.choosing)),
        }

    def bind(self, axes: Sequence[Axis], context: Context) -> None:
        """Take the weights of an optimizer; the window begins with its first step."""
        super().bind(axes, context)
        self._refuse(context)
        self._context = context
        optimizer = context.optimizer
        groups = len(optimizer.param_groups) if self._scope == "each" else None
        self._trail = Trail(optimizer, context.replicas, groups=groups, diverges=context.diverges)
        if not self._trail.weights:
            raise ValueError(
                f"{context.caller}: the optimizer must train something, and all its parameters are frozen; "
                "call requires_grad_() on some first"
            )
        # The frozen ones too: they may be freed within a window.
        weights = [local(p) for group in optimizer.param_groups for p in group["params"]]
        self.keeper = Keeper(self._probe, self._probe.model, weights, context.replicas, self._keep)
        self._snapshot = (
            Snapshot(weights, optimizer, self._probe.model, self._where) if self._where != "off" else None
        )
        self._chooses_apart = context.diverges or self._probe.has_norms
        #: Whether L(p) is what L(m) was a window before: one point for all, whose losses are known.
        self._remembers = self._scope == "together" and not context.diverges
        self._total_steps = context.total_steps
        self._useless = UselessProbe(context.caller, self._probe, by_group=self._scope == "each")
        # The first factor: next to no learning rate, whatever the schedule's values are.
        curves = [axis.curve for axis in self._learning_rates]
        self._states = [HorizonState(FIRST_LR / max(curves)) for _ in self._trail.scopes]
        self._curve_peak = self._curve_before = curves[0]
        self._take_factors()

    def _refuse(self, context: Context) -> None:
        others = [axis.name for axis in self.axes if not isinstance(axis, GroupLearningRate)]
        if others:
            raise TypeError(
                f"{context.caller}: a horizon judges the learning rate alone, got {', '.join(others)}"
            )
        if context.replicas.here > 1:
            raise TypeError(
                f"{context.caller}: a horizon judges one model's path, got {context.replicas.size} replicas "
                "stacked in one process; train one model on all their batches, or use one process per replica"
            )

    @property
    def _learning_rates(self) -> list[GroupLearningRate]:
        return self.axes  # type: ignore[return-value]  # no other is taken

    def _take_factors(self) -> None:
        for i, axis in enumerate(self._learning_rates):
            axis.move(self._states[i % len(self._states)].value)

    # ------------------------------------------------------------------ between syncs

    def start(self, step: int) -> None:
        """Begin the first window; the weights before it are those that its first step will find."""
        self._fresh = True
        self._previous = self._best = None
        self._previous_middle = [float(step) for _ in self._trail.scopes]
        self._begin(step)

    def round_at(self, step: int) -> int:
        return self._windows.round_at(step)

    def _begin(self, step: int) -> None:
        self._began = step
        self.window_end = self._window_after(step)
        self._taken = False

    def _window_after(self, step: int) -> int | None:
        """While it searches, as it was told; in the descent until the run ends, if that is known."""
        if self._searching:
            end = self._windows.end_after(step)
            if end is not None:
                return end if self._total_steps is None else min(end, self._total_steps)
            self._searching = False
        if self._total_steps is None:
            return None
        return replace(self._windows, last=self._total_steps).end_after(step)

    @property
    def learns(self) -> bool:
        return self._searching and self.window_end is not None

    @property
    def stalled(self) -> bool:
        """Whether nothing has improved for longer than patience lasts."""
        return (
            self._searching
            and self._patience is not None
            and self._retreats >= self._patience
            and (self.keeper.choice.behind >= _BEHIND or self._idle >= _IDLE)
        )

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
                self._previous = None  # of other weights
                self.keeper.follow(self._trail.numbers)
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

    # ------------------------------------------------------------------ at a sync

    def judges(self, step: int) -> bool:
        return self.window_end is not None and step >= self.window_end

    def at_own(self) -> Sequence[float | Tensor]:
        """Losses at this replica's points. Empty until weights have moved."""
        if all(state.windows == 0 for state in self._states):
            return ()
        few = self._few()
        self._useless.drew(few)
        self._trail.leave()
        mean, *others = self._trail.points()
        losses: list[float] = []
        try:
            with self._context.regularisers_off():
                self._trail.go(mean)
                losses += self.keeper.measure()
                for k, point in enumerate(others):
                    before = k % 2 == 0
                    if before and self._remembers and self._previous is not None:
                        continue
                    self._trail.go(point)
                    losses += self.keeper.measure(None if before and self._remembers else few)
        finally:
            self._trail.go(self._trail.end)
        return losses

    def _few(self) -> int:
        """How many batches e is measured on: all of them where it may be handed over."""
        assert self.window_end is not None
        if self.window_end == self._total_steps:
            return self._probe.choosing
        return min(max(2, (self.window_end - self._began) // _STEPS_PER_BATCH), self._probe.choosing)

    def at_mean(self) -> Sequence[float | Tensor]:
        """‖m − p‖ / ‖p‖ of each scope, m being by now the mean over all replicas. Where the losses found
        before are not those to choose by, because m was each replica's own or is deployed with running
        statistics, those at m and, at the end of the run, at e. Waits for the device."""
        found: list[float | Tensor] = [*self._trail.displacements()]
        if not self._chooses_apart or all(state.windows == 0 for state in self._states):
            return found
        with self._context.regularisers_off():
            if self.window_end == self._total_steps:
                found += self.keeper.measure_deployed(refresh=False)
            self._trail.leave()
            try:
                self._trail.go(self._trail.mean.tensors)
                return [*found, *self.keeper.measure_deployed(refresh=True)]
            finally:
                self._trail.go(self._trail.end)

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
            scopes=len(self._states),
            batches=self._probe.choosing,
            few=self._few(),
            apart=self._chooses_apart,
            ends=self.window_end == self._total_steps,
            previous=self._previous if self._remembers else None,
            remembers=self._remembers,
        )
        windows = self._read(seen, losses, rise)
        if losses.measured and self._remembers and self._previous is None:
            self._previous = self._best = losses.previous
            if not self._chooses_apart:
                start = Candidate(self._began, "start", tuple(losses.previous))
                self.keeper.offer(start, dict(zip(self._trail.numbers, self._trail.previous, strict=True)))
        decisions, events, went_back = self._act(seen.step, windows)
        if not went_back and losses.measured:
            self._choose(seen.step, losses, rises=decisions[0].action in ("up", "scale"))
            if self._is_behind():
                events, went_back = (*events, self._retreat(seen.step)), True
        self._curve_peak, self._curve_before = max(self._curve_peak, curve), curve
        if self._searching and curve < _DESCENT * self._curve_peak:
            self.stop()
            if seen.total_steps is None or seen.step < seen.total_steps / 3:
                logger.warning(
                    "%s: the schedule is below %d %% of its peak after %d steps: the search for its size "
                    "ends here",
                    self._context.caller,
                    100 * _DESCENT,
                    seen.step,
                )
        self._take_factors()
        records = tuple(b.record(delta=b.axis.base - b.base) for b in before)
        horizon = tuple(map(self._record, range(len(windows)), decisions, windows))
        return Decided(records, horizon=horizon, events=events, went_back=went_back)

    def _choose(self, step: int, losses: PointLosses, *, rises: bool) -> None:
        """Offer what the window leaves behind, to be handed over one day."""
        trail, best = self._trail, self.keeper.choice
        mean = Candidate(step, "mean", tuple(losses.chosen))
        self.keeper.offer(mean, dict(zip(trail.numbers, trail.mean.tensors, strict=True)))
        if step == self._total_steps:
            end = Candidate(step, "end", tuple(losses.chosen_end))
            self.keeper.offer(end, dict(zip(trail.numbers, trail.weights, strict=True)))
        if self._remembers:
            self._previous = losses.mean()
            if self._best is None or average(self._previous) < average(self._best):
                self._best = self._previous
        if self.keeper.choice.improved_at > best.improved_at:
            self._idle = self._retreats = 0
        elif not rises:
            self._idle += 1

    def _is_behind(self) -> bool:
        """Whether the best weights are a better place to go on from, at a smaller learning rate."""
        return (
            self._patience is not None
            and self._searching
            and self._remembers
            and self._keep != "off"
            and self._retreats < self._patience
            and (self.keeper.choice.behind >= _BEHIND or self._idle >= _IDLE)
        )

    def _retreat(self, step: int) -> str:
        """To the best weights, with a smaller factor; the steps taken are spent."""
        kept = self.keeper.choice.kept
        assert kept is not None
        self.keeper.write_()
        self.keeper.choice = replace(self.keeper.choice, behind=0)
        self._states = [self._controller.retreat(state) for state in self._states]
        self._trail.stand()
        # Deployed with running statistics, its losses are not those that windows are compared by.
        self._previous = None if self._chooses_apart else list(kept.losses)
        self._previous_middle = [float(step) for _ in self._previous_middle]
        self._idle, self._retreats = 0, self._retreats + 1
        return f"nothing better since step {kept.step}: back to those weights, learning rate times 0.33"

    def _read(self, seen: Seen, losses: PointLosses, rise: float) -> list[Window]:
        """What the window showed of each scope, from the rows of all replicas."""
        middle = (self._began + 1 + seen.step) / 2
        windows = []
        for scope in range(len(self._states)):
            window = Window(
                step=seen.step,
                next_step=self._window_after(seen.step) or seen.step + (seen.step - self._began),
                total_steps=seen.total_steps,
                displacement=losses.displacement(scope),
                apart=middle - self._previous_middle[scope],
                previous=losses.before(scope),
                mean=losses.mean(),
                end=losses.end(scope),
                mean_there=losses.mean_there(),
                best=self._best if self._best is not None and losses.measured else (),
                rise=rise,
            )
            windows.append(window)
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
            raise RuntimeError(
                f"{self._context.caller}.step: step {step}: the weights must move, and did not, although the "
                f"learning rate was raised {self._states[0].blind} times a hundredfold; does "
                "loss.backward() reach what the optimizer trains?"
            )
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
        rose = (
            f"the weights moved by {windows[worst].displacement:.3g} of their norm"
            if before[worst].windows == 0
            else f"the probe's loss rose from {average(windows[worst].previous):.4g} to "
            f"{average(windows[worst].mean):.4g}"
        )
        if self._snapshot is None or total > _MAX_BACKS or in_a_row > _MAX_BACKS_IN_A_ROW:
            tried = (
                "snapshot='off'" if self._snapshot is None else f"{in_a_row - 1} retries, {total - 1} in all"
            )
            raise RuntimeError(
                f"{self._context.caller}.step: step {step}: {rose} over the window, and going back is no way "
                f"out ({tried}). Check the loss for NaN, the data from here on, and that the probe's batches "
                "are of the kind that is trained on"
            )
        self._snapshot.restore()
        shrunk = min(new.value / old.value for new, old in zip(self._states, before, strict=True))
        event = f"{rose}: back to the weights of step {self._began}, learning rate times {shrunk:.2g}"
        # The steps taken are spent, but they lead nowhere: the weights have not travelled in them.
        self._previous_middle = [middle + step - self._began for middle in self._previous_middle]
        self._begin(step)
        return event

    def _record(self, scope: int, decision: HorizonDecision, window: Window) -> HorizonRecord:
        return HorizonRecord(
            name="lr" if self._scope == "together" else f"lr/{scope}",
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

    # ------------------------------------------------------------------ the run

    def check_end(self) -> str:
        """What is wrong with the weights that training ends with, if anything. Waits for the device."""
        if self._trail.is_finite():
            return ""
        return (
            "the weights are not finite at the end of training: they were lost after the last window, from "
            "where on there is no way back"
        )

    def state_dict(self) -> dict[str, Any]:
        """Numbers, and the tensors without which a window in progress could not go on bit for bit."""
        return {
            "states": [asdict(state) for state in self._states],
            "began": self._began,
            "window_end": self.window_end,
            "previous_middle": list(self._previous_middle),
            "taken": self._taken,
            "fresh": self._fresh,
            "searching": self._searching,
            "idle": [self._idle, self._retreats],
            "losses": [self._previous, self._best],
            "total_steps": self._total_steps,
            "keeper": self.keeper.state_dict(),
            "curve": [self._curve_peak, self._curve_before],
            "constant": self._useless.state(),
            "trail": self._trail.state_dict(),
            "snapshot": None if self._snapshot is None else self._snapshot.state_dict(),
            "probe": self._probe.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if len(state["states"]) != len(self._states):
            raise ValueError(
                f"{self._context.caller}.load_state_dict: scope must be the one it was saved with: the state "
                f"has {len(state['states'])} factors, this run {len(self._states)}"
            )
        self._states = [HorizonState(**saved) for saved in state["states"]]
        self._began, self.window_end = state["began"], state["window_end"]
        self._previous_middle = list(state["previous_middle"])
        self._taken, self._fresh = state["taken"], state["fresh"]
        self._curve_peak, self._curve_before = state["curve"]
        if "keeper" in state:  # a state of version 0.1.0 has none: the choice begins anew
            self._searching = state["searching"]
            self._idle, self._retreats = state["idle"]
            self._previous, self._best = state["losses"]
            self._total_steps = state["total_steps"]
            self.keeper.load_state_dict(state["keeper"])
        else:
            self._searching = self.window_end is not None
        self._useless.load(state["constant"])
        self._trail.load_state_dict(state["trail"])
        if self._snapshot is not None and state["snapshot"] is not None:
            self._snapshot.load_state_dict(state["snapshot"])
        self._probe.load_state_dict(state["probe"])

    def extra_bytes(self) -> int:
        """Memory beyond training itself, the way back included once it has been taken."""
        return (
            self._trail.bytes()
            + self.keeper.bytes()
            + (0 if self._snapshot is None else self._snapshot.bytes())
        )
