"""AutoLR's policy: training runs in windows, and what each window shows moves the learning rate.

The maths, what the numbers mean and how far the rate moves, is in :mod:`hdet.autolr.rule`, which is pure.
This file measures them and applies what was decided. At the end of a window

1. the probe measures the loss at e, the last iterate, and at m, the window's mean (:meth:`Horizon.at_mean`);
   L(p), at the mean of the window before, is known from that window;
2. the rule decides from the losses of all ranks (:meth:`Horizon.decide`);
3. the factor on the schedule moves; or the weights go back, to the window's start after an explosion
   (rollback), to the best seen or to the beginning where nothing has improved for long
   (:meth:`Horizon._apply`).

All losses are of batches that are not trained on, with regularisers off. What a regulariser's move did to the
averaged model is explained by its slope (``Seen.explained``), and is no progress of the learning rate's.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import accumulate, chain, pairwise
from typing import Any, Literal

from torch import Tensor, nn

from hdet.autolr.best import Best, BestWeights, Incumbent
from hdet.autolr.choice import mean_of
from hdet.autolr.clock import DECAY, Clock, Curve
from hdet.autolr.prior import fine_tuning
from hdet.autolr.probe_checks import ProbeChecks
from hdet.autolr.rule import HorizonController, HorizonDecision, HorizonState, Window
from hdet.autolr.snapshot import Snapshot, state_is_finite
from hdet.autolr.window import WeightPath
from hdet.history import HorizonRecord
from hdet.hyperparameters import Axis, Explorable, GroupLearningRate
from hdet.loop.converge import WeightCopies
from hdet.loop.optimizers import checksum, every_parameter, outside
from hdet.loop.policy import Before, Context, Decided, Policy, Seen
from hdet.loop.windows import Windows
from hdet.probes import Probe
from hdet.replicas import local
from hdet.replicas.norms import norm_of

__all__ = ["Factors", "Horizon", "split_rows"]

logger = logging.getLogger("hdet")

#: The learning rate of the first window: as good as none, and the same whatever the optimizer was given.
FIRST_LR = 1e-5
#: One probe batch for so many steps of a window, and never fewer than these, tell the loss at its end.
_STEPS_PER_BATCH, _FEWEST_AT_END = 50, 2
_MAX_ROLLBACKS, _MAX_IN_A_ROW = 20, 5


class Horizon(Policy):
    """Windows, their means, the probe at their points, and the rollback.

    Args:
        explore: learning rates.
        probe: measures the loss.
        controller: decides.
        windows: how long they are.
        offload: whether the copies for a rollback and the best weights are in the host's memory; None: where
            the device has no room for them.
        patience: so often training returns to the best weights without an improvement.
        sizes: how many groups each of several optimizers has: each has a factor of its own.
        spares: whether fewer batches are measured once they agree.
    """

    kind = "horizon"
    probes = True
    stood: bool
    follows_weights = True

    def __init__(
        self,
        explore: Sequence[Explorable],
        probe: Probe,
        controller: HorizonController,
        windows: Windows,
        *,
        offload: bool | None = None,
        patience: int | None = None,
        sizes: Sequence[int] = (),
        spares: bool = False,
    ) -> None:
        super().__init__(explore)
        self._probe, self._controller, self.windows = probe, controller, windows
        self._spares = spares
        self._clock, self._factors = Clock(windows), Factors(sizes)
        self._patience, self._offload = patience, offload
        self._states: list[HorizonState] = []
        #: What a row of this sync holds, and how many numbers of each.
        self._widths: dict[str, int] = {}
        #: Whether the last window was better than all before, or nothing has been learnt yet.
        self.improves = True
        #: Whether there was one that was not.
        self.stood = False
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
            "weights are chosen by": "the loss" if self._probe.choose_by is None else "choose_by",
        }

    def describe(self) -> str:
        trained, mean = (
            sum(tensor.numel() * tensor.element_size() for tensor in of)
            for of in (self._window.weights, self._window.mean.tensors)
        )
        until = "" if self.windows.last is None else f", the search until step {self.windows.last}"
        # The window's mean is always on the device, the beginning of the run always with the host; the best
        # weights, and weights and the optimizer's state as the window began, are where ``offload`` says.
        host, device = "with the host", "on the device"
        there = {True: host, False: device, None: f"{device} if it has room, else {host}"}[self._offload]
        return (
            f"windows of {self.windows.first} steps and more{until}; memory beyond training: {_size(mean)} "
            f"{device}, {_size(trained)} {host}, and {there} {_size(2 * trained)} and a copy of the "
            "optimizer's state"
        )

    def bind(self, axes: Sequence[Axis], context: Context) -> None:
        """Take the weights of an optimizer; the window begins with its first step."""
        super().bind(axes, context)
        self._context, optimizer = context, context.optimizer
        parameters = every_parameter(optimizer)
        _check(context, parameters)
        self._path = WeightPath(context, self._factors.sizes, self._clock)
        self._window = self._path.window
        model, offload = self._probe.model, self._offload
        best = BestWeights(self._probe, model, parameters, context.replicas, offload=offload)
        self.incumbent = Incumbent(best, self._patience, self._controller.lost)
        self._copies = WeightCopies(optimizer, context.replicas)
        self._snapshot = partial(Snapshot, optimizer, model, replicas=context.replicas)
        self._at_beginning = self._snapshot(offload=True)  # hardly ever read
        #: Where the window in progress began: of the first one that is the same copy.
        self._at_window = self._at_beginning
        self._clock.total_steps = context.total_steps
        one = context.replicas.local_count == 1  # what several see at once is no sample
        own_data = context.own_gradients or isinstance(model, nn.parallel.DistributedDataParallel)
        self._checks = ProbeChecks(context.caller, self._probe, watches=one, own_data=own_data)
        self._states = [HorizonState(factor) for factor in self._first_factors()]
        self._curve = Curve(self._learning_rates[0].curve, self._learning_rates[0].curve)
        self._move_factors()

    @property
    def _learning_rates(self) -> list[GroupLearningRate]:
        return self.axes  # type: ignore[return-value]  # Search gives it no other

    def _first_factors(self) -> list[float]:
        """Next to no learning rate, whatever the schedule's values are."""
        curves = [axis.curve for axis in self._learning_rates]
        return [FIRST_LR / highest for highest in self._factors.highest(curves)]

    def _move_factors(self) -> None:
        for i, axis in enumerate(self._learning_rates):
            axis.move(self._states[self._factors.of_group(i)].value)

    # ------------------------------------------------------------------ windows

    def start(self, step: int) -> None:
        """Begin the first window, with the weights that its first step will find."""
        self._fresh = True
        #: Checksums of what the model trains and the optimizer does not hold, when the window began.
        self._elsewhere: dict[str, float] = {}
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
        """Whether nothing has improved for longer than patience lasts."""
        return self._clock.searching and self.incumbent.behind and self.incumbent.exhausted

    def stop(self) -> None:
        """The search is over; windows are measured to the end of the run."""
        self._clock.stop()
        self.window_end = self._clock.end

    def end_at(self, step: int | None) -> None:
        self._clock.end_at(step)
        self.window_end = self._clock.end

    def before_step(self) -> None:
        """Before the window's first step: copy what a rollback returns to."""
        if self._taken:
            return
        self._taken = True
        self._checks.watch()
        opens = self.window_end is not None
        if opens:
            if self._path.follow():
                self.incumbent.weights.follow(self._window.by_number(self._window.weights))
                self._previous_middle = [float(self._clock.began) for _ in self._states]
            self._elsewhere = self._sums_elsewhere()
            # Only one rank alone may end a window early: several could disagree by a step and deadlock.
            alone = self._context.replicas.world_size == 1
            self._window.open(norm_of(self._window.weights) if alone else 0.0)
        if self._fresh:
            self._path.start()
            self._look_for_trained()
            if self.incumbent.weights.choice.kept is None:
                self._at_beginning.take()
            self._fresh = False
            self._at_window = self._at_beginning
        elif opens:
            if self._at_window is self._at_beginning:
                self._at_window = self._snapshot(offload=self._offload)
            self._at_window.take()

    def _look_for_trained(self) -> None:
        """Where weights were trained before, a lower rate is usual."""
        shares = [fine_tuning(*counted) for counted in self._path.trained()]
        states = zip(self._states, shares, strict=True)
        self._states = [replace(state, fine_tuning=share) for state, share in states]
        if min(shares) < 1 and self._context.replicas.world_rank == 0:
            told = " and ".join(f"{share:.2g}" for share in shares)
            logger.info("%s: weights that were trained before: usual rate × %s", self._context.caller, told)

    def after_step(self) -> bool:
        """One more iterate; whether the window is over. Weights that diverge end it at once."""
        if self.window_end is None or not self._window.add():
            return False
        self.window_end = self._clock.end
        return True

    def judges(self, step: int) -> bool:
        return self.window_end is not None and step >= self.window_end

    def recounted(self, step: int) -> None:
        self._window.left = (self.window_end or step) - step

    # ------------------------------------------------------------------ 1. measure

    def losses_at_own_mean(self) -> list[float | Tensor]:
        """At this replica's own mean over the window, before the replicas are averaged."""
        with self._context.regularisers_off():
            return self._window.at_mean(self.incumbent.weights.measure)

    def at_mean(self) -> Sequence[float | Tensor]:
        """Once the replicas are averaged: this rank's losses at m on all batches; at e, the present weights,
        on a few, once windows are compared; how far m is from p; and, where weights are chosen by another
        number (a metric, or the loss with the running statistics that they are deployed with), that."""
        best, ends, few = self.incumbent.weights, self._clock.ends_run, 0
        if self.incumbent.previous is not None and any(state.windows > 0 for state in self._states):
            few = best.count  # e may be returned at the end of the run; elsewhere some will do
            few = few if ends else min(max(_FEWEST_AT_END, self._clock.length // _STEPS_PER_BATCH), few)
        if self._elsewhere:
            self._check_elsewhere()
        self._path.converge()
        displacements = self._path.displacements()  # first: the model rounds a mean that it has held
        with self._context.regularisers_off():
            self._checks.prepare()
            measured: dict[str, Sequence[float | Tensor]] = {
                "mean": (),
                "end": best.measure(few) if few else (),
            }
            measured["mean"] = self.mean_losses = self._window.at_mean(best.measure)
            measured["displacements"] = displacements
            measured["marks"] = [best.mark()]
            measured["lost"] = [float(not state_is_finite(self._context.optimizer))]
            if self._probe.has_norms or best.by_metric:
                measured["chosen end"] = best.measure_deployed(refresh=False) if ends and few else ()
                measured["chosen"] = self._window.at_mean(partial(best.measure_deployed, refresh=True))
        self._widths = {name: len(part) for name, part in measured.items()}
        return [*chain.from_iterable(measured.values()), *self._checks.row()]

    def _sums_elsewhere(self) -> dict[str, float]:
        """Checksums of the model's parameters that are not frozen and in no group of the optimizer."""
        if self._context.replicas.local_count > 1:  # rows of one matrix are not the model's own
            return {}
        others = outside(self._context.optimizer, self._probe.model)
        return {name: checksum([local(p)]) for name, p in others.items() if p.requires_grad}

    def _check_elsewhere(self) -> None:
        """Raise where something else trains a part of the model: going back, and the best weights, would be
        of the other part alone."""
        now = self._sums_elsewhere()
        moved = [name for name, was in self._elsewhere.items() if now.get(name, was) != was]
        if moved:
            caller = self._context.caller
            raise RuntimeError(
                f"{caller}.step: {caller} must hold all that is trained of the model, and {len(moved)} "
                f"parameters have changed that its optimizer does not have, such as {moved[0]!r}: going back "
                f"and finish_() would write the others alone. Give it all optimizers, {caller}([first, "
                "second], …), or the probe the part that this one trains; what you write yourself, "
                "requires_grad_(False)"
            )

    # ------------------------------------------------------------------ 2. decide

    def decide(self, seen: Seen) -> Callable[[], Decided]:
        """The rule's decision for each factor, and whether the weights go back."""
        before, self.improves = self.before(seen.levels), True
        losses = split_rows(seen.rows, self._widths)
        doubts: tuple[str, ...] = ()
        if self.incumbent.weights.batches_changed(losses["marks"]):
            doubts = (self._start_over(),)
        windows = self._windows(seen, losses)
        doubts += self._checks.judge(seen, windows, judged=bool(losses["end"]))
        # No factor moves once the schedule decays.
        rule = self._controller.update if self._clock.searching else self._controller.descend
        decisions = [
            rule(state, window)
            if self._window.weights[span] and (window.previous or not window.mean or state.windows == 0)
            else HorizonDecision(state, "hold", 0.0, why="nothing to compare")
            for state, window, span in zip(self._states, windows, self._path.spans, strict=True)
        ]
        lost = any(losses["lost"]) and all(map(math.isfinite, losses["displacements"]))
        metric = mean_of(losses["chosen"]) if self.incumbent.weights.by_metric else None
        plan = _Plan(seen, before, windows, decisions, lost=lost, metric=metric)
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

    def _start_over(self) -> str:
        """The probe has other batches than before: what they have shown is of another scale."""
        self.incumbent.start_over()
        states = [self._controller.retreat(state, slower=False) for state in self._states]
        self._states = [replace(state, first_loss=None) for state in states]
        return (
            "the probe has other batches than before the run was resumed, and losses on different batches "
            "cannot be compared: windows are compared, and weights chosen, from here on"
        )

    def _windows(self, seen: Seen, losses: Mapping[str, list[float]]) -> list[Window]:
        """What the window showed of each optimizer's weights."""
        clock, step, judged, factors = self._clock, seen.step, bool(losses["end"]), len(self._states)
        after = clock.after(step) or step + (step - clock.began)
        window = partial(
            Window,
            step - clock.origin,
            after - clock.origin,
            None if clock.total_steps is None else clock.total_steps - clock.origin,
            rise=self._curve.rise(self._learning_rates[0].curve),
            explained=seen.explained,
            previous=(judged and self.incumbent.previous) or (),
            mean=losses["mean"],
            end=losses["end"],
            mean_there=[loss for row in seen.rows for loss in row[: self._widths["end"]]],
            best=(judged and self.incumbent.best) or (),
            before=clock.origin,
            decides=len(seen.rows) > 1 or self._probe.decides,
            rounding=self._path.rounding,
        )
        moved = [losses["displacements"][i::factors] for i in range(factors)]
        if any(losses["lost"]):  # the weights may be sound, and stand still from now on
            moved = [[math.nan] for _ in moved]
        units = self._factors.highest([axis.curve for axis in self._learning_rates])
        return [
            window(math.fsum(of_ranks) / len(of_ranks), (clock.began + 1 + step) / 2 - middle, unit=unit)
            for of_ranks, middle, unit in zip(moved, self._previous_middle, units, strict=True)
        ]

    def _plan_rollback(self, plan: _Plan) -> _Plan:
        """A rollback to the window's start, with smaller factors where the loss rose; where rollbacks have
        not helped, the weights stay, if they are finite. The steps taken are spent."""
        backs = [d.action == "back" for d in plan.decisions]
        after = [d.state if b else s for d, s, b in zip(plan.decisions, self._states, backs, strict=True)]
        total, in_a_row = (max(getattr(s, n) for s in after) for n in ("total_backs", "backs"))
        worst = plan.windows[backs.index(True)]
        rose = f"the probe's loss rose from {mean_of(worst.previous):.4g} to {mean_of(worst.mean):.4g}"
        ends = all(map(math.isfinite, worst.end))
        if mean_of(worst.mean) <= (mean_of(worst.previous) if ends else math.inf):
            rose = "the last weights, or the probe's loss at them, are not finite"
        if plan.lost and ends:
            rose = (
                "the optimizer's state became infinite or NaN (as by a gradient above 1e19, whose square "
                "Adam keeps in float32)"
            )
        elif self._states[backs.index(True)].windows == 0:
            rose = f"the weights moved by {worst.displacement:.3g} of their norm"
        shrunk = min(new.value / old.value for new, old in zip(after, self._states, strict=True))
        rate = f"learning rate times {shrunk:.2g}"
        if total <= _MAX_ROLLBACKS and in_a_row <= _MAX_IN_A_ROW:
            event = f"{rose}: back to the weights of step {self._clock.began}, {rate}"
            return replace(plan, states=after, back="window", events=(event,))
        tried = f"{in_a_row - 1} retries, {total - 1} in all"
        if not all(map(math.isfinite, (worst.speed, *worst.end))):
            raise RuntimeError(
                f"{self._context.caller}.step: step {plan.seen.step}: {rose} over the window, and "
                f"rollbacks did not help ({tried}). Check the loss for NaN, its scale, the data, and that "
                "the probe's batches are of the kind that is trained on; finish_() loads the best weights "
                "seen into the model"
            )
        return replace(plan, events=(f"{rose}: no rollback ({tried}), {rate}",))

    def _remember(self, plan: _Plan, losses: Mapping[str, list[float]]) -> _Plan:
        """Offer the window's mean as the best weights. Where training has fallen behind the best, it returns
        to them or, with time enough, to the beginning, with a smaller factor, unless something else has been
        moved since that may do better. The steps taken are spent."""
        step, explained = plan.seen.step, plan.seen.explained
        decisions = self._factors.as_one(self._states, plan.decisions)
        plan = replace(plan, decisions=decisions, states=[decision.state for decision in decisions])
        incumbent, window = self.incumbent, self._window
        candidate = partial(incumbent.weights.candidate, decides=plan.windows[0].decides)
        at_mean = losses["mean"], losses.get("chosen", ())
        mean = window.by_number(window.mean.tensors)
        if not losses["end"]:
            incumbent.offer(candidate(self._clock.began, "start", *at_mean), losses["mean"], mean)
            return plan
        incumbent.offer(candidate(step, "mean", *at_mean), losses["mean"], mean)
        if step == plan.seen.total_steps:
            end = candidate(step, "end", losses["end"], losses.get("chosen end", ()))
            incumbent.weights.offer(end, window.by_number(window.weights))
        rises = any(decision.action in ("up", "scale") for decision in decisions)
        used = [state.value for state in self._states]
        incumbent.count(step, used, rises=rises, moved=explained != 0)
        self.improves = incumbent.improves
        self.stood = self.stood or not self.improves
        plan = replace(plan, best=incumbent.weights.choice.improved_at == step)
        if not incumbent.behind or not self._clock.searches_after(step):
            return plan
        if incumbent.exhausted:
            event = f"nothing has improved since step {incumbent.best_at}"
            return replace(plan, events=(*plan.events, event))
        restarts = not self._curve.decays and incumbent.may_restart(
            step, self._clock.origin, self._clock.total_steps
        )
        return replace(plan, back="beginning" if restarts else "best")

    # ------------------------------------------------------------------ 3. apply

    def _apply(self, plan: _Plan) -> Decided:
        """Move the factors, or go back; then on to the next window."""
        step, events = plan.seen.step, plan.events
        if plan.back == "window":
            self._at_window.restore()
            # The steps taken are spent, but they lead nowhere: the weights have not travelled in them.
            self._previous_middle = [middle + step - self._clock.began for middle in self._previous_middle]
        self._states = list(plan.states)
        if plan.back is None:
            self._spare()
        if plan.back != "window":
            for i, state in enumerate(self._states):
                if state.windows > 0:
                    self._path.keep(i)
                    self._previous_middle[i] = (self._clock.began + 1 + step) / 2
                else:  # it hardly moved: what it will have moved by is the next window's doing alone
                    self._previous_middle[i] = step
        self._begin(step)
        if plan.back in ("best", "beginning"):
            events = (*events, self._retreat(step, restart=plan.back == "beginning"))
        if self._clock.searching and self._curve.decays:
            self.stop()
            total = plan.seen.total_steps
            if total is None or step < total / 3:
                logger.warning(
                    "%s: the schedule is below %d %% of its peak after %d steps: the search for its size "
                    "ends",
                    self._context.caller,
                    100 * DECAY,
                    step,
                )
        self._move_factors()
        return Decided(
            tuple(b.record(delta=b.axis.base - b.base) for b in plan.before),
            horizon=tuple(
                replace(_record(*each), metric=plan.metric)
                for each in zip(self._factors.names(), plan.decisions, plan.windows, strict=True)
            ),
            events=events,
            void=plan.back == "window",
            went_back=plan.back is not None,
            best=plan.best,
        )

    def _spare(self) -> None:
        """Measure fewer batches from now on, where they agree: passes cost time, and the others tell nothing.
        Not where weights are chosen by another number, which says less than a loss."""
        while self._spares and "chosen" not in self._widths and self.incumbent.agree():
            shift = self.incumbent.halve()
            self._states = [
                state if state.first_loss is None else replace(state, first_loss=state.first_loss + shift)
                for state in self._states
            ]

    def _retreat(self, step: int, *, restart: bool) -> str:
        """Return to the beginning or to the best weights, at a smaller rate; the sentence for the log."""
        lowest, slower = self.incumbent.best_at, not self.incumbent.others_moved
        if restart:
            self._at_beginning.restore()
            self.incumbent.restart()
            given = zip(self._states, self._first_factors(), self.incumbent.factors, strict=True)
            self._states = [self._controller.restart(*each, slower=slower) for each in given]
            self._clock.origin = step
            self.start(step)
            where, rate = "from the beginning", "below a third of the learning rate"
        else:
            with self._copies.following(), self._context.regularisers_off():
                lowest = self.incumbent.return_to_best_()
            self._states = [self._controller.retreat(state, slower=slower) for state in self._states]
            self._path.restart()
            self._previous_middle = [float(step) for _ in self._previous_middle]
            where, rate = "back to those weights", "learning rate times 0.33"
        return f"nothing better since step {lowest}: {where}, {rate if slower else 'at what was moved since'}"

    def finish_(self) -> Best | None:
        """Load the best weights and estimate their loss, measured as they were chosen. A collective."""
        with self._context.regularisers_off():
            return self.incumbent.weights.finish_()

    def check_end(self) -> str:
        """What is wrong with the weights that training ends with, if anything. Waits for the device."""
        return "" if self._path.is_finite() else "the weights are not finite at the end of training"

    def extra_bytes(self) -> int:
        """Memory beyond training itself, the copies for a rollback included once they have been taken."""
        own = self._at_window.bytes() if self._at_window is not self._at_beginning else 0
        return own + self._at_beginning.bytes() + self._path.bytes() + self.incumbent.weights.bytes()

    def configuration(self) -> dict[str, Any]:
        return {"trained": list(self._window.numbers), **self.incumbent.weights.configuration}

    def state_dict(self) -> dict[str, Any]:
        """Numbers, and the tensors without which a window in progress could not go on bit for bit."""
        # A checkpoint may be loaded in place: no two of its tensors share memory.
        at_window = self._at_window
        at_window = at_window.copy() if at_window is self._at_beginning else at_window
        return {
            "states": [asdict(state) for state in self._states],
            **self._clock.state_dict(),
            "taken": self._taken,
            "fresh": self._fresh,
            "stood": self.stood,
            "previous_middle": list(self._previous_middle),
            "incumbent": self.incumbent.state_dict(),
            "curve": [self._curve.peak, self._curve.now],
            "constant": self._checks.state(),
            "trail": self._path.state_dict(),
            "snapshot": at_window.state_dict(),
            # A run mostly begins without optimizer state: there is no memory for it.
            "beginning": self._at_beginning.state_dict(spare_state=False),
            "probe": self._probe.state_dict(self._context.replicas.world_rank),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._states = [HorizonState(**saved) for saved in state["states"]]
        self._clock.load_state_dict(state)
        self.window_end, self._taken, self._fresh = self._clock.end, state["taken"], state["fresh"]
        self.stood = state["stood"]
        self._previous_middle, self._curve = list(state["previous_middle"]), Curve(*state["curve"])
        self.incumbent.load_state_dict(state["incumbent"])
        self._checks.load(state["constant"])
        self._path.load_state_dict(state["trail"])
        self._at_window = self._snapshot(offload=self._offload)
        self._at_window.load_state_dict(state["snapshot"])
        self._at_beginning.load_state_dict(state["beginning"])
        self._probe.load_state_dict(state["probe"], self._context.replicas.world_rank)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What follows from a window: the factors' ``states`` from now on, and where weights go ``back`` to."""

    seen: Seen
    before: Sequence[Before]
    windows: Sequence[Window]
    decisions: Sequence[HorizonDecision]
    states: Sequence[HorizonState] = ()
    back: Literal["window", "best", "beginning"] | None = None
    events: tuple[str, ...] = ()
    best: bool = False
    lost: bool = False
    metric: float | None = None


def split_rows(rows: Sequence[Sequence[float]], widths: Mapping[str, int]) -> dict[str, list[float]]:
    """What the rows of all ranks hold, by name: of the first rank, then of the next.

    >>> split_rows([[1.0, 2.0, 0.5], [3.0, 4.0, 0.7]], {"mean": 2, "displacements": 1})
    {'mean': [1.0, 2.0, 3.0, 4.0], 'displacements': [0.5, 0.7]}
    """
    ends = accumulate(widths.values())
    return {
        name: [value for row in rows for value in row[end - width : end]]
        for (name, width), end in zip(widths.items(), ends, strict=True)
    }


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
        return [max(values[start:end]) for start, end in self._spans()]

    def as_one(
        self, before: Sequence[HorizonState], decisions: Sequence[HorizonDecision]
    ) -> list[HorizonDecision]:
        """Once all optimizers have been brought to speed, their factors move together, by the mean of what
        each would have done: all are judged by the same losses, which cannot tell their ratio.

        One that its own ceiling holds back is not raised, and one that has not moved yet waits.
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
                value = min(state.value * math.exp(common), max(state.value, decision.state.ceiling))
                moved = replace(decision.state, value=value)
                decision = replace(decision, state=moved, action="up" if common > 0 else "down", why="")
            after.append(decision)
        return after

    def names(self) -> list[str]:
        """What records call them: by the numbers of their groups."""
        if not self.sizes:
            return ["lr"]
        spans = [(start, end - 1) for start, end in self._spans()]
        return [f"lr/{first}" if first == last else f"lr/{first}-{last}" for first, last in spans]

    def _spans(self) -> list[tuple[int, int]]:
        return list(pairwise(accumulate(self.sizes, initial=0)))


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
        loss_previous=mean_of(window.previous),
        loss_mean=mean_of(window.mean),
        loss_end=mean_of(window.end),
        why=decision.why,
    )


def _check(context: Context, parameters: Sequence[Tensor]) -> None:
    """Raise TypeError or ValueError for weights that windows cannot follow."""
    if any(weight.is_meta for weight in parameters):
        raise ValueError(
            f"{context.caller}: the weights must be there, and some are on the meta device; call "
            "model.to_empty(device=...) and load or initialise them first"
        )
    if not any(weight.requires_grad for weight in parameters):
        raise ValueError(
            f"{context.caller}: the optimizer must train something, and all its parameters are frozen; "
            "call requires_grad_() on some first"
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
