"""A history file as a report needs it: its lines, each read once, and thinned where they are many.

Lines stay text: a page draws them, and a hundred thousand of them would not fit into a watcher's memory as
objects.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["Source", "Tail", "Thinned", "is_marked", "is_sound"]

#: So much is read at a time.
_CHUNK = 1 << 20
#: No step is so late.
_MOST = 1 << 62
#: A line longer than this is no record of ours, and is not waited for.
_LONGEST = 64 << 20


class Tail:
    """The whole lines of a file that grows, each once; a file that is not there yet has none.

    Args:
        path: the file. One that was cut short or replaced is read again from its beginning.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0
        self._identity: tuple[int, int] | None = None
        self._rest = b""
        #: How often the file has begun anew.
        self.restarts = 0

    @property
    def torn(self) -> bool:
        """Whether the file ends within a line."""
        return bool(self._rest)

    @property
    def exists(self) -> bool:
        """Whether the file was there at the last look."""
        return self._identity is not None

    def look(self) -> bool:
        """Whether there may be anything new. Costs one stat."""
        try:
            now = self._path.stat()
        except OSError:
            now = None
        identity = None if now is None else (now.st_dev, now.st_ino)
        if self._identity is not None and (identity != self._identity or (now and now.st_size < self._at)):
            self._at, self._rest = 0, b""
            self.restarts += 1
        self._identity = identity
        return now is not None and now.st_size > self._at

    def lines(self) -> Iterator[str]:
        """What has been appended since the last call; an unfinished line waits for its end."""
        while self.look():
            try:
                with self._path.open("rb") as file:
                    file.seek(self._at)
                    read = file.read(_CHUNK)
            except OSError:  # gone between two looks
                return
            self._at += len(read)
            *whole, self._rest = (self._rest + read).split(b"\n")
            if len(self._rest) > _LONGEST:
                self._rest = b""
            for line in whole:
                yield line.decode("utf-8", errors="replace")


class _Sieve:
    """Every line while they are few, then every 2nd, 4th, …: what is kept stays evenly spaced."""

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
    """At most so many lines, evenly spaced, those that tell of something apart from the others, and the last.

    Args:
        limit: of each of the two kinds.
        bytes_: of each of the two kinds.
    """

    def __init__(self, limit: int = 1000, bytes_: int = 1_000_000) -> None:
        self._plain, self._marked = _Sieve(limit, bytes_), _Sieve(limit, bytes_)
        self._last: tuple[int, int, str] | None = None
        self.total = 0

    def add(self, line: str, *, marked: bool) -> None:
        """The next line; a marked one is only left out where there are too many of them alone."""
        (self._marked if marked else self._plain).add(self.total, line)
        self._last = (self.total, 0, line)
        self.total += 1

    def lines(self) -> list[str]:
        """What is left, in order."""
        last = [] if self._last is None else [self._last]
        kept = {index: line for index, _, line in (*self._plain.kept, *self._marked.kept, *last)}
        return [kept[index] for index in sorted(kept)]


def is_marked(record: dict[str, Any]) -> bool:
    """Whether a line tells of something: a note, an event, a way back."""
    if "kind" in record or record.get("events"):
        return True
    horizon = record.get("horizon")
    return isinstance(horizon, list) and any(
        isinstance(seen, dict) and seen.get("action") == "back" for seen in horizon
    )


def is_sound(record: object) -> bool:
    """Whether what readers look into is of its kind: a line of anything else is no record of ours."""
    if not isinstance(record, dict):
        return False
    objects = ("hyperparameters", "horizon")
    return (
        all(_is_list(record.get(name), dict) for name in objects)
        and all(_is_list(record.get(name), object) for name in ("losses", "events"))
        and all(_is_number(record.get(name), int) for name in ("step", "total_steps", "lines", "resumed_at"))
        and _is_mapping(record.get("plain"), lambda value: _is_number(value, (int, float)))
        and _is_mapping(record.get("explored"), lambda value: isinstance(value, list) and len(value) == 2)
        and (record.get("kind") != "handed" or _is_handed(record.get("weights")))
    )


def _is_list(value: Any, of: type) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(one, of) for one in value))


def _is_number(value: Any, kind: type | tuple[type, ...]) -> bool:
    if value is None:
        return True
    return isinstance(value, kind) and not isinstance(value, bool) and -_MOST < value < _MOST  # type: ignore[operator]


def _is_mapping(value: Any, sound: Callable[[Any], bool]) -> bool:
    return value is None or (isinstance(value, dict) and all(map(sound, value.values())))


def _is_handed(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and _is_number(value.get("step"), int))


class Source:
    """One run's file, its lines thinned, and what thinning would lose: how many there were, and their time.

    Args:
        path: the history; it need not exist yet.
        limit: lines to keep, of either kind.
        bytes_: likewise.
    """

    def __init__(self, path: Path, *, limit: int = 1000, bytes_: int = 1_000_000) -> None:
        self.path = path
        self._tail = Tail(path)
        self._size = limit, bytes_
        self._forget()

    def _forget(self) -> None:
        self._thinned = Thinned(*self._size)
        self.torn = self.syncs = 0
        self._sync_seconds = 0.0

    @property
    def name(self) -> str:
        """What tells it from others: its name, with its folder where many have that name."""
        generic = self.path.stem in ("history", "run", "log")
        folder = self.path.resolve().parent.name
        return f"{folder}/{self.path.stem}" if generic and folder else self.path.stem

    @property
    def exists(self) -> bool:
        return self._tail.exists

    @property
    def restarts(self) -> int:
        """How often the file has begun anew."""
        return self._tail.restarts

    def new(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Lines that were appended since the last call, as they are kept and as what they say."""
        restarts = self._tail.restarts
        for text in self._tail.lines():
            if self._tail.restarts != restarts:
                restarts = self._tail.restarts
                self._forget()
            if not text.strip():
                continue
            try:
                record = json.loads(text, parse_constant=lambda _: None)
            except (ValueError, RecursionError):
                record = None
            if not is_sound(record):
                self.torn += 1
                continue
            line = self._timed(record) or text
            self._thinned.add(line, marked=is_marked(record))
            yield line, record
        if self._tail.restarts != restarts:
            self._forget()

    def _timed(self, record: dict[str, Any]) -> str:
        """A sync of a file that does not tell the time spent in syncs so far, with it; else nothing."""
        if "kind" in record:
            return ""
        self.syncs += 1
        if "sync_seconds" in record:
            return ""
        took = record.get("milliseconds")
        self._sync_seconds += took / 1e3 if isinstance(took, (int, float)) else 0.0
        record["sync_seconds"] = self._sync_seconds
        return json.dumps(record)

    def read(self) -> Source:
        """Read on to the end of the file."""
        for _ in self.new():
            pass
        return self

    def lines(self) -> list[str]:
        """What is kept, in order."""
        return self._thinned.lines()

    def records(self) -> list[dict[str, Any]]:
        """What is kept, as what it says."""
        return [json.loads(line, parse_constant=lambda _: None) for line in self.lines()]

    def about(self) -> dict[str, Any]:
        """What a page is told of the file itself."""
        return {
            "name": self.name,
            "path": os.fspath(self.path),
            "total": self._thinned.total,
            "torn": self.torn + self._tail.torn,
            "exists": self.exists,
        }
