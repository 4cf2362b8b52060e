"""What a run says of itself: rank 0 logs, once where once is enough, and appends to the history."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from os import PathLike

from hdet import history as history_file
from hdet.history import SyncRecord

__all__ = ["Announcer"]

logger = logging.getLogger("hdet")


class Announcer:
    """Speaks for all ranks, or is silent.

    Args:
        caller: the name that log lines begin with.
        speaks: whether this is the rank that speaks; asked each time, since ranks may change.
        history: a JSONL file to which records are appended.
    """

    def __init__(
        self, caller: str, *, speaks: Callable[[], bool], history: str | PathLike[str] | None
    ) -> None:
        self._caller = caller
        self._speaks = speaks
        self._history = history
        self._said: set[str] = set()
        #: Why the history cannot be written, if so; files are looked at before ranks compare what they have.
        self.obstacle = "" if history is None or not speaks() else history_file.prepare(history)

    def say(self, level: int, message: str) -> None:
        """One line of log."""
        if self._speaks():
            logger.log(level, "%s: %s", self._caller, message)

    def say_once(self, level: int, message: str, kind: str = "") -> None:
        """One line of log in the whole run for each message, or kind of message."""
        if (kind or message) not in self._said:
            self._said.add(kind or message)
            self.say(level, message)

    def publish(self, record: SyncRecord, events: Sequence[str]) -> None:
        """A full disk is no reason to stop training, or to fall behind the other ranks."""
        if not self._speaks():
            return
        for event in dict.fromkeys(events):
            self.say(logging.WARNING, f"step {record.step}: {event}")
        if self._history is not None:
            try:
                history_file.append(self._history, record)
            except OSError as error:
                self.say_once(logging.WARNING, f"the history could not be written: {error}", "history")
