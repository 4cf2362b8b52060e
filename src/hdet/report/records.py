"""Reads a history file that may still grow: each line once, thinned if there are many.

Lines stay text, because a page draws them and a hundred thousand parsed ones would fill a watcher's memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["HistoryFile", "Tail", "Thinned", "is_history"]

Record = dict[str, Any]

#: Bytes that are read at a time.
_CHUNK = 1 << 20
#: A line longer than this is not a record; its end is not waited for.
_LONGEST = 64 << 20
#: Notes that a run writes.
_KINDS = ("run", "said", "lost", "resumed", "end", "handed")


class Tail:
    """The complete lines of a growing file, each once. A file that was cut short or replaced is read again
    from the start; one that does not exist yet has no lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._identity: tuple[int, int] | None = None
        #: What follows the last complete line.
        self.rest = b""
        #: How often the file was cut short, replaced or removed.
        self.restarts = 0

    @property
    def torn(self) -> bool:
        """Whether the file ends within a line."""
        return bool(self.rest)

    @property
    def exists(self) -> bool:
        """Whether the file was there at the last look."""
        return self._identity is not None

    def look(self) -> bool:
        """Whether there may be something new, from one stat."""
        try:
            now = self._path.stat()
        except OSError:
            now = None
        identity = None if now is None else (now.st_dev, now.st_ino)
        if self._identity is not None and (identity != self._identity or (now and now.st_size < self._at)):
            self._at, self.rest = 0, b""
            self.restarts += 1
        self._identity = identity
        return now is not None and now.st_size > self._at

    def lines(self) -> Iterator[str]:
        """Lines that were completed since the last call."""
        while self.look():
            try:
                with self._path.open("rb") as file:
                    file.seek(self._at)
                    read = file.read(_CHUNK)
            except OSError:  # removed since the look
                return
            self._at += len(read)
            *whole, self.rest = (self.rest + read).split(b"\n")
            if len(self.rest) > _LONGEST:
                self.rest = b""
            yield from (line.decode("utf-8", errors="replace") for line in whole)


class _Sieve:
    """Every line at first, then every 2nd, 4th, …: what is kept stays evenly spaced."""

    def __init__(self, limit: int, bytes_: int) -> None:
        self._limit, self._bytes = limit, bytes_
        self._stride, self._seen, self._held = 1, 0, 0
        self.kept: list[tuple[int, int, str]] = []

    def add(self, index: int, line: str) -> None:
        number, self._seen = self._seen, self._seen + 1
        if number % self._stride:
            return
        self.kept.append((index, number, line))
        self._held += len(line)
        while len(self.kept) > 1 and (len(self.kept) > self._limit or self._held > self._bytes):
            self._stride *= 2
            self.kept = [kept for kept in self.kept if kept[1] % self._stride == 0]
            self._held = sum(len(line) for _, _, line in self.kept)


class Thinned:
    """At most ``limit`` ordinary lines of ``bytes_`` bytes, as many marked ones, and the last line."""

    def __init__(self, limit: int = 1000, bytes_: int = 1_000_000) -> None:
        self._plain, self._marked = _Sieve(limit, bytes_), _Sieve(limit, bytes_)
        self._last: dict[int, str] = {}
        self.total = 0

    def add(self, line: str, *, marked: bool) -> None:
        """The next line; marked ones (notes, events, rollbacks) are thinned separately."""
        (self._marked if marked else self._plain).add(self.total, line)
        self._last = {self.total: line}
        self.total += 1

    def lines(self) -> list[str]:
        """What is kept, in order."""
        kept = {index: line for index, _, line in (*self._plain.kept, *self._marked.kept)} | self._last
        return [kept[index] for index in sorted(kept)]


class HistoryFile:
    """One run's history, thinned.

    Args:
        path: the file; it need not exist yet.
        limit: ordinary lines to keep, and marked ones.
        bytes_: likewise.
    """

    def __init__(self, path: Path, *, limit: int = 1000, bytes_: int = 1_000_000) -> None:
        self.path = path
        self._tail = Tail(path)
        self._size = limit, bytes_
        self._restarts, self._thinned, self._torn = 0, Thinned(*self._size), 0

    @property
    def name(self) -> str:
        """The file's name, with its folder if the name is a common one."""
        folder = self.path.resolve().parent.name
        return f"{folder}/{self.path.stem}" if self.path.stem in ("history", "run", "log") else self.path.stem

    @property
    def restarts(self) -> int:
        """How often the file was cut short, replaced or removed."""
        return self._tail.restarts

    def new(self) -> Iterator[tuple[str, Record]]:
        """Lines since the last call, as text and as records."""
        for text in self._tail.lines():
            self._notice_restart()
            if not text.strip():
                continue
            try:
                record = _parsed(text)
            except (ValueError, RecursionError):
                record = None
            if not _is_record(record):
                self._torn += 1
                continue
            self._thinned.add(text, marked=_is_marked(record))
            yield text, record
        self._notice_restart()

    def _notice_restart(self) -> None:
        """Forget the lines of a file that was replaced."""
        if self.restarts != self._restarts:
            self._restarts, self._thinned, self._torn = self.restarts, Thinned(*self._size), 0

    def read(self) -> HistoryFile:
        """Read to the end of the file."""
        for _ in self.new():
            pass
        return self

    def lines(self) -> list[str]:
        """The kept lines."""
        return self._thinned.lines()

    def records(self) -> list[Record]:
        """The kept lines, parsed."""
        return [_parsed(line) for line in self.lines()]

    def about(self) -> Record:
        """What the page shows about the file."""
        return {
            "name": self.name,
            "path": str(self.path),
            "total": self._thinned.total,
            "torn": self._torn + self._tail.torn,
            "exists": self._tail.exists,
        }


def is_history(path: Path) -> bool:
    """Whether a file holds a line of a history, or nothing yet: the first one may be half written."""
    tail, empty = Tail(path), True
    for text in tail.lines():
        if not text.strip():
            continue
        empty = False
        with suppress(ValueError, RecursionError):
            record = _parsed(text)
            if _is_record(record) and ("hyperparameters" in record or record.get("kind") in _KINDS):
                return True
    return empty and tail.rest[:1] in (b"", b"{")


def _parsed(text: str) -> Any:
    return json.loads(text, parse_constant=lambda _: None)


def _is_marked(record: Record) -> bool:
    """Whether a line is a note, or has an event or a rollback."""
    rolled_back = any(seen.get("action") == "back" for seen in record.get("horizon") or [])
    return "kind" in record or bool(record.get("events")) or rolled_back


def _is_record(record: Any) -> bool:
    """Whether the fields that are read have their types."""
    if not isinstance(record, dict):
        return False
    kept = record.get("weights") if record.get("kind") == "handed" else None
    return all(record.get(name) is None or sound(record[name]) for name, sound in _TYPES.items()) and (
        kept is None or (isinstance(kept, dict) and (kept.get("step") is None or _is_int(kept["step"])))
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1 << 62


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value)


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _is_list_of_objects(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, dict) for one in value)


_TYPES: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("hyperparameters", "horizon"), _is_list_of_objects),
    **dict.fromkeys(("losses", "held_out", "events"), _is_list),
    **dict.fromkeys(("step", "total_steps", "lines", "resumed_at"), _is_int),
    "plain": lambda value: (
        isinstance(value, dict) and all(v is None or _is_number(v) for v in value.values())
    ),
    "explored": lambda value: (
        isinstance(value, dict)
        and all(isinstance(bounds, list) and len(bounds) == 2 for bounds in value.values())
    ),
}
