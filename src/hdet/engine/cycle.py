"""The cycle of Algorithm 1: fan out, converge, decide, deal anew; for one replica or a thousand.

The cycle knows replicas, hyperparameters and policies only as such. ``Ensemble``, ``AutoLR`` and
``OneCycleAutoLR`` are doors to it: they choose the policies, and there is no second copy of what is here.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import SupportsFloat

from torch import Tensor, nn
from torch.optim import Optimizer

from hdet.engine import telling
from hdet.engine.agreement import agree_on_run
from hdet.engine.announce import Announcer
from hdet.engine.decisions import Decisions
from hdet.engine.design import Design
from hdet.engine.events import Event, Listener
from hdet.engine.gradients import Gradients
from hdet.engine.optimizers import parts_of
from hdet.engine.parts import assemble
from hdet.engine.resumable import Resumable
from hdet.engine.schedule import Schedule
from hdet.engine.skips import Skips, can_skip
from hdet.engine.step_hooks import StepHooks, take_over
from hdet.engine.training_loss import TrainingLoss
from hdet.engine.unfinished import Course, unfinished
from hdet.engine.written import WrittenRates
from hdet.history import History, SyncRecord
from hdet.hyperparameters import separate_learning_rates
from hdet.policies.base import Policy
from hdet.replicas import Replicas, Undone
from hdet.weights.outer import OuterStep

__all__ = ["Cycle"]

#: So many records are kept in memory.
_RECORDS = 1000


class Cycle(Resumable):
    """Replicas that diverge in what their policies explore, and are averaged back at every sync.

    Args:
        optimizer: any torch optimizer; its step hooks carry the fan-out.
        policies: what is explored, when replicas meet, and what moves.
        replicas: who trains.
        schedule: the base schedule; :meth:`step` drives it. None leaves ``group["lr"]`` to the user.
        total_steps: S. The replicas are converged at the last step, whenever the next sync would be.
        gradients: who shares them: ``"all"`` (the paper), ``"none"``, or the ranks of each arm.
        outer: steps from the mean at every sync, where gradients are not shared by all.
        design: how values are dealt to replicas; None takes whichever serves the policies best.
        model: makes its buffers known, which are then averaged too.
        seed: of the deals. No global random state is read or written.
        history: a JSONL file to which rank 0 appends every :class:`SyncRecord`; or a
            callable that is told each line (:class:`hdet.integrations.trackers.Tracker`); or a list of both.
        on_event: called with every :class:`Event`, on every rank.
        caller: the name that errors and log lines begin with.
        first_step: where the count of steps begins, for a run that goes on.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        policies: Sequence[Policy],
        replicas: Replicas,
        *,
        schedule: Schedule | None = None,
        total_steps: int | None = None,
        gradients: Gradients = "all",
        outer: OuterStep | None = None,
        design: Design | None = None,
        model: nn.Module | None = None,
        seed: int = 0,
        history: History | None = None,
        on_event: Callable[[Event], object] | None = None,
        caller: str = "Cycle",
        first_step: int = 0,
    ) -> None:
        take_over(optimizer)
        separate_learning_rates(optimizer)
        self._caller = caller
        self._optimizer = optimizer
        self._policies = list(policies)
        self._replicas = replicas
        self._total_steps = total_steps
        self._listener, self._records = Listener(caller, on_event), deque(maxlen=_RECORDS)
        self._announcer = Announcer(caller, speaks=lambda: replicas.place == 0, history=history)
        said = {"total_steps": total_steps, "gradients": gradients, "design": design, "seed": seed}
        obstacle, settings = self._announcer.obstacle, {**said, "outer": outer}
        facts = agree_on_run(caller, replicas, optimizer, model, policies, obstacle, settings)
        parts = assemble(
            caller,
            optimizer,
            policies,
            replicas,
            schedule=schedule,
            gradients=gradients,
            outer=outer,
            design=design,
            model=model,
            seed=seed,
            total_steps=total_steps,
        )
        self._parts = parts
        self._fan_out = parts.fan_out
        self.schedule = parts.schedule
        self._training_loss = TrainingLoss(replicas.here)
        self._needs_loss = any(policy.needs_loss for policy in policies)
        self._following = [policy for policy in policies if policy.follows_weights]
        self._looked_at = parts.diverges or bool(self._following)
        heeded = self._looked_at and not parts.sharing.own_gradients
        self._skips = Skips(heeded=heeded, fused=can_skip(parts_of(optimizer)))
        self._written = WrittenRates(optimizer)
        self.taken_back, self._since_sync = [], 0
        self._decide = Decisions(self._policies, parts.fan_out, parts.sharing, parts.attendance)
        self.resume_at(first_step)
        before, detach = self._before_step if self._looked_at else None, weakref.WeakMethod(self.detach)
        self._hooks = StepHooks(optimizer, parts.fan_out, before, detach, self._skips)
        self._announcer.introduce(total_steps, replicas.size, optimizer, facts, parts)
        self._announcer.say(logging.INFO, telling.introduced(replicas, policies, total_steps))
        self.note = self._announcer.note
        self._course = Course(caller, speaks=replicas.place == 0)
        #: Whether the last step is told; a door that says more of it does so itself.
        self.says_end = True
        self._note_rates()
        self._spreads = [axis.spread for axis in parts.fan_out.axes]
        replicas.carry(caller, lambda saved: self.take_state(self.checked_state(saved)), self._state)

    # ------------------------------------------------------------------ what a user sees

    @property
    def optimizer(self) -> Optimizer:
        """Torch's own, beneath whatever wrapped it."""
        return self._optimizer

    @property
    def replicas(self) -> Replicas:
        """The replicas this process is one of."""
        return self._replicas

    @property
    def steps(self) -> int:
        """Optimizer steps counted so far; what a fused optimizer has skipped is taken back at a sync."""
        return self._steps

    @property
    def total_steps(self) -> int | None:
        """S, or None while nobody knows."""
        return self._total_steps

    @property
    def sync_every(self) -> int | None:
        """T, the steps from one sync to the next; None where windows grow with the run."""
        lengths = [policy.sync_every for policy in self._policies if policy.sync_every is not None]
        return min(lengths, default=None)

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
        self._hooks.leave()
        arm = self._fan_out.arm
        own = [1.0 if arm is None else row[arm] for row in self._fan_out.multipliers]
        return [axis.base * rho for axis, rho in zip(self._fan_out.learning_rates, own, strict=True)]

    def step(self, loss: Tensor | SupportsFloat | None = None) -> SyncRecord | None:
        """Call once after ``optimizer.step()``; returns the record of a sync when there was one.

        A call that follows no optimizer step (gradient accumulation, a step that GradScaler skipped) only
        takes the loss; on gradients of their own, where one rank alone may skip, it counts as a step.
        Between syncs nothing waits for the device.
        """
        self.taken_back = []
        if self._looked_at:
            self._hooks.check(self._caller, self._announcer, strict=bool(self._following))
        if loss is None and self._needs_loss:
            raise telling.without_loss(self._caller)
        if loss is not None and (self._hooks.stepped or not self._training_loss.has_taken(loss)):
            self._training_loss.add(loss)
        # Where nothing diverges and nobody looks, this is the plain schedule, which steps when it is told to.
        if not self._hooks.stepped and self._looked_at:
            counts = self._parts.sharing.own_gradients
            self._hooks.notice_no_step(self._announcer, counts=counts)
            if not counts:
                return None
        if self._steps == self._total_steps:
            self._stay_at_the_end()
            return None
        self._hooks.count()
        self._steps += 1
        self._since_sync += 1
        for policy in self._following:
            if policy.after_step():
                self._look_ahead()
        if self._parts.within is not None and self._steps < self._sync_at:
            for event in self._parts.within.after_step(self._steps, self._fan_out):
                self._announcer.say(logging.WARNING, event)
        try:
            # The sync comes before the schedule moves on: its values are those of the step just taken.
            record = self._sync() if self._due() else None
        except Undone as undone:
            self._parts.converge.forget()
            self._miss()
            if self._steps == self._total_steps:
                raise  # nobody will try again: the replicas' weights differ
            self._announcer.say(logging.WARNING, f"step {self._steps}: no sync: {undone}")
            record = None
        except BaseException:
            self._miss()
            raise
        finally:  # a probe that raised is the user's to handle; the schedule is not to fall behind
            self._advance()
        if self._steps == self._total_steps:
            self._end(record)
        if record is not None:  # who comes and goes does so at syncs
            self._course.speaks = self._replicas.place == 0
        self._course.at(self._steps, self._total_steps)
        self._listener.tell()
        return record

    def _end(self, record: SyncRecord | None) -> None:
        for trouble in filter(None, (policy.check_end() for policy in self._policies)):
            self._announcer.say(logging.ERROR, trouble)
        self.note("end", step=self._steps)
        said = telling.ended(self._steps, self.values, self._round)
        if self.says_end:
            self._announcer.say(logging.INFO, said)
        self._listener.note([Event("end", self._steps, said, record)])

    def _stay_at_the_end(self) -> None:
        self._hooks.forget()
        self._since_sync += self._parts.sharing.own_gradients
        lr = float(self._optimizer.param_groups[0]["lr"])
        said = telling.beyond_the_end(self._steps, lr, apart=self._parts.sharing.own_gradients)
        self._announcer.say_once(logging.WARNING, said, "beyond the end")

    def converge(self) -> None:
        """Average the replicas now (Eq. 3). A collective: every rank calls it at the same step.

        For an evaluation or a checkpoint within a round. The round goes on: losses, multipliers
        and the time of the next sync stay as they are. An outer optimizer steps at syncs, not here.
        """
        if self._since_sync:
            self._parts.converge.begin()  # on a rank, too, whose every step was skipped so far
        with self._fan_out.at_base(), self._parts.attendance.meeting("converge", self._where):
            _, events = self._parts.sync.average(self._training_loss, ends_round=False)
            self._training_loss.meet(self._replicas)
        self._since_sync = 0
        for event in events:
            self._announcer.say(logging.WARNING, event)

    @contextmanager
    def at_base(self) -> Iterator[None]:
        """Within, the base values stand everywhere: for an evaluation or a checkpoint within a round. The
        weights stay this replica's own; :meth:`converge` makes them the mean."""
        with self._fan_out.at_base():
            yield

    def end_at(self, step: int) -> None:
        """The run now has an end, or another one."""
        self._total_steps = step
        for policy in self._policies:
            policy.end_at(step)
        self._look_ahead()

    def end_search(self, *, meet: bool = True) -> None:
        """Nothing moves any more; replicas that diverge come together now, or else at the last step."""
        for policy in self._policies:
            policy.stop()
        if self._parts.diverges and meet:
            self.converge()
        self._begin_round()

    def stop(self) -> None:
        """Training is over, at whichever step it is; where that is not the last one, it is said."""
        if self._total_steps is not None and self._steps < self._total_steps:
            self._announcer.say_once(logging.WARNING, unfinished(self._steps, self._total_steps), "stopped")
        self._course.close()

    def detach(self) -> None:
        """Remove the fan-out; what remains are the base values."""
        self._hooks.remove()
        self._course.close()
        if self.apart:
            self._announcer.say_once(logging.WARNING, telling.detached_apart(self._since_sync))
        self._fan_out.close()

    def __enter__(self) -> Cycle:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.detach()
        except Exception as error:
            if kind is None:
                raise
            self._announcer.say(logging.ERROR, f"on the way out: {error}")  # and not instead of its cause
