"""What a benchmark of many short runs stands on: the file that remembers those done, and where they start.

A run is a frozen dataclass of all that its result depends on, and its row is that dataclass and the result,
one JSON line. So a benchmark can be stopped, and started again, and goes on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Generic, TypeVar

__all__ = ["KeptRows", "Row", "environment", "failure", "six_digits"]

Row = dict[str, Any]
_Run = TypeVar("_Run", bound=Hashable)


class KeptRows(Generic[_Run]):
    """The results so far, one JSON line each; without a path they are kept in memory alone.

    A run that raised is kept as well, but counts as not finished: started again, the benchmark tries anew.
    A last line that was torn, by whatever ended the last process, is cut off.
    """

    def __init__(self, path: Path | None, run_of: Callable[[Row], _Run]) -> None:
        self.finished: dict[_Run, Row] = {}
        self.failed: dict[_Run, Row] = {}
        self._path = path
        self._run_of = run_of
        if path is not None and path.exists():
            self._read(path)

    def add(self, row: Row) -> None:
        """Remember a result, on disk before anything else happens."""
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, allow_nan=False) + "\n")
        self._sort_in(row)

    def merge(self, path: Path) -> int:
        """Take over what another file knows and this one does not; how many finished runs that were.

        The other file stays as it is, a torn last line included. Of a run that both finished, ours counts.
        """
        content = path.read_bytes()
        before = len(self.finished)
        self._sort_in_all(path, content[: content.rfind(b"\n") + 1], lambda run: run not in self.finished)
        return len(self.finished) - before

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            with path.open("r+b") as file:
                file.truncate(whole)
        self._sort_in_all(path, content[:whole], lambda run: True)

    def _sort_in_all(self, path: Path, content: bytes, wanted: Callable[[_Run], bool]) -> None:
        for number, line in enumerate(content.decode().splitlines(), 1):
            try:
                row = json.loads(line)
                if wanted(self._run_of(row)):
                    self._sort_in(row)
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{path}: line {number}: expected the result of a run, got {line[:80]!r}; remove the line"
                ) from error

    def _sort_in(self, row: Row) -> None:
        run = self._run_of(row)
        if row.get("error"):
            self.failed[run] = row
        else:
            self.failed.pop(run, None)
            self.finished[run] = row


def failure(run: Any, error: Exception) -> Row:
    """What is written down of a run that raised."""
    return {**asdict(run), "error": f"{type(error).__name__}: {error}"[:500]}


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables that processes started within inherit."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def six_digits(value: Any) -> Any:
    """As :func:`benchmarks.machine.rounded`, finer: small differences of losses are what counts."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: six_digits(item) for key, item in value.items()}
    return [six_digits(item) for item in value] if isinstance(value, list) else value
