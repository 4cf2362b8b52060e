"""The engine: fan-out, converge, control, reassign (Algorithm 1), for one replica or a thousand.

It knows replicas, hyperparameters, signals and controllers only as such. ``OneCycleAutoLR`` is a façade
over it; there is no second copy of the cycle.
"""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, Protocol, SupportsFloat

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from hdet import history as history_file
from hdet.controllers import Controller, ControlState
from hdet.converge import Converge
from hdet.divergence import Measured, find_doubts, predicted_distances
from hdet.history import SyncRecord
from hdet.horizon import Horizon
from hdet.hyperparameters import LearningRate, separate_learning_rates
from hdet.layout import describe, parameter_device
from hdet.replicas import ProcessGroup, Replicas, find_replicas, refuse_sharded
from hdet.signals import TrainingLoss, mean_losses
from hdet.spread import assignment
from hdet.steering import by_horizon, by_losses, take_factors

__all__ = ["Ensemble", "Schedule"]

logger = logging.getLogger("hdet")

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
        explore: what the replicas diverge in.
        schedule: the base schedule; :meth:`step` drives it. None leaves ``group["lr"]`` to the user, who
            may then run any scheduler, as long as no controller is given.
        sync_every: T, in optimizer steps.
        total_steps: S. The replicas are converged at the last step even where T does not divide it.
        controller: moves the base values at each sync; None only fans out and converges.
        horizon: judges windows by a probe instead, whose lengths then replace ``sync_every``.
        control_after: S_w, the first step at which the controller acts.
        model: makes its buffers known, which are then averaged too.
        process_group: the replicas; the default group if None, and this process alone without one.
        seed: of the reassignments. No global random state is read or written.
        history: a JSONL file to which rank 0 appends every :class:`SyncRecord`.
        replicas: given instead of ``process_group`` by those who bring their own.
        caller: the name that errors and log lines begin with.
        first_step: where the count of steps begins, for a run that goes on.

    Example::

        ensemble = hdet.Ensemble(optimizer, schedule=cosine, sync_every=500,
                                 controller=hdet.SoftmaxController())
        for batch in loader:
            loss = model(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            ensemble.step(loss)
    """

    def __init__(
        self,
        optimizer: Optimizer,
        explore: Sequence[LearningRate] = (LearningRate(),),
        *,
        schedule: Schedule | None = None,
        sync_every: int = 1000,
        total_steps: int | None = None,
        controller: Controller | None = None,
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
        take_over(optimizer)
        separate_learning_rates(optimizer)
        self._caller = caller
        self._optimizer = optimizer
        self._replicas = replicas or find_replicas(
            caller, device=parameter_device(optimizer), process_group=process_group
        )
        if self._replicas.size > 1:
            refuse_sharded(caller, optimizer, model, process_group)
        writes = self._replicas.rank == 0
        obstacle = history_file.prepare(history) if writes and history is not None else ""
        self._replicas.agree(
            caller,
            {
                "sync_every": repr(sync_every),
                "total_steps": repr(total_steps),
                "control_after": repr(control_after),
                "controller": repr(controller),
                **(horizon.facts() if horizon is not None else {}),
                "explore": repr(list(explore)),
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
        self._controller = controller
        self._control_after = control_after
        self._seed = seed
        self._history = history

        self._explored = [axis for item in explore for axis in item.bind(optimizer)]
        names = [axis.name for axis in self._explored]
        if len(set(names)) < len(names):
            raise ValueError(f"{caller}: explore must name each hyperparameter once, got {list(explore)}")
        # The factor on the schedule that a controller moves; 1 is the schedule as it stands.
        self._states = [ControlState(1.0) for _ in self._explored]
        self._diverges = any(axis.spread > 0 for axis in self._explored)
        #: Whether a controller has moved a base value off its schedule.
        self.moved = False
        self._signal = TrainingLoss()
        self._optimizer_stepped = False
        self._calls_without_step = 0
        self._fanned_out = False
        self._said: set[str] = set()
        self._steps = self._round = 0
        self._converge = Converge(self._replicas, optimizer, model)
        self._horizon = horizon
        self._undiverged = Measured(0.0, tuple(0.0 for _ in self._explored), 0.0)
        if horizon is not None:
            horizon.bind(caller, optimizer, self._replicas, diverges=self._diverges)
            horizon.start_at([axis.curve for axis in self._explored])
            take_factors(horizon, self._explored)
            self.moved = any(axis.moved for axis in self._explored)
        self.resume_at(first_step)
        self._attach()
        if self._diverges:
            self._converge.plan()  # what cannot be averaged is refused now, not at the first sync
        if model is None and self._replicas.size > 1 and self._diverges:
            self._say_once(
                logging.WARNING,
                "model= was not given: parameters are averaged, buffers (BatchNorm statistics) are not",
            )

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
    def replica_lrs(self) -> list[float]:
        """The learning rate that this replica's next optimizer step uses, for each group."""
        self._restore()
        return [axis.base * rho for axis, rho in zip(self._explored, self._own, strict=True)]

    def step(self, loss: Tensor | SupportsFloat | None = None) -> SyncRecord | None:
        """Call once after ``optimizer.step()``; returns the record of a sync when there was one.

        A call that follows no optimizer step (gradient accumulation, a step that GradScaler skipped) only
        takes the loss. Between syncs nothing waits for the device.
        """
        if loss is not None:
            self._signal.add(loss)
        elif self._controller is not None:
            raise ValueError(
                f"{self._caller}.step: the controller (enable_auto_lr) judges replicas by their loss, and "
                "got loss=None; call step(loss)"
            )
        # Without a spread or a horizon this is the plain schedule, which steps whenever it is told to.
        if not self._optimizer_stepped and (self._diverges or self._horizon is not None):
            self._wait_for_optimizer()
            return None
        if self._steps == self._total_steps:
            raise ValueError(
                f"{self._caller}.step: step {self._steps + 1} is beyond total_steps={self._total_steps}; "
                "raise total_steps or stop training"
            )
        self._optimizer_stepped = False
        self._calls_without_step = 0
        self._steps += 1
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
            self._log(logging.ERROR, trouble)
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
        bases = [axis.covered(v) for axis, v in zip(self._explored, schedule_values, strict=False)]
        if len(bases) < len(schedule_values):  # a group added later is not explored
            bases += schedule_values[len(bases) :]
        return bases

    def converge(self) -> None:
        """Average the replicas now (Eq. 3). A collective: every rank calls it at the same step.

        For an evaluation or a checkpoint within an interval. The interval goes on: losses, multipliers
        and the time of the next sync stay as they are.
        """
        _, events = self._converge()
        for event in events:
            self._log(logging.WARNING, event)

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
        """Remove the fan-out from the optimizer; what remains is the base learning rate."""
        self._restore()
        for handle in self._handles:
            handle.remove()

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers and strings. Save it beside the weights, at a sync or after :meth:`converge`:
        within an interval the replicas' weights differ, and one rank's are not the run."""
        return {
            "steps": self._steps,
            "round": self._round,
            "seed": self._seed,
            "explored": [axis.state_dict() for axis in self._explored],
            "states": [(state.value, state.velocity) for state in self._states],
            "horizon": None if self._horizon is None else self._horizon.state_dict(),
            "loss": {
                "rank": self._replicas.rank,
                "sum": self._signal.total(),
                "count": self._signal.count,
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off. The losses of an unfinished interval are one rank's own:
        they count if every rank resumes from its own state, and for none if all resume from one rank's."""
        if len(state["explored"]) != len(self._explored):
            raise ValueError(
                f"{self._caller}.load_state_dict: the state has {len(state['explored'])} explored "
                f"hyperparameters, this run {len(self._explored)}; use the parameter groups it was saved with"
            )
        self._steps = state["steps"]
        self._round = state["round"]
        self._seed = state["seed"]
        for axis, saved in zip(self._explored, state["explored"], strict=True):
            axis.load_state_dict(saved)
        self.moved = any(axis.moved for axis in self._explored)
        self._states = [ControlState(*saved) for saved in state["states"]]
        loss = state["loss"]
        if loss["rank"] == self._replicas.rank:
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

    def _attach(self) -> None:
        self._optimizer._hdet_ensemble = weakref.ref(self)  # type: ignore[attr-defined]
        self._handles = [
            self._optimizer.register_step_pre_hook(self._fan_out),
            self._optimizer.register_step_post_hook(self._fan_in),
            self._optimizer.register_state_dict_pre_hook(lambda _: self._restore()),
            self._optimizer.register_load_state_dict_pre_hook(lambda *_: self._restore()),
        ]

    def _fan_out(self, *_: object) -> None:
        """Eq. 2: this replica steps with η·ρ_r."""
        if self._fanned_out:  # an optimizer step that raised never reached its post hook
            self._restore()
        if self._diverges and not self._converge.begun:
            self._converge.begin()  # the interval's displacement is counted from here
        if self._horizon is not None:
            self._horizon.before_step()
        self._fanned_out = True
        for axis, rho in self._off_base:
            axis.fan_out(rho)

    def _fan_in(self, *_: object) -> None:
        self._restore()
        self._optimizer_stepped = True

    def _restore(self) -> None:
        for axis, _ in self._off_base:
            axis.restore()
        self._fanned_out = False

    def _assign(self) -> None:
        """Eq. 9: the multipliers of all replicas in this round, and this replica's own."""
        # Where no window is judged any more, nothing is learnt from replicas that diverge.
        over = self._horizon is not None and self._horizon.window_end is None
        self._multipliers = [
            assignment(
                self._replicas.size,
                0.0 if over else axis.spread,
                seed=self._seed,
                round=self._round,
                name=axis.name,
            )
            for axis in self._explored
        ]
        self._own = [row[self._replicas.rank] for row in self._multipliers]
        self._off_base = [
            (axis, rho) for axis, rho in zip(self._explored, self._own, strict=True) if rho != 1.0
        ]

    def _advance_covered_schedule(self) -> None:
        for axis in self._explored:
            axis.uncover()
        self._advance_schedule()
        for axis in self._explored:
            axis.cover()

    # ------------------------------------------------------------------ converge, control, reassign

    def _sync(self) -> SyncRecord:
        began = time.perf_counter()
        judged = self._horizon if self._window_is_over() else None
        # The probe comes before the mean: a replica that diverged is judged at its own points.
        probed = self._together(judged.measure) if judged is not None else []
        divergence, odd = self._converge() if self._diverges else (self._undiverged, ())
        own = [float(self._steps), float(self._round), divergence.distance, *self._signal.row()]
        rows = self._replicas.gather([*own, *(judged.displacements() if judged is not None else ()), *probed])
        steps, rounds, measured = (tuple(column) for column in zip(*(row[:3] for row in rows), strict=True))
        losses = mean_losses([row[3:7] for row in rows])
        if len({*zip(steps, rounds, strict=True)}) > 1:
            raise RuntimeError(
                f"{self._caller}.step: the ranks are at different steps {[int(s) for s in steps]} of rounds "
                f"{[int(r) for r in rounds]}; every rank must take the same optimizer steps"
            )
        predicted = predicted_distances(self._multipliers, divergence.displacements)
        if judged is not None:
            readings = [row[7:] for row in rows]
            steered = by_horizon(
                judged, self._explored, self._multipliers, self._steps, self._total_steps, readings
            )
            if judged.went_back:
                self._converge.forget()
        else:
            controller = self._controller if self._steps >= self._control_after else None
            steered = by_losses(controller, self._explored, self._states, self._multipliers, losses)
        self.moved = any(axis.moved for axis in self._explored)
        doubts = find_doubts(losses, measured, predicted, divergence.rounding) if self._diverges else {}
        for kind, doubt in doubts.items():
            self._say_once(logging.WARNING, doubt, kind)
        events = [*odd, *steered.events]
        record = SyncRecord(
            step=self._steps,
            round=self._round,
            losses=losses,
            weights=steered.weights,
            hyperparameters=steered.hyperparameters,
            distance_measured=measured,
            distance_predicted=predicted,
            milliseconds=(time.perf_counter() - began) * 1e3,
            events=(*dict.fromkeys(events), *doubts.values()),
            horizon=steered.horizon,
        )
        self._round += 1
        self._assign()
        self._signal.reset()
        self._publish(record, events)
        return record

    def _together(self, measure: Callable[[], list[float]]) -> list[float]:
        """What may fail on one rank fails on all of them, so that none is left waiting."""
        failure: Exception | None = None
        measured: list[float] = []
        try:
            measured = measure()
        except Exception as error:
            failure = error
        failed = [row[0] for row in self._replicas.gather([float(failure is not None)])]
        if failure is not None:
            raise failure
        if any(failed):
            raise RuntimeError(
                f"{self._caller}.step: step {self._steps}: the probe raised on rank {failed.index(1.0)}; its "
                "own error says why"
            )
        return measured

    def _publish(self, record: SyncRecord, events: Sequence[str]) -> None:
        """Rank 0 writes; a full disk is no reason to stop training, or to fall behind the other ranks."""
        if self._replicas.rank != 0:
            return
        for event in dict.fromkeys(events):
            self._log(logging.WARNING, f"step {record.step}: {event}")
        if self._history is not None:
            try:
                history_file.append(self._history, record)
            except OSError as error:
                self._say_once(logging.WARNING, f"the history could not be written: {error}", "history")

    def _wait_for_optimizer(self) -> None:
        self._calls_without_step += 1
        self._say_once(
            logging.WARNING,
            "step() was called although the optimizer has not stepped since the last call: taken for "
            "gradient accumulation or a skipped step, the schedule waits",
        )
        if self._calls_without_step == _TOO_MANY_CALLS:
            self._say_once(
                logging.WARNING,
                f"{_TOO_MANY_CALLS} calls of step() without one of optimizer.step(): is this the optimizer "
                "that trains? Its step hooks have not been called",
            )

    def _say_once(self, level: int, message: str, kind: str = "") -> None:
        if (kind or message) not in self._said:
            self._said.add(kind or message)
            self._log(level, message)

    def _log(self, level: int, message: str) -> None:
        if self._replicas.rank == 0:
            logger.log(level, "%s: %s", self._caller, message)


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
