"""What a run says of itself: rank 0 logs, once where once is enough, and tells its history to a file and to
whoever else listens."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.optim import Optimizer

from hdet import history as history_file
from hdet.engine import opening
from hdet.engine.parts import Parts
from hdet.history import File, History, Listener, SyncRecord
from hdet.hyperparameters import GroupLearningRate

__all__ = ["Announcer"]

logger = logging.getLogger("hdet")


class Announcer:
    """Speaks for all ranks, or is silent.

    Args:
        caller: the name that log lines begin with.
        speaks: whether this is the rank that speaks; asked each time, since ranks may change.
        history: a JSONL file to which records are appended, a listener that is told them, or several.
    """

    def __init__(self, caller: str, *, speaks: Callable[[], bool], history: History | None) -> None:
        self._caller = caller
        self._speaks = speaks
        self._listeners: list[Listener] = []
        self._said: set[str] = set()
        self._opening: dict[str, Any] | None = None
        #: How many lines each listener has missed since it began to fail.
        self._unwritten: dict[int, int] = {}
        self._introduced = False
        self._began, self._in_syncs = time.perf_counter(), 0.0
        #: Why the history cannot be written, if so; files are looked at before ranks compare what they have.
        self.obstacle: Exception | None = None
        try:
            self._listeners = history_file.listeners_of(history)
            if speaks():
                for listener in self._listeners:
                    if isinstance(listener, File):
                        listener.prepare()
        except (OSError, TypeError) as error:
            self.obstacle = error

    def introduce(
        self,
        total_steps: int | None,
        size: int,
        optimizer: Optimizer,
        facts: Mapping[str, str],
        parts: Parts,
    ) -> None:
        """Say what looks wrong from the start; the history opens with what the run is, at its first line."""
        if self._speaks():
            explored = opening.bounds(parts.fan_out.axes)
            about = {
                "caller": self._caller,
                "total_steps": total_steps,
                "replicas": size,
                "explored": explored,
            }
            self._opening = {**about, **opening.of(optimizer, facts)}
        self._introduced = True
        for doubt in parts.doubts:
            self.say_once(logging.WARNING, doubt)

    def note(self, kind: str, **facts: Any) -> None:
        """A line of the history that is no sync."""
        self._tell(history_file.of_note(kind, **facts))
        if kind == "end" and self._unwritten:
            lost = sum(self._unwritten.values())
            logger.warning("%s: %d lines of the history could not be written", self._caller, lost)

    def resumed(self, step: int) -> None:
        """The run goes on from a state that was saved at this step."""
        if self._opening is not None:
            self._opening["resumed_at"] = step
        elif self._introduced:
            self.note("resumed", resumed_at=step)

    def say(self, level: int, message: str) -> None:
        """One line of log; what is more than information stands in the history, too."""
        if self._speaks():
            logger.log(level, "%s: %s", self._caller, message)
            if level > logging.INFO and self._introduced:
                self.note("said", level=logging.getLevelName(level).lower(), text=message)

    def say_once(self, level: int, message: str, kind: str = "") -> None:
        """One line of log in the whole run for each message, or kind of message."""
        if (kind or message) not in self._said:
            self._said.add(kind or message)
            self.say(level, message)

    def publish(
        self, record: SyncRecord, events: Sequence[str], learning_rates: Sequence[GroupLearningRate] = ()
    ) -> None:
        """Log what happened and append the record, with what only this rank knows."""
        if not self._speaks():
            return
        for event in dict.fromkeys(events):  # these stand in the record
            logger.warning("%s: step %d: %s", self._caller, record.step, event)
        self._in_syncs += record.milliseconds / 1e3
        own = {
            "seconds": time.perf_counter() - self._began,
            "sync_seconds": self._in_syncs,
            "memory_bytes": opening.memory_bytes(),
            "plain": {axis.name: axis.curve for axis in learning_rates},
        }
        self._tell(history_file.of_sync(record, **own))

    def _tell(self, line: Mapping[str, Any]) -> None:
        """A full disk or a tracker that fails is no reason to stop training, or to fall behind the others."""
        if not self._speaks():
            return
        lines = [line]
        if self._opening is not None:
            lines.insert(0, history_file.of_note("run", **self._opening))
            self._opening = None
        for listener in self._listeners:
            self._tell_one(listener, lines)

    def _tell_one(self, listener: Listener, lines: Sequence[Mapping[str, Any]]) -> None:
        """What could not be told is counted, and the count told as soon as that is possible again."""
        key = id(listener)
        behind = self._unwritten.pop(key, 0)
        told = 0
        try:
            if behind:
                listener(history_file.of_note("lost", lines=behind))
                logger.warning("%s: %d lines of the history %r were lost", self._caller, behind, listener)
                behind = 0
            for each in lines:
                listener(each)
                told += 1
        except Exception as error:
            self._unwritten[key] = behind + len(lines) - told
            if (said := f"history {listener!r}") not in self._said:
                self._said.add(said)
                logger.warning(
                    "%s: the history could not be written to %r: %s: %s",
                    self._caller,
                    listener,
                    type(error).__name__,
                    error,
                )
