"""AutoLR's policy: the path of the weights is cut into windows, and what each leaves behind moves the rate.

What the numbers mean and how far the rate moves stands in :mod:`hdet.autolr.rule`, which is pure. Here they
are measured, and what was decided is applied. At the end of a window

1. the probe measures the loss at e, the last iterate, and at m, the window's mean (:meth:`Horizon.at_mean`);
   L(p), at the mean of the window before, is known from there;
2. the rule decides from the losses of all ranks (:meth:`Horizon.decide`);
3. the factor on the schedule moves; or the weights go back, to the window's start where they exploded, to the
   best seen or to the beginning where nothing has improved for long (:meth:`Horizon._apply`).

All losses are of batches that are not trained on, with regularisers off. What a regulariser's move did to the
averaged model is explained by its slope (``Seen.explained``), and is no progress of the learning rate's.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, Literal

from torch import Tensor

from hdet.autolr.clock import DESCENT, Clock, Curve
from hdet.autolr.incumbent import Incumbent
from hdet.autolr.keeper import Keeper
from hdet.autolr.probe_checks import ProbeChecks, average
from hdet.autolr.rule import HorizonController, HorizonDecision, HorizonState, Window
from hdet.autolr.trail import Trail
from hdet.autolr.way_back import WayBack
from hdet.history import HorizonRecord
from hdet.hyperparameters import Axis, Explorable, GroupLearningRate
from hdet.loop.converge import WeightCopies
from hdet.loop.optimizers import every_parameter
from hdet.loop.policy import Before, Context, Decided, Policy, Seen
from hdet.loop.windows import Windows
from hdet.probes import Probe

__all__ = ["Factors", "Horizon", "PointLosses"]

logger = logging.getLogger("hdet")

#: The learning rate of the first window: as good as none, and the same whatever the optimizer was given.
FIRST_LR = 1e-5
#: One probe batch for so many steps of a window: what probing costs stays a small share of training.
_STEPS_PER_BATCH = 50
_MAX_BACKS, _MAX_BACKS_IN_A_ROW = 20, 5


class Horizon(Policy):
    """Windows, their means, the probe at their points, and the rollback.

    Args:
        explore: learning rates.
        probe: measures the loss.
        controller: decides.
        windows: how long they are.
        offload: whether the rollback and the best weights seen are kept in the host's memory.
        patience: so often training goes back to the best weights without a better one coming of it.
        sizes: how many groups each of several optimizers has: each has a factor of its own.
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
        offload: bool = True,
        patience: int | None = None,
        sizes: Sequence[int] = (),
    ) -> None:
        super().__init__(explore)
        self._probe, self._controller, self.windows = probe, controller, windows
        self._clock, self._factors = Clock(windows), Factors(sizes)
        self._patience, self._offload = patience, offload
        self._states: list[HorizonState] = []
        #: Whether the last window was better than all before, or nothing has been learnt yet.
        self.improves = True
        #: At the mean of all replicas, at the last sync.
        self.mean_losses: list[float | Tensor] = []

    def facts(self) -> dict[str, str]:
        return {
            "horizon controller": repr(self._controller),
            "windows": repr(self.windows),
            "groups of each optimizer": repr(list(self._factors.sizes)),
            "offload": repr(self._offload),
            "patience": repr(self._patience),
            "probe batches a sync": repr(self._probe.per_sync),
            "probe batches to choose by": repr(self._probe.choosing),
        }

    def describe(self) -> str:
        trained = sum(weight.numel() * weight.element_size() for weight in self._trail.weights)
        until = "" if self.windows.last is None else f", the search until step {self.windows.last}"
        # The window's mean is always on the device, the beginning of the run always with the host. The best
        # weights and the window's start are where ``offload`` says.
        device, host = (1, 3) if self._offload else (3, 1)
        return (
            f"windows of {self.windows.first} steps and more{until}; the probe looks at "
            f"{self._probe.describe()}; memory beyond training: {_size(device * trained)} on the device, "
            f"{_size(host * trained)} with the host, and a copy of the optimizer's state"
        )

    def bind(self, axes: Sequence[Axis], context: Context) -> None:
        """Take the weights of an optimizer; the window begins with its first step."""
        super().bind(axes, context)
        self._context, optimizer = context, context.optimizer
        parameters = every_parameter(optimizer)
        _check(context, axes, self._probe, parameters)
        self._trail = Trail(optimizer, self._factors.sizes, context.replicas, diverges=context.diverges)
        if not self._trail.weights:
            raise ValueError(
                f"{context.caller}: the optimizer must train something, and all its parameters are frozen; "
                "call requires_grad_() on some first"
            )
        self.incumbent = Incumbent(
            Keeper(self._probe, self._probe.model, parameters, context.replicas, offload=self._offload),
            self._patience,
            apart=self._probe.has_norms,
        )
        self._copies = WeightCopies(optimizer, context.replicas)
        self._way_back = WayBack(parameters, optimizer, self._probe.model, offload=self._offload)
        self._clock.total_steps = context.total_steps
        one = context.replicas.local_count == 1  # what several see at once is no sample
        self._useless = ProbeChecks(context.caller, self._probe, watches=one)
        self._states = [HorizonState(factor) for factor in self._first_factors()]
        self._curve = Curve(self._learning_rates[0].curve, self._learning_rates[0].curve)
        self._move_factors()

    @property
    def _learning_rates(self) -> list[GroupLearningRate]:
        return self.axes  # type: ignore[return-value]  # no other is taken

    def _first_factors(self) -> list[float]:
        """Next to no learning rate, whatever the schedule's values are."""
        curves = [axis.curve for axis in self._learning_rates]
        return [FIRST_LR / highest for highest in self._factors.highest(curves)]

    def _move_factors(self) -> None:
        for i, axis in enumerate(self._learning_rates):
            axis.move(self._states[self._factors.of_group(i)].value)

    # ------------------------------------------------------------------ windows

    def start(self, step: int) -> None:
        """Begin the first window; the weights before it are those that its first step will find."""
        self._fresh = True
        self.incumbent.forget()
        self._previous_middle = [float(step) for _ in self._states]
        self._begin(step)

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
        """A rollback leads to what the window's first step finds."""
        if self._taken:
            return
        self._taken = True
        self._useless.watch()
        if self.window_end is not None:
            if self._trail.follow():
                self.incumbent.keeper.follow(self._numbered(self._trail.weights))
                self._previous_middle = [float(self._clock.began) for _ in self._states]
            # Several ranks could disagree by a step, and wait for each other: they look at its end.
            self._trail.begin(self._clock.length, alone=self._context.replicas.world_size == 1)
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

    # ------------------------------------------------------------------ 1. measure

    @property
    def _compares(self) -> bool:
        """Whether weights have moved, and there is something to compare with."""
        return self.incumbent.previous is not None and any(state.windows > 0 for state in self._states)

    def _few(self) -> int:
        """How many batches e is measured on: all of them where it may be returned."""
        some = max(2, self._clock.length // _STEPS_PER_BATCH)
        return self._probe.choosing if self._clock.ends_run else min(some, self._probe.choosing)

    def losses_at_own_mean(self) -> list[float | Tensor]:
        """At this replica's own mean over the window, until the replicas' weights are one."""
        with self._context.regularisers_off(), self._trail.at_mean():
            return self.incumbent.keeper.measure()

    def at_mean(self) -> Sequence[float | Tensor]:
        """Once the replicas' weights are one, this rank's losses at m on all batches; at e, where the weights
        are, on a few, once windows are compared; how far m is from p; and the losses that weights are chosen
        by, where those are others. :class:`PointLosses` reads them."""
        keeper, compares, ends = self.incumbent.keeper, self._compares, self._clock.ends_run
        few = self._few() if compares else 0
        self._trail.converge()
        with self._context.regularisers_off():
            self._useless.drew(few)
            at_end = keeper.measure(few) if compares else []
            with self._trail.at_mean():
                self.mean_losses = keeper.measure()
            row = [*self.mean_losses, *at_end, *self._trail.displacements()]
            if self.incumbent.apart:  # as the weights would be deployed, the end of the run among them
                row += keeper.measure_deployed(refresh=False) if ends and compares else []
                with self._trail.at_mean():
                    row += keeper.measure_deployed(refresh=True)
        return [*row, *self._useless.row()]

    # ------------------------------------------------------------------ 2. decide

    def decide(self, seen: Seen) -> Callable[[], Decided]:
        """The rule's decision for each factor, and whether the weights go back."""
        before, self.improves = self.before(seen.levels), True
        losses = PointLosses(
            seen.rows,
            judged=self._compares,
            factors=len(self._states),
            batches=self._probe.choosing,
            few=self._few(),
            apart=self.incumbent.apart,
            ends=self._clock.ends_run,
            previous=self.incumbent.previous,
        )
        compared = self.incumbent.best, self._curve.rise(self._learning_rates[0].curve), seen.explained
        windows = losses.windows(self._clock, seen.step, self._previous_middle, *compared)
        doubts = self._useless.judge(seen, windows, judged=losses.judged)
        # No factor moves once the schedule is well below its peak, and on its way down.
        rule = self._controller.update if self._clock.searching else self._controller.descend
        decisions = [
            rule(state, window)
            if self._trail.weights[span] and (window.previous or not window.mean or state.windows == 0)
            else HorizonDecision(state, "hold", 0.0, why="nothing to compare")
            for state, window, span in zip(self._states, windows, self._trail.spans, strict=True)
        ]
        plan = _Plan(seen, before, windows, decisions)
        if any(decision.action == "back" for decision in decisions):
            plan = self._plan_rollback(plan)
        if plan.back is None:
            if all(decision.why == "does not move" for decision in decisions):
                raise RuntimeError(
                    f"{self._context.caller}.step: step {seen.step}: the weights must move, and did not, "
                    f"although the learning rate was raised {self._states[0].blind} times a hundredfold; "
                    "does loss.backward() reach what the optimizer trains? If it does, scale the loss: of a "
                    "gradient above 1e19 or below 1e-22 the square, which Adam divides by, is infinite or "
                    "zero in float32"
                )
            plan = self._remember(plan, losses)
        return partial(self._apply, replace(plan, events=(*doubts, *plan.events)))

    def _plan_rollback(self, plan: _Plan) -> _Plan:
        """To the window's start, with smaller factors where the loss rose; where that has not helped, the
        weights stay, if they are finite. The steps taken are spent."""
        backs = [d.action == "back" for d in plan.decisions]
        after = [d.state if b else s for d, s, b in zip(plan.decisions, self._states, backs, strict=True)]
        total, in_a_row = (max(getattr(s, n) for s in after) for n in ("total_backs", "backs"))
        worst = plan.windows[backs.index(True)]
        rose = f"the probe's loss rose from {average(worst.previous):.4g} to {average(worst.mean):.4g}"
        if self._states[backs.index(True)].windows == 0:
            rose = f"the weights moved by {worst.displacement:.3g} of their norm"
        shrunk = min(new.value / old.value for new, old in zip(after, self._states, strict=True))
        rate = f"learning rate times {shrunk:.2g}"
        if total <= _MAX_BACKS and in_a_row <= _MAX_BACKS_IN_A_ROW:
            event = f"{rose}: back to the weights of step {self._clock.began}, {rate}"
            return replace(plan, states=after, back="window", events=(event,))
        tried = f"{in_a_row - 1} retries, {total - 1} in all"
        if not all(map(math.isfinite, (worst.speed, *worst.end))):
            raise RuntimeError(
                f"{self._context.caller}.step: step {plan.seen.step}: {rose} over the window, and going back "
                f"is no way out ({tried}). Check the loss for NaN, the data from here on, and that the "
                "probe's batches are of the kind that is trained on; finish_() writes the best weights seen "
                "into the model"
            )
        return replace(plan, events=(f"{rose}: no way back ({tried}), {rate}",))

    def _remember(self, plan: _Plan, losses: PointLosses) -> _Plan:
        """Offer what the window left behind as the best weights, and see whether it has fallen behind them:
        then training goes back there or, with time enough, to the beginning, with a smaller factor, unless
        something else has been moved since that may do better. The steps taken are spent."""
        step, explained = plan.seen.step, plan.seen.explained
        decisions = self._factors.as_one(self._states, plan.decisions)
        plan = replace(plan, decisions=decisions, states=[decision.state for decision in decisions])
        mean = self._numbered(self._trail.mean.tensors)
        if not losses.judged:
            self.incumbent.start(self._clock.began, losses.mean, losses.chosen, mean)
            return plan
        end = self._numbered(self._trail.weights) if step == plan.seen.total_steps else None
        self.incumbent.offer(step, losses.mean, losses.chosen, mean, losses.chosen_end, end)
        rises = any(decision.action in ("up", "scale") for decision in decisions)
        used = [state.value for state in self._states]
        self.incumbent.count(step, used, rises=rises, moved=explained != 0)
        self.improves = self.incumbent.improves
        plan = replace(plan, best=self.incumbent.keeper.choice.improved_at == step)
        if not self._clock.searches_after(step):
            return plan
        if self.incumbent.leads_back:
            anew = self.incumbent.may_begin_anew(step, self._clock.origin, self._clock.total_steps)
            return replace(plan, back="beginning" if anew else "best")
        if self.incumbent.stalled:
            event = f"nothing has improved since step {self.incumbent.improved_at}"
            plan = replace(plan, events=(*plan.events, event))
        return plan

    # ------------------------------------------------------------------ 3. apply

    def _apply(self, plan: _Plan) -> Decided:
        """Move the factors, or go back; then on to the next window."""
        step, events = plan.seen.step, plan.events
        if plan.back == "window":
            self._way_back.to_window()
            # The steps taken are spent, but they lead nowhere: the weights have not travelled in them.
            self._previous_middle = [middle + step - self._clock.began for middle in self._previous_middle]
        self._states = list(plan.states)
        if plan.back != "window":
            for i, state in enumerate(self._states):
                if state.windows > 0:
                    self._trail.keep(i)
                    self._previous_middle[i] = (self._clock.began + 1 + step) / 2
                else:  # it hardly moved: what it will have moved by is the next window's doing alone
                    self._previous_middle[i] = step
        self._begin(step)
        if plan.back in ("best", "beginning"):
            events = (*events, self._retreat(step, anew=plan.back == "beginning"))
        if self._clock.searching and self._curve.descends:
            self.stop()
            total = plan.seen.total_steps
            if total is None or step < total / 3:
                logger.warning(
                    "%s: the schedule is below %d %% of its peak after %d steps: the search for its size "
                    "ends here",
                    self._context.caller,
                    100 * DESCENT,
                    step,
                )
        self._move_factors()
        return Decided(
            tuple(b.record(delta=b.axis.base - b.base) for b in plan.before),
            horizon=tuple(map(_record, self._factors.names(), plan.decisions, plan.windows)),
            events=events,
            void=plan.back == "window",
            went_back=plan.back is not None,
            best=plan.best,
        )

    def _retreat(self, step: int, *, anew: bool) -> str:
        improved, slower = self.incumbent.improved_at, not self.incumbent.others_moved
        if anew:
            self._way_back.to_beginning()
            self.incumbent.begin_anew()
            pairs = zip(self._first_factors(), self.incumbent.factors, strict=True)
            self._states = [self._controller.restart(*pair, slower=slower) for pair in pairs]
            self._clock.origin = step
            self.start(step)
            where, rate = "from the beginning", "below a third of the learning rate"
        else:
            with self._copies.following(), self._context.regularisers_off():
                improved = self.incumbent.go_back_()
            self._states = [self._controller.retreat(state, slower=slower) for state in self._states]
            self._trail.stand()
            self._previous_middle = [float(step) for _ in self._previous_middle]
            where, rate = "back to those weights", "learning rate times 0.33"
        return (
            f"nothing better since step {improved}: {where}, {rate if slower else 'at what was moved since'}"
        )

    def _numbered(self, values: Sequence[Tensor]) -> dict[int, Tensor]:
        return dict(zip(self._trail.numbers, values, strict=True))

    def check_end(self) -> str:
        """What is wrong with the weights that training ends with, if anything. Waits for the device."""
        return "" if self._trail.is_finite() else "the weights are not finite at the end of training"

    def extra_bytes(self) -> int:
        """Memory beyond training itself, the copies for a rollback included once they have been taken."""
        return self._trail.bytes() + self.incumbent.keeper.bytes() + self._way_back.bytes()

    def configuration(self) -> dict[str, Any]:
        return {"trained": list(self._trail.numbers)}

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
            "probe": self._probe.state_dict(self._context.replicas.world_rank),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._states = [HorizonState(**saved) for saved in state["states"]]
        self._clock.load_state_dict(state)
        self.window_end, self._taken, self._fresh = self._clock.end, state["taken"], state["fresh"]
        self._previous_middle, self._curve = list(state["previous_middle"]), Curve(*state["curve"])
        self.incumbent.load_state_dict(state["incumbent"])
        self._useless.load(state["constant"])
        self._trail.load_state_dict(state["trail"])
        self._way_back.load_state_dict(state)
        self._probe.load_state_dict(state["probe"], self._context.replicas.world_rank)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What follows from a window; ``states`` are the factors' from here on, and ``back`` where weights go."""

    seen: Seen
    before: Sequence[Before]
    windows: Sequence[Window]
    decisions: Sequence[HorizonDecision]
    states: Sequence[HorizonState] = ()
    back: Literal["window", "best", "beginning"] | None = None
    events: tuple[str, ...] = ()
    best: bool = False


class PointLosses:
    """Losses at m and e, on the batches of all ranks in turn, and those that were measured at p before.

    A row holds L(m) of all batches; L(e) of the first few; the displacements; then, where weights are chosen
    by other losses than these (they are deployed with running statistics), those at the end of the run and
    at m.

    Args:
        rows: of every rank.
        judged: whether weights have moved, and e was measured.
        factors: how many displacements there are, one for each optimizer.
        batches: to choose by, on every rank.
        few: of them e is measured on.
        apart: whether weights are chosen by other losses.
        ends: whether this is the run's last window, whose end is to choose from, too.
        previous: L(p), which was L(m) in the window before.
    """

    def __init__(
        self,
        rows: Sequence[Sequence[float]],
        *,
        judged: bool,
        factors: int,
        batches: int,
        few: int,
        apart: bool,
        ends: bool,
        previous: Sequence[float] | None,
    ) -> None:
        def pooled(start: int, width: int) -> list[float]:
            return [loss for row in rows for loss in row[start : start + width]]

        self.judged = judged
        self.previous = list(previous or ()) if judged else []
        self.mean = pooled(0, batches)
        #: L(m), on the batches that e was measured on.
        self.mean_there = pooled(0, few)
        self.end = pooled(batches, few) if judged else []
        at = batches + (few if judged else 0)
        #: ‖m − p‖ / ‖p‖ of each optimizer's weights, the mean over the ranks.
        self.displacements = [math.fsum(row[at + i] for row in rows) / len(rows) for i in range(factors)]
        #: L(m) and, in the run's last window, L(e), by which the weights are chosen.
        self.chosen, self.chosen_end = self.mean, self.end
        if apart:
            at += factors
            if ends and judged:
                self.chosen_end = pooled(at, batches)
                at += batches
            self.chosen = pooled(at, batches)

    def windows(
        self,
        clock: Clock,
        step: int,
        middles: Sequence[float],
        best: Sequence[float] | None,
        rise: float,
        explained: float = 0.0,
    ) -> list[Window]:
        """What the window that ends at ``step`` showed of each optimizer's weights.

        ``middles`` are those of the windows that p is the mean of, ``best`` the lowest losses at any m so
        far, ``rise`` how much the schedule rose, ``explained`` what others' moves changed.
        """
        after = clock.after(step) or step + (step - clock.began)
        return [
            Window(
                step=step - clock.origin,
                next_step=after - clock.origin,
                total_steps=None if clock.total_steps is None else clock.total_steps - clock.origin,
                displacement=displacement,
                apart=(clock.began + 1 + step) / 2 - middle,
                rise=rise,
                explained=explained,
                previous=self.previous,
                mean=self.mean,
                end=self.end,
                mean_there=self.mean_there,
                best=best if best is not None and self.judged else (),
            )
            for displacement, middle in zip(self.displacements, middles, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Factors:
    """One factor on the schedule for each optimizer.

    Args:
        sizes: how many groups each of several optimizers has; empty for one optimizer.
    """

    sizes: Sequence[int]

    def of_group(self, group: int) -> int:
        """The factor of a group."""
        return next((i for i, end in enumerate(accumulate(self.sizes)) if group < end), 0)

    def highest(self, values: Sequence[float]) -> list[float]:
        """The highest of the groups' values, for each factor."""
        if not self.sizes:
            return [max(values)]
        return [max(values[end - size : end]) for end, size in self._ends()]

    def as_one(
        self, before: Sequence[HorizonState], decisions: Sequence[HorizonDecision]
    ) -> list[HorizonDecision]:
        """Once all optimizers have been brought to speed, their factors move together, by the mean of what
        each would have done: all are judged by the same losses, which cannot tell their ratio.

        One that its own top speed or ceiling holds back is not raised, and one that has not moved yet waits.
        """
        if len(decisions) == 1 or any(d.action in ("scale", "back") for d in decisions):
            return list(decisions)
        own = [math.log(d.state.value / s.value) for d, s in zip(decisions, before, strict=True)]
        moving = [change for change, s in zip(own, before, strict=True) if s.windows > 0]
        common = math.fsum(moving) / len(moving) if moving else 0.0
        if common == 0.0:
            return list(decisions)
        after = []
        for decision, state in zip(decisions, before, strict=True):
            bounded = common > 0 and decision.action == "hold" and not decision.why
            if state.windows > 0 and not bounded:
                value = min(state.value * math.exp(common), state.cap)
                moved = replace(decision.state, value=value)
                decision = replace(decision, state=moved, action="up" if common > 0 else "down", why="")
            after.append(decision)
        return after

    def names(self) -> list[str]:
        """What records call them: by the numbers of their groups."""
        if not self.sizes:
            return ["lr"]
        spans = [(end - size, end - 1) for end, size in self._ends()]
        return [f"lr/{first}" if first == last else f"lr/{first}-{last}" for first, last in spans]

    def _ends(self) -> list[tuple[int, int]]:
        return list(zip(accumulate(self.sizes), self.sizes, strict=True))


def _record(name: str, decision: HorizonDecision, window: Window) -> HorizonRecord:
    """A decision and the window it rests on, as the history keeps them."""
    return HorizonRecord(
        name=name,
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


def _check(context: Context, axes: Sequence[Axis], probe: Probe, parameters: Sequence[Tensor]) -> None:
    """Raise TypeError for what a horizon cannot judge, ValueError for weights that are not there yet."""
    if any(weight.is_meta for weight in parameters):
        raise ValueError(
            f"{context.caller}: the weights must be there, and some are on the meta device; call "
            "model.to_empty(device=...) and load or initialise them first"
        )
    others = [axis.name for axis in axes if not isinstance(axis, GroupLearningRate)]
    if others:
        raise TypeError(
            f"{context.caller}: a horizon judges the learning rate alone, got {', '.join(others)}"
        )
    if context.replicas.local_count > 1 and probe.has_norms:
        raise TypeError(
            f"{context.caller}: stacked replicas must have no running statistics to be chosen with, got a "
            "model with batch norm; use another norm, or one process per replica"
        )


def _size(count: int) -> str:
    """
    >>> _size(999), _size(1_234_567), _size(2_000_000_000_000)
    ('999 bytes', '1.2 MB', '2000 GB')
    """
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.{1 if count < 100 * unit else 0}f} {name}"
    return f"{count} bytes"
