"""Rounds: who explores what, when the next sync is due, and what happens there.

The half of the cycle that most calls of ``step`` never reach; :mod:`hdet.engine.cycle` is the other.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Sequence

from hdet.engine import doubts
from hdet.engine.announce import Announcer
from hdet.engine.decisions import Decisions
from hdet.engine.divergence import predicted_distances
from hdet.engine.events import Listener, of_sync
from hdet.engine.fan_out import FanOut
from hdet.engine.parts import Parts
from hdet.engine.schedule import CoveredSchedule
from hdet.engine.skips import Skips
from hdet.engine.sync import record_of
from hdet.engine.training_loss import TrainingLoss
from hdet.engine.written import WrittenRates
from hdet.history import SyncRecord
from hdet.policies.base import Policy
from hdet.replicas import Replicas

__all__ = ["Rounds"]


class Rounds:
    """What a cycle counts, and its syncs; :class:`hdet.engine.cycle.Cycle` sets all of it."""

    #: How many steps ago those were that this call of ``step`` has taken back.
    taken_back: list[int]
    schedule: CoveredSchedule
    _caller: str
    _replicas: Replicas
    _policies: list[Policy]
    #: Those that look at the weights between syncs.
    _following: Sequence[Policy]
    #: Whether replicas diverge or somebody looks at the weights; else it is the plain schedule.
    _looked_at: bool
    _parts: Parts
    _fan_out: FanOut
    _training_loss: TrainingLoss
    _skips: Skips
    _written: WrittenRates
    _decide: Decisions
    _announcer: Announcer
    _listener: Listener
    #: Of the last syncs.
    _records: deque[SyncRecord]
    _total_steps: int | None
    _steps: int
    _round: int
    #: Steps since the replicas were one model.
    _since_sync: int
    _sync_at: float

    def _forget(self) -> None:
        """The weights will be others, and so may be the learning rates."""
        self._written.forget()
        self._parts.converge.forget()
        self._parts.starts.forget()

    def _before_step(self) -> None:
        self._replicas.begin(self._caller)
        if said := self._written.look():
            self._announcer.say_once(logging.WARNING, f"step {self._steps + 1}: {said}", "written")
        self._parts.starts.look()
        if self._parts.diverges and not self._parts.converge.begun:
            self._parts.converge.begin()  # the round's displacement is counted from here
        for policy in self._following:
            policy.before_step()

    def _begin_round(self, joined: int | None = None) -> None:
        """Eq. 9: who explores what. What is not learnt any more, nobody explores; nor does a replica that
        joins a round which was dealt to ``joined`` arms."""
        sharing = self._parts.sharing
        seat = (sharing.arms, sharing.arm) if joined is None else (joined, None)
        if trouble := self._fan_out.seat(*seat):
            self._announcer.say(logging.WARNING, f"step {self._steps}: {trouble}")
        ended = self._steps == self._total_steps
        learning = [policy for policy in self._policies if policy.learns and not ended]
        self._fan_out.assign(self._round, [axis for policy in learning for axis in policy.axes])
        self._look_ahead()

    def _advance(self) -> None:
        """The schedule moves on; what it leaves is what the next step is to find."""
        self.schedule.advance()
        self._note_rates()

    def _note_rates(self) -> None:
        if self._looked_at and self.schedule.writes:
            self._written.note()

    def _where(self) -> tuple[int, int]:
        return self._steps, self._round

    def _miss(self) -> None:
        for policy in self._policies:
            policy.missed(self._steps)
        self._look_ahead()

    def _look_ahead(self) -> None:
        """The next sync: at the first window that ends, and where replicas diverge at the last step."""
        ends = [policy.window_end for policy in self._policies if policy.window_end is not None]
        if self._parts.diverges and self._total_steps is not None:
            ends.append(self._total_steps)
        self._sync_at = min(ends, default=math.inf)

    def _due(self) -> bool:
        """Whether a window has ended, by the steps that were taken: what a fused optimizer skipped is known
        now and taken back, so the window goes on for as many. The schedule, which has run on, waits."""
        if self._steps < self._sync_at and self._steps != self._total_steps:
            return False
        self.taken_back = self._skips.take(self._caller, self._replicas, self._announcer)
        if count := len(self.taken_back):
            self._steps -= count
            self._since_sync -= count
            self.schedule.waits += count
            for policy in self._following:
                policy.recounted(self._steps)
        return self._steps >= self._sync_at

    def _sync(self) -> SyncRecord:
        began = time.perf_counter()
        with self._parts.attendance.meeting("sync", self._where):
            judging = [policy for policy in self._policies if policy.judges(self._steps)]
            gathered = self._parts.sync(*self._where(), self._training_loss, judging)
        self._parts.attendance.narrow()
        if said := self._written.look_back():
            self._announcer.say_once(logging.WARNING, f"since the last sync {said}", "written")
        self._since_sync = 0
        predicted = tuple(math.nan for _ in gathered.losses)
        if self._parts.collinear:
            predicted = predicted_distances(self._fan_out.multipliers, gathered.divergence.displacements)
        odd = self._parts.watch(self._steps, gathered, predicted)
        if self._parts.diverges:
            odd |= doubts.overwritten(self._fan_out.axes)
        else:  # where buffers are averaged, who has lost one takes the others'
            odd |= doubts.lost_buffers(self._parts.converge.lost_buffers())
        self._fan_out.stand_down()
        decided = self._decide(self._steps, self._total_steps, judging, gathered)
        if decided.went_back:
            self._parts.converge.went_back(diverges=self._parts.diverges)
        self.schedule.look()
        for kind, doubt in odd.items():
            self._announcer.say_once(logging.WARNING, doubt, kind)
        events = [*gathered.odd, *decided.events]
        told = (*dict.fromkeys(events), *odd.values())
        record = record_of(*self._where(), gathered, predicted, decided, told, time.perf_counter() - began)
        self._round += 1
        self._begin_round()
        self._training_loss.reset()
        self._announcer.publish(record, events, self._fan_out.learning_rates)
        self._records.append(record)
        self._listener.note(of_sync(record, decided, gathered.odd))
        return record
