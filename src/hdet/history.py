"""What happened at every sync: one frozen :class:`SyncRecord`, one line of JSON.

The file is plain JSONL: append-only, readable while the run goes on, and whole up to its last line
after a crash. JSON has no NaN, so a number that is not finite is written as null and read as NaN; the
record's ``events`` say which it was.

A line with a ``kind`` is no sync but a note: ``run`` opens a run (what it is, versions, command; where it
resumes another, at which step), ``said`` is a warning between syncs, ``lost`` counts lines that could not be
written, ``end`` and ``handed`` close it. Readers skip kinds that they do not know.

A :data:`Listener`, such as a tracker, is called with the same lines while the run goes on.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from os import PathLike
from pathlib import Path
from typing import Any

__all__ = [
    "File",
    "History",
    "HorizonRecord",
    "HyperparameterRecord",
    "Listener",
    "SyncRecord",
    "cut_torn_tail",
    "listeners_of",
    "of_note",
    "of_sync",
    "read_history",
    "write",
]

logger = logging.getLogger("hdet")

#: So many bytes at a time are searched for the end of the last whole line.
_LOOK_BACK = 1 << 16
#: Is called with every line of a history, as the file would hold it.
Listener = Callable[[Mapping[str, Any]], object]
#: Where a history goes: to a file, to a listener, or to several of both.
History = str | PathLike[str] | Listener | Sequence[str | PathLike[str] | Listener]


@dataclass(frozen=True, slots=True)
class HyperparameterRecord:
    """One explored hyperparameter at one sync, in its own units.

    Args:
        name: ``"lr/0"`` is the learning rate of the first parameter group.
        multipliers: ρ of each replica; only a learning rate has them.
        values: what each replica trained with.
        base_before, base_after: both at the step just taken, so that their difference is the controller's
            doing alone. By the paper's rule ``base_after == base_before·(1−γ) + λ·velocity`` (Eq. 7; γ = 0
            while the schedule decays by itself).
        delta: Δ of that rule (Eq. 5); a regression's move along the coordinate; else what the base moved by.
        velocity: v of that rule (Eq. 6), 0 by any other.
        spread: half the width over which the replicas lay, along the hyperparameter's coordinate.
        slope: of the loss along that coordinate, pooled over rounds: a regression's.
        error: the standard error of ``slope``.
    """

    name: str
    multipliers: tuple[float, ...]
    values: tuple[float, ...]
    base_before: float
    base_after: float
    delta: float
    velocity: float
    spread: float = math.nan
    slope: float = math.nan
    error: float = math.nan


@dataclass(frozen=True, slots=True)
class HorizonRecord:
    """What one window showed, and what the horizon controller made of it.

    NaN where nothing was measured.

    Args:
        name: whose learning rate: all groups', or one's.
        action: ``"scale"`` (the first window, which measures how far a rate carries), ``"up"``, ``"down"``,
            ``"hold"`` or ``"back"``.
        speed: v, how far the weights would move in the whole run at this pace, by their own norm.
        lag: gap over progress, both pooled with the windows before.
        tolerated: the lag that such a speed may have.
        gap, progress: as pooled.
        loss_previous, loss_mean, loss_end: means over all probe batches of all ranks, at the mean of the
            window before, at this window's mean, at its last iterate.
        why: why there is no evidence, or what led back, in words.
        metric: what ``choose_by`` gave at this window's mean; None without one.
    """

    name: str
    action: str
    speed: float
    lag: float
    tolerated: float
    gap: float
    progress: float
    loss_previous: float
    loss_mean: float
    loss_end: float
    why: str = ""
    metric: float | None = None


@dataclass(frozen=True, slots=True)
class SyncRecord:
    """One sync as every rank saw it; tuples of replicas have one number for each.

    Args:
        step: optimizer steps counted so far.
        round: syncs before this one.
        losses: mean training losses since the sync before; NaN where ``step`` was given none.
        weights: of the paper's vote (Eq. 4); empty where nobody votes.
        hyperparameters: what was explored, and where it went.
        distance_measured: from the mean, over a fixed sample of the weights.
        distance_predicted: ``|ρ_r − 1|·‖D‖`` over the same sample, D being the mean's displacement since the
            last sync. On a shared gradient the two agree; a measured 0 means that the fan-out does not
            happen. NaN where nothing predicts it, as in a round in which a layer was frozen or unfrozen.
        milliseconds: that the sync took, of the writing rank alone.
        events: what happened, in words.
        horizon: what a window showed, for each factor of the learning rate.
        held_out: where a probe compares replicas, their losses on its batches.
        held_out_mean: that of the averaged model.
    """

    step: int
    round: int
    losses: tuple[float, ...]
    weights: tuple[float, ...]
    hyperparameters: tuple[HyperparameterRecord, ...]
    distance_measured: tuple[float, ...]
    distance_predicted: tuple[float, ...]
    milliseconds: float
    events: tuple[str, ...] = ()
    horizon: tuple[HorizonRecord, ...] = ()
    held_out: tuple[float, ...] = ()
    held_out_mean: float = math.nan

    @property
    def lr(self) -> float:
        """The base learning rate after this sync, of the first group; NaN where it is not explored."""
        return next((one.base_after for one in self.hyperparameters if one.multipliers), math.nan)

    def to_json(self) -> str:
        """One line, valid JSON whatever the losses were."""
        return json.dumps(of_sync(self), allow_nan=False)

    @classmethod
    def from_json(cls, line: str) -> SyncRecord:
        """The record that :meth:`to_json` wrote."""
        raw = json.loads(line)
        explored = tuple(_build(HyperparameterRecord, item) for item in raw["hyperparameters"])
        horizon = tuple(_build(HorizonRecord, item) for item in raw.get("horizon", ()))
        record: SyncRecord = _build(cls, {**raw, "hyperparameters": explored, "horizon": horizon})
        return record


def of_sync(record: SyncRecord, **own: Any) -> dict[str, Any]:
    """The line of a sync; what is not finite is None.

    ``own`` is what only the writing rank knows (its clock, its memory): it is in the line, not in the record,
    which is the same on every rank.
    """
    line: dict[str, Any] = _finite({**asdict(record, dict_factory=_given), **own})
    return line


def of_note(kind: str, **facts: Any) -> dict[str, Any]:
    """A line that is no sync; what is not finite is None."""
    line: dict[str, Any] = _finite({"kind": kind, **facts})
    return line


class File:
    """A history file, as a listener."""

    def __init__(self, path: str | PathLike[str]) -> None:
        self.path = path
        #: How long it was when this run last wrote to it.
        self._size: int | None = None
        self._warned = False

    def prepare(self) -> None:
        """Make the file and its folder if need be."""
        Path(self.path).parent.mkdir(parents=True, exist_ok=True)
        with Path(self.path).open("a", encoding="utf-8"):
            pass

    def __call__(self, line: Mapping[str, Any]) -> None:
        others = self._size is not None and _length(self.path) > self._size
        if others and not self._warned:
            self._warned = True
            logger.warning(
                "another run writes to the history %s as well: their lines cannot be separated; give each a "
                "file of its own",
                self.path,
            )
        write(self.path, line)
        self._size = _length(self.path)

    def __repr__(self) -> str:
        return str(self.path)


def listeners_of(history: History | None) -> list[Listener]:
    """The listeners that ``history=`` names.

    >>> listeners_of(["run.jsonl", print])
    [run.jsonl, <built-in function print>]
    """
    one = isinstance(history, (str, PathLike)) or not isinstance(history, Sequence)
    listeners: list[Listener] = []
    for item in [history] if one else history:  # type: ignore[union-attr]
        if isinstance(item, (str, PathLike)):
            listeners.append(File(item))
        elif callable(item):
            listeners.append(item)
        elif item is not None:
            raise TypeError(
                f"a {type(item).__name__}, which is neither a path nor callable; wrap a tracker: "
                "hdet.integrations.trackers.Tracker(run)"
            )
    return listeners


def read_history(path: str | PathLike[str], *, run: int = -1, superseded: bool = False) -> list[SyncRecord]:
    """All syncs of a run, in order; notes, and lines that a crash cut short, are left out.

    A file may hold several runs, one after the other: ``run`` says which, from 0, or from the end; the last
    one if it is left out. A run that was resumed is one. Where it went on from an earlier step than it had
    come to, the syncs beyond that step were taken again: ``superseded`` gives those, too.

    A crash cuts the last line of the file, or the last before a run that went on in the same file; any other
    line that is no record raises ValueError, with its number.
    """
    text = Path(path).read_text(encoding="utf-8", errors="replace")
    lines = text[: text.rfind("\n") + 1].split("\n")[:-1]
    runs: list[list[SyncRecord]] = [[]]
    opened = False
    for number, (line, following) in enumerate(zip(lines, [*lines[1:], ""], strict=False), start=1):
        try:
            raw = json.loads(line)
            resumed = raw.get("resumed_at") if "kind" in raw else None
            if "kind" not in raw:
                record = SyncRecord.from_json(line)
                # A replica that joins others opens with a line, too; the steps go on, and do not begin again.
                if opened and runs[-1] and record.step <= runs[-1][-1].step:
                    runs.append([])
                runs[-1].append(record)
                opened = False
            elif raw["kind"] == "run":
                opened = resumed is None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            if following.startswith('{"kind": "run"'):  # a crash cut it
                continue
            raise ValueError(
                f"read_history: every line must be a record, and line {number} of {str(path)!r} is none "
                f"({type(error).__name__}: {error}); take it out"
            ) from error
        if isinstance(resumed, int) and not superseded:
            runs[-1] = [record for record in runs[-1] if record.step <= resumed]
    if not -len(runs) <= run < len(runs):
        raise IndexError(f"read_history: run must be from 0 to {len(runs) - 1} of {str(path)!r}, got {run}")
    return runs[run]


def write(path: str | PathLike[str], line: Mapping[str, Any]) -> None:
    """Add a line. What a crash, or a full disk, has left of one before is cut off first."""
    cut_torn_tail(path)
    # One write of one line: who reads at the same time sees all of it, or a line without an end.
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, allow_nan=False) + "\n")


def cut_torn_tail(path: str | PathLike[str]) -> int:
    """Remove what follows the last whole line; returns how many bytes that was."""
    try:
        with Path(path).open("r+b") as file:
            size = end = file.seek(0, 2)
            while end:
                begin = max(0, end - _LOOK_BACK)
                file.seek(begin)
                found = file.read(end - begin).rfind(b"\n")
                if found >= 0:
                    end = begin + found + 1
                    break
                end = begin
            if end < size:
                file.truncate(end)
            return size - end
    except FileNotFoundError:
        return 0


def _length(path: str | PathLike[str]) -> int:
    file = Path(path)
    return file.stat().st_size if file.exists() else 0


def _given(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Without what is None, which no number of a record is."""
    return {name: value for name, value in pairs if value is not None}


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def _build(kind: Any, raw: dict[str, Any]) -> Any:
    def revive(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return tuple(revive(item) for item in value)
        return math.nan if value is None else value

    return kind(**{field.name: revive(raw[field.name]) for field in fields(kind) if field.name in raw})
