"""The cycle of Algorithm 1: fan out, converge, decide, deal again; for one replica or a thousand.

The cycle knows replicas, hyperparameters and policies only as such. ``Ensemble``, ``AutoLR`` and
``OneCycleAutoLR`` choose the policies; there is no second loop.
"""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, SupportsFloat

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hdet.history import History, SyncRecord
from hdet.hyperparameters import Axis, Rows, ScalarAxis, refuse_shared_locations, separate_learning_rates
from hdet.loop.announce import Announcer, Event, events_of, unfinished
from hdet.loop.checks import Agreement, agree_on_run, bind_together
from hdet.loop.converge import Converge
from hdet.loop.fan_out import FanOut, Gradients, GradientSharing
from hdet.loop.health import blind_signals
from hdet.loop.hooks import StepHooks, take_over
from hdet.loop.levels import Design, choose_design
from hdet.loop.meeting import Gathered, Meeting
from hdet.loop.optimizers import check_trains, every_parameter, names_of, parts_of
from hdet.loop.policy import Context, Decided, Policy, Seen
from hdet.loop.schedule import CoveredSchedule, Schedule
from hdet.loop.state import Owner, check_fits
from hdet.loop.training_loss import TrainingLoss
from hdet.replicas import Replicas, is_flat, refuse_divergence, refuse_flat_gradients

__all__ = ["Cycle", "Door"]

#: So many records are kept in memory.
_RECORDS = 1000


class Cycle:
    """Replicas that diverge in what their policies explore, and are averaged back at every sync.

    Args:
        optimizer: any torch optimizer; its step hooks carry the fan-out.
        policies: what is explored, when replicas meet, and what moves.
        replicas: who trains.
        schedule: the base schedule; :meth:`step` drives it. None leaves ``group["lr"]`` to the user.
        total_steps: S. The replicas are converged at the last step, whenever the next sync would be.
        gradients: who shares them: ``"all"`` (the paper), ``"none"``, or the ranks of each arm.
        design: how values are dealt to replicas; None takes whichever serves the policies best.
        model: makes its buffers known, which are then averaged too.
        seed: of the deals. No global random state is read or written.
        history: a JSONL file to which rank 0 appends every :class:`~hdet.history.SyncRecord`; or a
            callable that is told each line (:class:`hdet.integrations.trackers.Tracker`); or a list of both.
        on_event: called with every :class:`~hdet.loop.announce.Event`, on every rank.
        caller: the name that errors and log lines begin with.
        first_step: where the count of steps begins, for a run that goes on.
        reassign_from: the first round in which replicas swap values.
        opening: what the line at the start says beside replicas and steps; None for what policies say.
    """

    #: Optimizer steps counted so far; what a fused optimizer has skipped is taken back at a sync.
    steps: int
    _round: int
    _sync_at: float
    #: Steps that do not lead here are quiet: they take the loss and the schedule's next value, and count.
    _quiet_before: float

    def __init__(
        self,
        optimizer: Optimizer,
        policies: Sequence[Policy],
        replicas: Replicas,
        *,
        schedule: Schedule | None = None,
        total_steps: int | None = None,
        gradients: Gradients = "all",
        design: Design | None = None,
        model: nn.Module | None = None,
        seed: int = 0,
        history: History | None = None,
        on_event: Callable[[Event], object] | None = None,
        caller: str = "Cycle",
        first_step: int = 0,
        reassign_from: float = 0,
        opening: str | None = None,
    ) -> None:
        if model is not None and replicas.local_count == 1:  # rows of one matrix are not the model's own
            check_trains(caller, optimizer, model)
        take_over(optimizer)
        separate_learning_rates(optimizer)
        self._caller = caller
        #: Torch's own, beneath whatever wrapped it.
        self.optimizer = optimizer
        self._model = model
        self._device = every_parameter(optimizer)[0].device
        self._policies = list(policies)
        self.replicas = replicas
        #: S, or None while nobody knows.
        self.total_steps = total_steps
        self._records: deque[SyncRecord] = deque(maxlen=_RECORDS)
        writes = replicas.world_rank == 0
        self._announcer = Announcer(caller, writes=writes, history=history, on_event=on_event)
        self.note = self._announcer.note
        settings = {"total_steps": total_steps, "gradients": gradients, "design": design, "seed": seed}
        obstacle = self._announcer.obstacle
        facts = agree_on_run(caller, replicas, optimizer, model, policies, obstacle, settings)
        sharing = self._sharing = GradientSharing(caller, gradients, replicas, model)
        self._own_gradients = sharing.own_gradients
        if sharing.shares and all(policy.stood is None for policy in policies):
            raise ValueError(
                f"{caller}: gradients must be 'all', 'none' or an hdet.Arms, got 'switch', which needs to "
                "know when the loss falls no more, as hdet.AutoTune does"
            )
        bound: list[list[Axis]] = []
        try:
            bind_together(caller, replicas, optimizer, policies, bound)
            warnings = self._build(bound, schedule, design, model, seed, reassign_from)
        except BaseException:
            for axis in (axis for own in bound for axis in own):
                axis.close()
            raise
        self._training_loss = TrainingLoss(replicas.local_count)
        self._needs_loss = any(policy.needs_loss for policy in policies)
        #: Those that look at the weights between syncs.
        self._following = [policy for policy in policies if policy.follows_weights]
        #: Whether replicas diverge or somebody looks at the weights; else it is the plain schedule.
        self._active = self._diverges or bool(self._following)
        self._hooks = StepHooks(
            caller,
            self._announcer,
            optimizer,
            self._fan_out,
            self._before_step if self._active else None,
            weakref.WeakMethod(self.detach),
            reads_flags=self._active and not self._own_gradients,
        )
        #: How many steps ago those were that this call of ``step`` has taken back.
        self.taken_back: list[int] = []
        #: Steps since the replicas were one model.
        self._since_sync = 0
        #: By how much what was moved at the last sync should change the loss of the averaged model.
        self._explained = 0.0
        self.resume_at(first_step)
        self._announcer.introduce(total_steps, replicas.size, optimizer, facts, self._fan_out.axes)
        for warning in warnings:
            self._announcer.warn_once(warning)
        #: For the user to read, whatever the log shows.
        self.say = self._announcer.say
        described = "; ".join(words for policy in self._policies if (words := policy.describe()))
        self.say("; ".join(filter(None, (self._who_trains(), self._explores(), opening or described))))
        if opening is not None:
            self._announcer.log(logging.INFO, described)
        #: Whether the last step is told; who says more of it does so itself.
        self.says_end = True
        if self._active:
            self.schedule.note()
        #: As the run was set up: they may have become wider or narrower since.
        self._spreads = [axis.spread for axis in self._fan_out.axes]

    def _build(
        self,
        bound: Sequence[Sequence[Axis]],
        schedule: Schedule | None,
        design: Design | None,
        model: nn.Module | None,
        seed: int,
        reassign_from: float,
    ) -> list[str]:
        """Put the parts of a run together; what a user should know before training begins. Every rank calls
        it."""
        caller, optimizer, replicas, sharing = self._caller, self.optimizer, self.replicas, self._sharing
        axes = [axis for own in bound for axis in own]
        for axis in axes:
            if replicas.local_count > 1 and not axis.acts_in_step:
                assert isinstance(replicas, Rows), "only rows of one matrix are several in one process"
                axis.stack(caller, replicas)
        jointly = any(policy.estimates_jointly for policy in self._policies)
        spread_out = [axis.name for axis in axes if axis.spread > 0]
        chosen = choose_design(caller, design, spread_out, sharing.arms, jointly=jointly)
        refuse_shared_locations(caller, axes)
        fan_out = self._fan_out = FanOut(
            axes,
            arms=sharing.arms,
            arm=sharing.arm,
            local_count=replicas.local_count,
            ranks_per_arm=sharing.ranks_per_arm,
            design=chosen,
            seed=seed,
            # Round 0 of the paper deals everything alike, which a joint estimate could not separate.
            first_round=1 if jointly else 0,
            reassign_from=reassign_from,
        )
        own = self._own_gradients
        #: Whether the replicas' weights differ between two syncs.
        self._diverges = own or bool(spread_out)
        if replicas.ranks_per_replica > 1 and any(axis.name == "gradient_clip" for axis in axes):
            refuse_flat_gradients(caller, "gradient_clip", every_parameter(optimizer))
        if self._diverges and design != "in turn":  # what one model tries in turn needs no other
            refuse_divergence(caller, parts_of(optimizer), replicas)
        with_state = own or any(axis.bends_state and axis.spread > 0 for axis in axes)
        self._converge = Converge(replicas, optimizer, model, with_state=with_state)
        context = Context(
            caller,
            optimizer,
            replicas,
            self.total_steps,
            self._diverges,
            sharing.by_arm,
            fan_out.silenced,
            own,
            lambda: sharing.shares,
        )
        self._agreement = Agreement(context, fan_out, self._policies)
        # Replicas that differ in their learning rates alone lie on one line.
        collinear = not own and axes == fan_out.learning_rates
        self._meeting = Meeting(context, fan_out, self._agreement, self._converge, collinear=collinear)
        for policy, of_policy in zip(self._policies, bound, strict=True):
            policy.bind(of_policy, context)
        self.schedule = CoveredSchedule(caller, schedule, optimizer, fan_out.learning_rates)
        if self._diverges:
            self._converge.plan()  # what cannot be averaged raises now, not at the first sync
        warnings = [self._agreement.warning(), *(axis.warning for axis in axes)]
        warnings += [fan_out.warning()] if jointly else []
        for policy in self._policies:
            warnings += policy.warnings()
            if replicas.size > 1:
                warnings += blind_signals(policy.axes, own_gradients=own, by_training_loss=policy.needs_loss)
        if replicas.size > 1 and replicas.local_count == 1 and model is None and self._diverges:
            warnings.append(
                "model= was not given: parameters are averaged, buffers (BatchNorm statistics) are not"
                + ", and weights that FSDP keeps gathered after a forward pass alone are not given up"
                * (replicas.ranks_per_replica > 1)
            )
        return [warning for warning in warnings if warning]

    def _who_trains(self) -> str:
        """And how long: a replica that was not found is noticed at once."""
        replicas = self.replicas
        several = "s" if replicas.size > 1 else ""
        where = " in this process" if replicas.local_count > 1 else ""
        if replicas.ranks_per_replica > 1:
            where = f" on {replicas.ranks_per_replica} ranks each"
        elif replicas.size > 1 and replicas.local_count == 1:
            where = ", one a process"
        steps = "an open number of" if self.total_steps is None else f"{self.total_steps}"
        if self._sharing.shares:
            where += "; one gradient for all until a window does not improve, then each its own"
        return f"{replicas.size} replica{several}{where}; {steps} steps"

    def _explores(self) -> str:
        found = [
            f"{axis.name} from {axis.base:g}" for axis in self._fan_out.axes if isinstance(axis, ScalarAxis)
        ]
        rates = self._fan_out.learning_rates if self.replicas.size > 1 else ()
        spreads = sorted({axis.spread for axis in rates if axis.spread > 0})
        found += [f"learning rates within {100 * spread:.0f} % of the base" for spread in spreads]
        return f"explores {', '.join(found)}" if found else ""

    # ------------------------------------------------------------------ what a user sees

    @property
    def sync_every(self) -> int | None:
        """T, the steps from one sync to the next; None where windows grow with the run."""
        lengths = [policy.sync_every for policy in self._policies if policy.sync_every is not None]
        return min(lengths, default=None)

    @property
    def rounds(self) -> int:
        """How many have ended."""
        return self._round

    @property
    def spread(self) -> float:
        """α: how far from the base learning rates are, of the first group; 0 where they are not explored."""
        return next((axis.spread for axis in self._fan_out.learning_rates), 0.0)

    @property
    def history(self) -> list[SyncRecord]:
        """The records of the last syncs, a thousand at most; a file keeps all (``history=``)."""
        return list(self._records)

    @property
    def values(self) -> dict[str, float]:
        """The base value of everything that is explored, by name."""
        return {axis.name: axis.base for axis in self._fan_out.axes}

    @property
    def replica_lrs(self) -> list[float]:
        """The learning rate of this replica's next optimizer step for each group; of several in one process,
        the first one's."""
        self._hooks.restore()
        own = [row[self._fan_out.arm] for row in self._fan_out.multipliers]
        return [axis.base * rho for axis, rho in zip(self._fan_out.learning_rates, own, strict=True)]

    @property
    def apart(self) -> bool:
        """Whether the replicas' weights differ now, so that one rank's are not the run's."""
        differs = (self._own_gradients and not self._sharing.shares) or self._fan_out.explores
        return self.replicas.size > 1 and self._since_sync > 0 and differs

    @property
    def trains_alone(self) -> bool:
        """Whether every rank trains on gradients of its own."""
        return self._own_gradients and self._sharing.ranks_per_arm == 1 and not self._sharing.shares

    @property
    def switches(self) -> bool:
        """Whether :attr:`trains_alone` changes while the run goes on."""
        return self._sharing.shares_first

    # ------------------------------------------------------------------ one step

    def _before_step(self) -> bool:
        """The optimizer is about to take the first step of a round; whether to call this before the next."""
        self.replicas.before_first_step(self._caller)
        self._warn_if_overwritten(self.steps + 1)
        self._agreement.keep_first_weights()
        if self._diverges and not self._converge.begun:
            self._converge.begin()  # the round's displacement is counted from here
        for policy in self._following:
            policy.before_step()
        return self._diverges and not self._converge.begun

    def step(self, loss: Tensor | SupportsFloat | None = None) -> SyncRecord | None:
        """Call once after ``optimizer.step()``; returns the record of a sync when there was one.

        A call that follows no optimizer step (gradient accumulation, a step that GradScaler skipped) only
        takes the loss; on gradients of their own, where one rank alone may skip, it counts as a step.
        Between syncs nothing waits for the device.
        """
        hooks = self._hooks
        if self.taken_back:
            self.taken_back = []
        if hooks.taken >= hooks.checks_from and self._active:
            hooks.check(strict=bool(self._following))
        if loss is None:
            if self._needs_loss:
                raise ValueError(
                    f"{self._caller}.step: the controller (enable_auto_lr) judges replicas by their loss, "
                    "and got loss=None; call step(loss)"
                )
        elif hooks.taken or not self._training_loss.has_taken(loss):
            self._training_loss.add(loss)
        # Where nothing diverges and nobody looks, this is the plain schedule, which steps when it is told to.
        if not hooks.taken and self._active:
            hooks.notice_no_step(counts=self._own_gradients)
            if not self._own_gradients:
                return None
        if self.steps == self.total_steps:
            self._warn_beyond_end()
            return None
        hooks.count()
        self.steps += 1
        self._since_sync += 1
        for policy in self._following:
            if policy.after_step():
                self._plan_next_sync()
        progress = self._announcer.progress
        progress.steps = self.steps
        if Announcer.last is not progress:
            self._announcer.stepped_last()
        if self.steps < self._quiet_before:
            self.schedule.proceed()
            if self._announcer.events:
                self._announcer.call_listeners()
            return None
        return self._end_step()

    def _end_step(self) -> SyncRecord | None:
        """The rest of a step that ends a round, or is the last one before that, or for which the schedule
        waits."""
        record = None
        ends = self.steps >= self._sync_at or self.steps == self.total_steps
        try:
            # The sync comes before the schedule moves on: its values are those of the step just taken.
            if ends and self._is_due():
                record = self._sync()
        except BaseException:
            for policy in self._policies:
                policy.missed(self.steps)
            self._plan_next_sync()
            raise
        finally:  # a probe that raised is the user's to handle; the schedule is not to fall behind
            self.schedule.advance()
            # Whether somebody else writes there is looked at in a round's first and last step.
            if self._active and (ends or self.steps + 1 >= self._sync_at):
                self.schedule.note()
            self._plan_quiet_steps()
        if ends and self.steps == self.total_steps:
            self._end(record)
        if self._announcer.events:
            self._announcer.call_listeners()
        return record

    def _is_due(self) -> bool:
        """Whether a window has ended, by the steps that were taken: what a fused optimizer skipped is known
        now and taken back, so the window goes on for as many. The schedule, which has run on, waits."""
        self.taken_back = self._hooks.take_skipped(self.replicas)
        if count := len(self.taken_back):
            self.steps -= count
            self._since_sync -= count
            self.schedule.waits += count
            for policy in self._following:
                policy.recounted(self.steps)
        return self.steps >= self._sync_at

    def _warn_if_overwritten(self, step: int) -> None:
        if warning := self.schedule.overwritten():
            self._announcer.warn_once(f"step {step}: {warning}", "overwritten")

    def _end(self, record: SyncRecord | None) -> None:
        for trouble in filter(None, (policy.check_end() for policy in self._policies)):
            self._announcer.log(logging.ERROR, trouble)
        self.note("end", step=self.steps)
        factors = {axis.name: axis.factor for axis in self._fan_out.learning_rates if axis.factor != 1}
        found = ", ".join(
            f"{name} is {value:.4g}"
            + (f", {factors[name]:.3g} times its schedule" if name in factors else "")
            for name, value in self.values.items()
        )
        syncs = f"{self._round} sync{'' if self._round == 1 else 's'}"
        message = f"all {self.steps} steps were counted, with {syncs}; {found or 'nothing was explored'}"
        if self.says_end:
            self.say(message)
        self._announcer.events.append(Event("end", self.steps, message, record))

    def _warn_beyond_end(self) -> None:
        """The run is over, and somebody trains on: to raise would be to lose a run in its last step."""
        self._hooks.forget()
        self._since_sync += self._own_gradients
        lr = float(self.optimizer.param_groups[0]["lr"])
        warning = (
            f"step: the run has ended at step {self.steps} (total_steps), and the optimizer still steps: the "
            f"learning rate stays at {lr:.4g}, and no further step is counted; stop training there, or raise "
            "total_steps"
        )
        if self._own_gradients:
            warning += "; replicas on gradients of their own stay apart: call converge() when you stop"
        self._announcer.warn_once(warning, "beyond the end")

    # ------------------------------------------------------------------ rounds

    def _begin_round(self) -> None:
        """Eq. 9: who explores what. What is not learnt any more, nobody explores."""
        ended = self.steps == self.total_steps
        learning = [policy for policy in self._policies if policy.learns and not ended]
        self._fan_out.assign(self._round, [axis for policy in learning for axis in policy.axes])
        self._hooks.round_begins = self._active
        self._plan_next_sync()

    def _plan_next_sync(self) -> None:
        """The next sync: at the first window that ends, and where replicas diverge at the last step."""
        ends = [policy.window_end for policy in self._policies if policy.window_end is not None]
        if self._diverges and self.total_steps is not None:
            ends.append(self.total_steps)
        self._sync_at = min(ends, default=math.inf)
        self._plan_quiet_steps()

    def _plan_quiet_steps(self) -> None:
        """Until the last step but one of the round, unless the schedule waits."""
        total = self._announcer.progress.total = self.total_steps
        ends = self._sync_at - 1 if total is None else min(self._sync_at - 1, total)
        self._quiet_before = 0 if self.schedule.waits else ends

    def _sync(self) -> SyncRecord:
        if self._device.type == "cuda":  # a sync reads losses, and would wait later: its time is its own
            torch.cuda.synchronize(self._device)
        began = time.perf_counter()
        self._warn_if_overwritten(self.steps)
        judging = [policy for policy in self._policies if policy.judges(self.steps)]
        gathered = self._meeting.sync(
            self.steps, self._round, self._training_loss, judging, self._hooks.in_round
        )
        self._since_sync = self._hooks.in_round = 0
        warnings = self._meeting.warnings(self.steps, gathered, shares=self._sharing.shares)
        self._fan_out.restore()
        decided = self._decide(judging, gathered)
        if decided.went_back:
            if self._diverges:  # the weights are the same everywhere, buffers were each rank's own
                self._converge()
            self._converge.forget()
        self.schedule.notice_moves()
        for kind, warning in warnings.items():
            self._announcer.warn_once(warning, kind)
        events = [*gathered.events, *decided.events]
        parted: tuple[str, ...] = ()
        if self._sharing.shares and self._stood:
            parted = ("the loss falls no more: from here on every replica has a gradient of its own",)
            self._announcer.log(logging.INFO, f"step {self.steps}: {parted[0]}")  # no warning
            self._share(False)
        record = SyncRecord(
            step=self.steps,
            round=self._round,
            losses=gathered.losses,
            weights=decided.weights,
            hyperparameters=decided.hyperparameters,
            distance_measured=gathered.distances,
            distance_predicted=gathered.predicted,
            milliseconds=(time.perf_counter() - began) * 1e3,
            events=(*dict.fromkeys(events), *parted, *warnings.values()),
            horizon=decided.horizon,
            held_out=decided.held_out,
            held_out_mean=decided.held_out_mean,
        )
        self._round += 1
        self._begin_round()
        self._training_loss.reset()
        self._announcer.publish(record, events, self._fan_out.learning_rates)
        self._records.append(record)
        self._announcer.events += events_of(record, decided, gathered.events)
        return record

    @property
    def _stood(self) -> bool:
        """Whether there was a window that did not improve."""
        return any(policy.stood for policy in self._policies)

    def _share(self, shares: bool) -> None:
        """One gradient for everybody, or each rank its own."""
        if self.switches:
            self._sharing.part(not shares)

    def _decide(self, judging: Sequence[Policy], gathered: Gathered) -> Decided:
        """Every policy in turn, from what all ranks have gathered. One that does not judge at this sync only
        records its values; so does one after a policy that has undone the window."""
        rows = dict(zip(judging, gathered.rows, strict=True))
        losses = self._sharing.by_arm(gathered.losses)
        decided: list[Decided] = []
        for policy in self._policies:
            levels = self._fan_out.levels_of(policy.axes)
            if policy in rows and not any(earlier.void for earlier in decided):
                found = rows[policy], gathered.training
                seen = Seen(self.steps, self.total_steps, levels, losses, *found, self._explained)
                with self._fan_out.held(policy.axes):
                    decided.append(policy.decide(seen)())
            else:
                decided.append(policy.observe(levels))
                if policy in rows:
                    policy.missed(self.steps)
        whole = Decided.of_all(decided)
        # A window that is undone is gone through again, from where it was before that move.
        self._explained = whole.explained + (self._explained if whole.went_back else 0.0)
        return whole

    def converge(self) -> None:
        """Average the replicas now (Eq. 3). A collective: every rank calls it at the same step.

        For an evaluation or a checkpoint within a round. The round goes on: losses, multipliers
        and the time of the next sync stay as they are.
        """
        events = self._meeting.converge(self.steps, self._round, self._training_loss)
        self._since_sync = 0
        for event in events:
            self._announcer.log(logging.WARNING, event)

    @contextmanager
    def at_base(self) -> Iterator[None]:
        """Within, everything has its base value: for an evaluation or a checkpoint within a round. The
        weights stay this replica's own; :meth:`converge` makes them the mean."""
        with self._fan_out.at_base():
            yield

    # ------------------------------------------------------------------ the end

    def end_at(self, step: int) -> None:
        """The run now has an end, or another one."""
        self.total_steps = step
        for policy in self._policies:
            policy.end_at(step)
        self._plan_next_sync()

    def end_search(self, *, meet: bool = True) -> None:
        """Nothing moves any more; replicas that diverge come together now, or else at the last step."""
        for policy in self._policies:
            policy.stop()
        if self._diverges and meet:
            self.converge()
        self._begin_round()

    def stop(self) -> None:
        """Training is over, at whichever step it is; where that is not the last one, it is logged."""
        if self.total_steps is not None and self.steps < self.total_steps:
            self._announcer.warn_once(unfinished(self.steps, self.total_steps), "stopped")
        self._sharing.part(False)
        self._announcer.close()

    def detach(self) -> None:
        """Remove the fan-out; what remains are the base values."""
        self._hooks.remove()
        self._sharing.part(False)
        self._announcer.close()
        if self.apart:
            self._announcer.warn_once(
                f"detached {self._since_sync} steps after the last sync: the replicas' weights differ; call "
                "converge() first",
            )
        self._fan_out.close()

    def __enter__(self) -> Cycle:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.detach()
        except Exception as error:
            if kind is None:
                raise
            self._announcer.log(logging.ERROR, f"detach() failed: {error}")  # and not instead of its cause

    # ------------------------------------------------------------------ the state

    def state_dict(self) -> dict[str, Any]:
        """Numbers, strings, and tensors of a horizon. Save it beside the weights, at a sync or after
        :meth:`converge`: within a round replicas differ, and one rank's are not the run; then it warns once.
        After either one rank's state will do for all."""
        return self.owner.pack(self.saved())

    def saved(self) -> dict[str, Any]:
        """What :meth:`state_dict` saves, for a door that saves more. Warns where it is not the run's."""
        if self._hooks.taken:
            self._announcer.warn_once(
                f"state_dict: called after optimizer.step() and before step(): the state is of step "
                f"{self.steps}, and what is saved of the optimizer now is of the next one: a run that goes "
                "on from both is one step behind; call step() first",
                "saved between",
            )
        # The rows of one process are saved together.
        if self.apart and self.replicas.size > self.replicas.local_count:
            self._announcer.warn_once(
                f"state_dict: called {self._since_sync} steps after the last sync: the replicas' weights "
                "differ, and what is saved beside it is one replica's; call converge() on every rank first, "
                "or save every rank's own",
                "saved apart",
            )
        policies = [{"kind": policy.kind, **policy.state_dict()} for policy in self._policies]
        return {**self._own_state(), "policies": policies}

    def _own_state(self) -> dict[str, Any]:
        return {
            "steps": self.steps,
            "round": self._round,
            "seed": self._fan_out.seed,
            "explored": [axis.state_dict() for axis in self._fan_out.axes],
            "explained": self._explained,
            "loss": self._training_loss.state_dict(self.replicas.world_rank),
            # Skipped on the device and yet to be taken back, and for which the schedule waits already.
            "skipped": self._hooks.skipped_ago(),
            "waits": self.schedule.waits,
        }

    @property
    def owner(self) -> Owner:
        """To whom a state belongs; who saves it with more says as what, and what of it may change."""
        optimizer, parameters = self.optimizer, every_parameter(self.optimizer)
        configuration = {
            "total_steps": self.total_steps,
            "explored": [axis.name for axis in self._fan_out.axes],
            "spread": list(self._spreads),
            "optimizers": [type(part).__name__ for part in parts_of(optimizer)],
            "groups": [len(group["params"]) for group in optimizer.param_groups],
            "shapes": [[] if is_flat(p) else list(p.shape) for p in parameters],
            "parameter names": names_of(parameters, self._model),
        }
        for policy in self._policies:
            configuration |= policy.configuration()
        return Owner(self._caller, configuration, self.replicas, parameters)

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off. The losses of an unfinished round are one rank's own,
        unless :meth:`converge` has just told them to all: they count if every rank resumes from its own state
        or such a one, and for none otherwise. Raises for what cannot be taken, and changes nothing then."""
        state, _ = self.owner.unpack(saved, free={"total_steps"})
        self.check_state(state)
        if self.total_steps is not None and state["steps"] > self.total_steps:
            raise ValueError(
                f"{self._caller}.load_state_dict: total_steps must be at least the {state['steps']} steps "
                f"taken so far, got {self.total_steps}; give as many, or more"
            )
        self.take_state(state)

    def check_state(self, saved: Mapping[str, Any]) -> None:
        """Raise ValueError for what :meth:`take_state` could not take whole. Changes nothing."""
        check_fits(self._caller, {**self._own_state(), "policies": []}, saved)
        for policy, of_policy in self._of_policies(saved):
            if of_policy is not None:
                check_fits(self._caller, policy.state_dict(), of_policy, f"/{policy.kind}")

    def _of_policies(self, saved: Mapping[str, Any]) -> Iterator[tuple[Policy, Mapping[str, Any] | None]]:
        """Every policy with what one of its kind has saved, or None: that one begins again."""
        known = {of_policy["kind"]: of_policy for of_policy in saved["policies"]}
        return ((policy, known.get(policy.kind)) for policy in self._policies)

    def take_state(self, saved: Mapping[str, Any]) -> None:
        """Take over what :meth:`check_state` has let pass."""
        self.steps, self._round, self._explained = saved["steps"], saved["round"], saved["explained"]
        self._fan_out.seed = saved["seed"]
        self._fan_out.restore()
        for axis, of_axis in zip(self._fan_out.axes, saved["explored"], strict=True):
            axis.load_state_dict(of_axis)
        self.schedule.notice_moves()
        for policy, of_policy in self._of_policies(saved):
            policy.start(self.steps)
            if of_policy is not None:
                policy.load_state_dict(of_policy)
        self._share(not self._stood)
        self._training_loss.load_state_dict(saved["loss"], self.replicas.world_rank, self.replicas.world_size)
        self._hooks.forget()  # a step taken before is another run's
        self._reset_round(saved["skipped"], saved["waits"])
        self._announcer.resumed(self.steps)

    def resume_at(self, step: int) -> None:
        """Go on from a checkpoint that hdet did not write, at the start of the round that holds ``step``."""
        self.steps = step
        self._round = max(policy.round_at(step) for policy in self._policies)
        for policy in self._policies:
            policy.start(step)
        self._training_loss.reset()
        self._reset_round([], 0)

    def _reset_round(self, skipped: Sequence[int], waits: int) -> None:
        """The weights are about to be replaced, and so may be the learning rates."""
        self.schedule.forget()
        self._converge.forget()
        self._agreement.forget()
        self._hooks.load_skipped(skipped)
        self.schedule.waits = waits
        self._begin_round()


class Door:
    """What a scheduler with a cycle behind it shows of it; :class:`hdet.Ensemble` is the cycle itself."""

    _cycle: Cycle

    @property
    def steps(self) -> int:
        """Optimizer steps counted so far; what a fused optimizer has skipped on the device is taken back at a
        sync."""
        return self._cycle.steps

    @property
    def sync_every(self) -> int | None:
        """T, the steps from one sync to the next; None where windows grow with the run."""
        return self._cycle.sync_every

    @property
    def spread(self) -> float:
        """α, how far from the base the replicas' learning rates are."""
        return self._cycle.spread

    @property
    def values(self) -> dict[str, float]:
        """The base value of everything that is explored, by name; of a learning rate its present one."""
        return self._cycle.values

    @property
    def replica_lrs(self) -> list[float]:
        """The learning rate that this replica's next optimizer step uses, for each parameter group."""
        return self._cycle.replica_lrs

    @property
    def replicas(self) -> Replicas:
        """The replicas this process is one of."""
        return self._cycle.replicas

    @property
    def apart(self) -> bool:
        """Whether the replicas' weights differ now, so that one rank's are not the run's."""
        return self._cycle.apart

    @property
    def trains_alone(self) -> bool:
        """Whether every rank trains on gradients of its own."""
        return self._cycle.trains_alone

    @property
    def switches(self) -> bool:
        """Whether :attr:`trains_alone` changes while the run goes on."""
        return self._cycle.switches

    @property
    def history(self) -> list[SyncRecord]:
        """The records of the last syncs, a thousand at most; a file keeps all (``history=``)."""
        return self._cycle.history

    def converge(self) -> None:
        """Average replicas that diverge now, without ending the round. Every rank must call it."""
        self._cycle.converge()

    @contextmanager
    def at_base(self) -> Iterator[None]:
        """Within, everything has its base value; the weights stay this replica's own."""
        with self._cycle.at_base():
            yield

    def detach(self) -> None:
        """Let go of the optimizer and of what is explored; the base values stay."""
        self._cycle.detach()
