"""The engine: fan-out, converge, control, reassign (Algorithm 1), for one replica or a thousand.

It knows replicas, hyperparameters, signals and controllers only as such. ``OneCycleAutoLR`` is a façade
over it; there is no second copy of the cycle.
"""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike
from typing import Any, Protocol, SupportsFloat

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hdet.controllers import Controller, RegressionController
from hdet.engine.announce import Announcer
from hdet.engine.converge import Converge
from hdet.engine.divergence import find_doubts, predicted_distances
from hdet.engine.fan_out import Design, FanOut, bind, choose_design
from hdet.engine.gradients import Gradients, Sharing, empty_signals, refuse_stacked
from hdet.engine.sync import Meeting, Met
from hdet.engine.training_loss import TrainingLoss
from hdet.history import SyncRecord
from hdet.hyperparameters import (
    Axis,
    Explorable,
    GroupLearningRate,
    LearningRate,
    refuse_shared_places,
    separate_learning_rates,
)
from hdet.policies.held_out import HeldOut
from hdet.policies.horizon import Horizon
from hdet.policies.steering import Steering, by_horizon, take_factors
from hdet.probes.probe import Probe
from hdet.replicas import ProcessGroup, Replicas, find_replicas, refuse_sharded
from hdet.weights.parameters import describe, parameter_device

__all__ = ["Ensemble", "Schedule"]

_TOO_MANY_CALLS = 100


class Schedule(Protocol):
    """Anything whose ``step()`` writes the next learning rates: every torch scheduler but the plateau's.

    One with an attribute ``covers_itself`` that is true passes what it computes through
    :meth:`Ensemble.covered` before it writes it, and never reads it back.
    """

    def step(self) -> object: ...


class Ensemble:
    """Replicas that diverge in what they explore and are averaged back every ``sync_every`` steps.

    Args:
        optimizer: any torch optimizer; its step hooks carry the fan-out.
        explore: what the replicas diverge in: learning rate, weight decay, dropout, any scalar.
        schedule: the base schedule; :meth:`step` drives it. None leaves ``group["lr"]`` to the user, who
            may then run any scheduler, as long as no controller moves the learning rate.
        sync_every: T, in optimizer steps.
        total_steps: S. The replicas are converged at the last step even where T does not divide it.
        probe: judges replicas by held-out batches instead of the training loss, regularisers off.
        gradients: who shares them: ``"all"`` (the paper), ``"none"``, or the ranks of each arm. Where they
            are not shared by all, the optimizer's state is averaged with the weights.
        controller: moves the base values at each sync. None only fans out and converges, but with a probe it
            is a :class:`RegressionController`.
        design: how values are dealt to replicas: ``"permutation"`` (the paper), ``"orthogonal"``, or by
            default whichever serves the controller best.
        horizon: judges windows by a probe instead, whose lengths then replace ``sync_every``.
        control_after: S_w, the first step at which the controller acts.
        model: makes its buffers known, which are then averaged too.
        process_group: the replicas; the default group if None, and this process alone without one.
        seed: of the reassignments. No global random state is read or written.
        history: a JSONL file to which rank 0 appends every :class:`SyncRecord`.
        replicas: given instead of ``process_group`` by those who bring their own.
        caller: the name that errors and log lines begin with.
        first_step: where the count of steps begins, for a run that goes on.

    What the forward pass reads (dropout, label smoothing, temperature) holds this replica's own value while
    training goes on. :meth:`at_base` shows the base values, for an evaluation or a checkpoint;
    :meth:`detach`, or leaving a ``with`` block for whatever reason, puts them back for good.

    Example::

        with hdet.Ensemble(optimizer, [hdet.WeightDecay(), hdet.Dropout(model)], gradients="none",
                           probe=hdet.Probe(loss_fn, held_out, model=model),
                           schedule=cosine, sync_every=500, model=model) as ensemble:
            for batch in loader:
                loss = loss_fn(batch)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                ensemble.step(loss)
    """

    def __init__(
        self,
        optimizer: Optimizer,
        explore: Sequence[Explorable] = (LearningRate(),),
        *,
        schedule: Schedule | None = None,
        sync_every: int = 1000,
        total_steps: int | None = None,
        probe: Probe | None = None,
        gradients: Gradients = "all",
        controller: Controller | RegressionController | None = None,
        design: Design | None = None,
        horizon: Horizon | None = None,
        control_after: int = 0,
        model: nn.Module | None = None,
        process_group: ProcessGroup | None = None,
        seed: int = 0,
        history: str | PathLike[str] | None = None,
        replicas: Replicas | None = None,
        caller: str = "Ensemble",
        first_step: int = 0,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{caller}: optimizer must be a torch Optimizer, got {type(optimizer).__name__}")
        if isinstance(explore, Explorable) or not isinstance(explore, Iterable):
            raise TypeError(
                f"{caller}: explore must be a list of hyperparameters, got {type(explore).__name__}; write "
                f"[{type(explore).__name__}(...)]"
            )
        explore = list(explore)
        if probe is not None and controller is None:
            controller = RegressionController()
        take_over(optimizer)
        separate_learning_rates(optimizer)
        self._caller = caller
        self._optimizer = optimizer
        self._replicas = replicas or find_replicas(
            caller,
            device=parameter_device(optimizer),
            process_group=process_group,
            optimizer=optimizer,
        )
        if self._replicas.size > 1:
            refuse_sharded(caller, optimizer, model, process_group)
        speaks = self._replicas.rank == 0
        self._announcer = Announcer(caller, speaks=speaks, history=history)
        obstacle = self._announcer.obstacle
        self._replicas.agree(
            caller,
            {
                "sync_every": repr(sync_every),
                "total_steps": repr(total_steps),
                "control_after": repr(control_after),
                "controller": repr(controller),
                **(horizon.facts() if horizon is not None else {}),
                "explore": repr(explore),
                "gradients": repr(gradients),
                "design": repr(design),
                "probe": "none" if probe is None else "given",
                "seed": repr(seed),
                "history": obstacle or "writable",
                **describe(optimizer, model),
            },
        )
        check_sync_every(caller, sync_every)
        if obstacle:
            raise OSError(f"{caller}: history must be a file that can be written, got {obstacle}")
        if isinstance(schedule, ReduceLROnPlateau):
            raise TypeError(
                f"{caller}: schedule must step without a metric, got ReduceLROnPlateau; step it yourself and "
                "leave schedule=None"
            )

        self._advance_schedule = schedule.step if schedule is not None else _stay
        self._covers_itself = getattr(schedule, "covers_itself", False)
        self._sync_every = sync_every
        self._total_steps = total_steps
        self._control_after = control_after
        self._sharing = Sharing(caller, gradients, self._replicas, model)
        axes = self._bind(explore, learning_rate_alone=horizon is not None)
        try:
            self._set_up(axes, model, probe, controller, design, horizon, seed)
        except BaseException:
            for axis in axes:
                axis.close()
            raise
        self.resume_at(first_step)
        self._attach()
        for doubt in self._doubts(model, by_training_loss=controller is not None and probe is None):
            self._announcer.say_once(logging.WARNING, doubt)

    def _bind(self, explore: Sequence[Explorable], *, learning_rate_alone: bool) -> list[Axis]:
        """What is not to be found on one rank is refused on all; all begin at the same values."""
        axes: list[Axis] = []
        # Ranks have compared their groups already: learning rates are no news.
        if all(isinstance(item, LearningRate) for item in explore):
            return bind(self._caller, explore, self._optimizer, learning_rate_alone=learning_rate_alone)

        def bind_here() -> list[float]:
            axes.extend(bind(self._caller, explore, self._optimizer, learning_rate_alone=learning_rate_alone))
            return []

        try:
            self._replicas.together(f"{self._caller}: binding what is explored", bind_here)
            begin = {f"{axis.name} to begin with": repr(axis.base) for axis in axes}
            self._replicas.agree(self._caller, begin)
        except BaseException:
            for axis in axes:
                axis.close()
            raise
        return axes

    def _set_up(
        self,
        axes: Sequence[Axis],
        model: nn.Module | None,
        probe: Probe | None,
        controller: Controller | RegressionController | None,
        design: Design | None,
        horizon: Horizon | None,
        seed: int,
    ) -> None:
        sharing = self._sharing
        if self._replicas.here > 1:
            refuse_stacked(self._caller, self._replicas.size, axes, by_horizon=horizon is not None)
        self._regresses = isinstance(controller, RegressionController)
        chosen = choose_design(self._caller, design, axes, sharing.arms, regresses=self._regresses)
        refuse_shared_places(self._caller, axes)
        # Round 0 of the paper deals everything alike, which a regression could not take apart.
        first = 1 if self._regresses else 0
        self._fan_out = FanOut(
            axes,
            arms=sharing.arms,
            arm=sharing.arm,
            here=self._replicas.here,
            design=chosen,
            seed=seed,
            first_round=first,
        )
        self._steering = Steering(controller, axes)
        self._held_out = None if probe is None else HeldOut(probe, self._fan_out, self._replicas)
        self._needs_loss = controller is not None and probe is None
        self._diverges = sharing.own_gradients or any(axis.spread > 0 for axis in axes)
        #: Whether the distance of the replicas follows from their multipliers: they lie on one line.
        self._collinear = not sharing.own_gradients and axes == self._fan_out.learning_rates
        #: Whether a controller has moved a learning rate off its schedule.
        self.moved = False
        self._signal = TrainingLoss(self._replicas.here)
        self._optimizer_stepped = False
        self._calls_without_step = 0
        self._stepping = False
        #: Steps since the replicas were one model.
        self._since_sync = 0
        self._steps = self._round = 0
        with_state = sharing.own_gradients or any(axis.bends_state and axis.spread > 0 for axis in axes)
        self._converge = Converge(self._replicas, self._optimizer, model, with_state=with_state)
        self._horizon = horizon
        self._meet = Meeting(
            self._caller,
            self._replicas,
            sharing,
            self._fan_out,
            self._converge,
            self._held_out,
            diverges=self._diverges,
        )
        if horizon is not None:
            horizon.bind(self._caller, self._optimizer, self._replicas, diverges=self._diverges)
            horizon.start_at([axis.curve for axis in self._learning_rates])
            take_factors(horizon, self._learning_rates)
            self._look_who_moved()
        if self._diverges:
            self._converge.plan()  # what cannot be averaged is refused now, not at the first sync

    def _doubts(self, model: nn.Module | None, *, by_training_loss: bool) -> list[str]:
        """What a user should know before training begins. A collective where gradients are not shared."""
        said = [self._sharing.doubt_start(self._optimizer), *(axis.doubt for axis in self._fan_out.axes)]
        if self._regresses:
            said.append(self._fan_out.doubt())
        if self._replicas.size == 1 and self._held_out is not None:
            said.append(
                "there is one replica alone: nothing can be compared, and all values stay as they are"
            )
        if self._replicas.size > 1:
            own = self._sharing.own_gradients
            said += empty_signals(self._fan_out.axes, own_gradients=own, by_training_loss=by_training_loss)
            if model is None and self._diverges and self._replicas.here == 1:
                said.append(
                    "model= was not given: parameters are averaged, buffers (BatchNorm statistics) are not"
                )
        return [doubt for doubt in said if doubt]

    # ------------------------------------------------------------------ what a user sees

    @property
    def replicas(self) -> Replicas:
        """The replicas this process is one of."""
        return self._replicas

    @property
    def steps(self) -> int:
        """Optimizer steps counted so far."""
        return self._steps

    @property
    def values(self) -> dict[str, float]:
        """The base value of everything that is explored, by name."""
        return {axis.name: axis.base for axis in self._fan_out.axes}

    @property
    def replica_lrs(self) -> list[float]:
        """The learning rate that this replica's next optimizer step uses, for each group.

        Of several replicas in one process, the first one's; a record has all of them.
        """
        self._leave_step()
        own = [row[self._sharing.arm] for row in self._fan_out.multipliers]
        return [axis.base * rho for axis, rho in zip(self._learning_rates, own, strict=True)]

    def step(self, loss: Tensor | SupportsFloat | None = None) -> SyncRecord | None:
        """Call once after ``optimizer.step()``; returns the record of a sync when there was one.

        A call that follows no optimizer step (gradient accumulation, a step that GradScaler skipped) only
        takes the loss; on gradients of their own, where one rank alone may skip, it counts as a step.
        Between syncs nothing waits for the device.
        """
        if loss is not None:
            self._signal.add(loss)
        elif self._needs_loss:
            raise ValueError(
                f"{self._caller}.step: the controller (enable_auto_lr) judges replicas by their loss, and "
                "got loss=None; call step(loss)"
            )
        # Without a spread or a horizon this is the plain schedule, which steps whenever it is told to.
        if not self._optimizer_stepped and (self._diverges or self._horizon is not None):
            self._notice_no_step()
            if not self._sharing.own_gradients:
                return None
        if self._steps == self._total_steps:
            raise ValueError(
                f"{self._caller}.step: step {self._steps + 1} is beyond total_steps={self._total_steps}; "
                "raise total_steps or stop training"
            )
        self._calls_without_step = 0 if self._optimizer_stepped else self._calls_without_step
        self._optimizer_stepped = False
        self._steps += 1
        self._since_sync += 1
        try:
            # The sync comes before the schedule moves on: its values are those of the step just taken.
            record = self._sync() if self._is_due() else None
        finally:  # a probe that raised is the user's to handle; the schedule is not to fall behind
            if self.moved and not self._covers_itself:
                self._advance_covered_schedule()
            else:
                self._advance_schedule()
        ends = self._horizon is not None and self._steps == self._total_steps
        if ends and (trouble := self._horizon.check_end()):  # type: ignore[union-attr]
            self._announcer.say(logging.ERROR, trouble)
        return record

    def _is_due(self) -> bool:
        last = self._steps == self._total_steps
        if self._horizon is None:
            return self._diverges and (last or self._steps % self._sync_every == 0)
        self._horizon.after_step()
        return self._window_is_over() or (self._diverges and last)

    def _window_is_over(self) -> bool:
        end = None if self._horizon is None else self._horizon.window_end
        return end is not None and self._steps >= end

    def covered(self, schedule_values: list[float | Tensor]) -> list[float | Tensor]:
        """The base values over the schedule's own, for a schedule that covers itself."""
        bases = [axis.covered(v) for axis, v in zip(self._learning_rates, schedule_values, strict=False)]
        if len(bases) < len(schedule_values):  # a group added later is not explored
            bases += schedule_values[len(bases) :]
        return bases

    def converge(self) -> None:
        """Average the replicas now (Eq. 3). A collective: every rank calls it at the same step.

        For an evaluation or a checkpoint within an interval. The interval goes on: losses, multipliers
        and the time of the next sync stay as they are.
        """
        with self._fan_out.at_base():
            _, events = self._meet.average(self._signal)
        self._since_sync = 0
        for event in events:
            self._announcer.say(logging.WARNING, event)

    @contextmanager
    def at_base(self) -> Iterator[None]:
        """Within, the base values stand everywhere: for an evaluation or a checkpoint within an interval.

        The weights stay this replica's own; :meth:`converge` makes them the mean.
        """
        with self._fan_out.at_base():
            yield

    def end_at(self, step: int) -> None:
        """The run now has an end, or another one."""
        self._total_steps = step

    def end_search(self) -> None:
        """No window is judged any more; replicas that diverge come together now, and stay together."""
        if self._horizon is not None:
            self._horizon.stop()
        if self._diverges:
            self.converge()
        self._assign()

    def detach(self) -> None:
        """Remove the fan-out; what remains are the base values."""
        for handle in self._handles:
            handle.remove()
        apart = self._sharing.own_gradients or self._fan_out.explores
        if self._since_sync and apart and self._replicas.size > 1:
            self._announcer.say_once(
                logging.WARNING,
                f"detached {self._since_sync} steps after the last sync: the replicas' weights differ; call "
                "converge() first",
            )
        self._fan_out.close()

    def __enter__(self) -> Ensemble:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.detach()
        except Exception as error:
            if kind is None:
                raise
            self._announcer.say(logging.ERROR, f"on the way out: {error}")  # and not instead of its cause

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and strings. Save it beside the weights, at a sync or after :meth:`converge`:
        within an interval the replicas' weights differ, and one rank's are not the run."""
        return {
            "steps": self._steps,
            "round": self._round,
            "seed": self._fan_out.seed,
            "explored": [axis.state_dict() for axis in self._fan_out.axes],
            **self._steering.state_dict(),
            "probe": None if self._held_out is None else self._held_out.probe.state_dict(),
            "horizon": None if self._horizon is None else self._horizon.state_dict(),
            "loss": {
                "rank": self._replicas.rank,
                "sum": self._signal.state(),
                "count": self._signal.count,
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off. The losses of an unfinished interval are one rank's own:
        they count if every rank resumes from its own state, and for none if all resume from one rank's."""
        axes = self._fan_out.axes
        if len(state["explored"]) != len(axes):
            raise ValueError(
                f"{self._caller}.load_state_dict: the state has {len(state['explored'])} explored "
                f"hyperparameters, this run {len(axes)}; use the parameter groups it was saved with"
            )
        names = [axis.name for axis in axes]
        saved_names = [saved.get("name", name) for saved, name in zip(state["explored"], names, strict=True)]
        if saved_names != names:
            raise ValueError(
                f"{self._caller}.load_state_dict: the state must be of the same hyperparameters in the same "
                f"order, got {', '.join(saved_names)} for {', '.join(names)}; explore what it was saved with"
            )
        self._steps = state["steps"]
        self._round = state["round"]
        self._fan_out.seed = state["seed"]
        self._fan_out.stand_down()
        for axis, saved in zip(axes, state["explored"], strict=True):
            axis.load_state_dict(saved)
        self._look_who_moved()
        self._steering.load_state_dict(state)
        if self._held_out is not None and state.get("probe") is not None:
            self._held_out.probe.load_state_dict(state["probe"])
        loss = state["loss"]
        saved_here = len(loss["sum"]) if isinstance(loss["sum"], list) else 1
        if loss["rank"] == self._replicas.rank and saved_here == self._replicas.here:
            self._signal.reset((loss["sum"], loss["count"]))
        else:
            self._signal.reset()
        if self._horizon is not None and state.get("horizon") is not None:
            self._horizon.load_state_dict(state["horizon"])
        elif self._horizon is not None:  # saved without one: it begins here
            self._horizon.start(self._steps)
        self._converge.forget()
        self._assign()

    def resume_at(self, step: int) -> None:
        """Go on from a checkpoint that hdet did not write, at the start of the round that holds ``step``."""
        self._steps = step
        self._round = step // self._sync_every
        if self._horizon is not None:
            self._horizon.start(step)
        self._signal.reset()
        self._converge.forget()
        self._assign()

    # ------------------------------------------------------------------ fan-out

    @property
    def _learning_rates(self) -> list[GroupLearningRate]:
        return self._fan_out.learning_rates

    def _look_who_moved(self) -> None:
        self.moved = any(axis.moved for axis in self._learning_rates)

    def _attach(self) -> None:
        self._optimizer._hdet_ensemble = weakref.ref(self)  # type: ignore[attr-defined]
        self._handles = [
            self._optimizer.register_step_pre_hook(self._enter_step),
            self._optimizer.register_step_post_hook(self._step_is_over),
            self._optimizer.register_state_dict_pre_hook(lambda _: self._leave_step()),
            self._optimizer.register_load_state_dict_pre_hook(lambda *_: self._leave_step()),
        ]

    def _enter_step(self, *_: object) -> None:
        """Eq. 2: this replica steps with values of its own."""
        if self._stepping:  # an optimizer step that raised never reached its post hook
            self._leave_step()
        if self._diverges and not self._converge.begun:
            self._converge.begin()  # the interval's displacement is counted from here
        if self._horizon is not None:
            self._horizon.before_step()
        self._stepping = True
        self._fan_out.enter_step()

    def _step_is_over(self, *_: object) -> None:
        self._leave_step()
        self._optimizer_stepped = True

    def _leave_step(self) -> None:
        self._fan_out.leave_step()
        self._stepping = False

    def _assign(self) -> None:
        """Eq. 9: who explores what in this round. Where nothing is learnt any more, nobody explores."""
        over = self._horizon is not None and self._horizon.window_end is None
        self._fan_out.assign(self._round, explore=not over and self._steps != self._total_steps)

    def _advance_covered_schedule(self) -> None:
        for axis in self._learning_rates:
            axis.uncover()
        self._advance_schedule()
        for axis in self._learning_rates:
            axis.cover()

    # ------------------------------------------------------------------ converge, control, reassign

    def _sync(self) -> SyncRecord:
        began = time.perf_counter()
        judged = self._horizon if self._window_is_over() else None
        met = self._meet(self._steps, self._round, self._signal, judged)
        self._since_sync = 0
        predicted = tuple(math.nan for _ in met.losses)
        if self._collinear:
            predicted = predicted_distances(self._fan_out.multipliers, met.divergence.displacements)
        doubts = self._find_doubts(met, predicted)
        self._fan_out.stand_down()
        levels = self._fan_out.levels
        if judged is not None:
            steered = by_horizon(
                judged, self._learning_rates, levels, self._steps, self._total_steps, met.readings
            )
            if judged.went_back:
                self._converge.forget()
        else:
            # Nothing would be trained any more at the value that a regression moves to at the last step.
            ended = self._regresses and self._steps == self._total_steps
            acts = self._steps >= self._control_after and not ended
            steered = self._steering(levels, met.held_out or self._sharing.by_arm(met.losses), acts=acts)
        self._look_who_moved()
        for kind, doubt in doubts.items():
            self._announcer.say_once(logging.WARNING, doubt, kind)
        events = [*met.odd, *steered.events]
        record = SyncRecord(
            step=self._steps,
            round=self._round,
            losses=met.losses,
            weights=steered.weights,
            hyperparameters=steered.hyperparameters,
            distance_measured=met.distances,
            distance_predicted=predicted,
            milliseconds=(time.perf_counter() - began) * 1e3,
            events=(*dict.fromkeys(events), *doubts.values()),
            horizon=steered.horizon,
            held_out=met.held_out,
            held_out_mean=met.held_out_mean,
        )
        self._round += 1
        self._assign()
        self._signal.reset()
        self._announcer.publish(record, events)
        return record

    def _find_doubts(self, met: Met, predicted: Sequence[float]) -> dict[str, str]:
        if not self._diverges:
            return {}
        rounding = met.divergence.rounding
        doubts = find_doubts(met.losses, met.distances, predicted, rounding)
        if self._sharing.own_gradients and max(met.distances) <= rounding:
            doubts["no divergence"] = (
                "the replicas are at the same weights although each arm has gradients of its own: something "
                "shares them, such as DistributedDataParallel over all ranks, or all have the same batches"
            )
        for axis in self._fan_out.axes:
            if axis.overwritten:
                doubts[f"overwritten {axis.name}"] = (
                    f"{axis.name} is written by somebody else as well, such as a schedule that cycles the "
                    "momentum: what the controller finds does not last; turn that off, or do not explore it"
                )
        return doubts

    def _notice_no_step(self) -> None:
        self._calls_without_step += 1
        # With gradients of its own, a rank whose GradScaler skips a step is alone in that: to wait for the
        # optimizer would be to fall behind the others.
        taken = (
            "it counts all the same, so that ranks stay together; when accumulating, call it once for each "
            "optimizer step"
            if self._sharing.own_gradients
            else "taken for gradient accumulation or a skipped step, the schedule waits"
        )
        self._announcer.say_once(
            logging.WARNING,
            f"step() was called although the optimizer has not stepped since the last call: {taken}",
        )
        if self._calls_without_step == _TOO_MANY_CALLS:
            self._announcer.say_once(
                logging.WARNING,
                f"{_TOO_MANY_CALLS} calls of step() without one of optimizer.step(): is this the optimizer "
                "that trains? Its step hooks have not been called",
            )


def check_sync_every(caller: str, sync_every: int) -> None:
    """T is a whole number of steps."""
    if not isinstance(sync_every, int) or sync_every < 1:
        raise ValueError(
            f"{caller}: sync_every (model_sync_interval, T) must be an integer of at least 1, "
            f"got {sync_every!r}"
        )


def take_over(optimizer: Optimizer) -> None:
    """Two ensembles on one optimizer would multiply each other's spread: the newest one counts."""
    previous: weakref.ref[Ensemble] | None = getattr(optimizer, "_hdet_ensemble", None)
    before = previous() if previous else None
    if before is not None:
        before.detach()


def _stay() -> None:
    """The schedule of a learning rate that nobody schedules."""
