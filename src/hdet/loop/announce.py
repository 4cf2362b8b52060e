"""What a run reports: rank 0 logs and writes the history, ``on_event`` is called on every rank."""

from __future__ import annotations

import atexit
import logging
import os
import platform
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import torch
from torch.optim import Optimizer

import hdet
from hdet import history as history_file
from hdet.history import File, History, Listener, SyncRecord
from hdet.hyperparameters import Axis, GroupLearningRate, ScalarAxis
from hdet.loop.optimizers import parts_of
from hdet.loop.policy import Decided

__all__ = ["Announcer", "Event", "command", "events_of", "memory_bytes", "speak", "unfinished"]

logger = logging.getLogger("hdet")

#: No text of a set-up is longer: a history is to be read.
_LONGEST = 2000


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a run, the same on every rank.

    Args:
        kind: ``"moved"``: a controller has moved a base value. ``"best"``: the probe has seen nothing better
            so far, by more than its error. ``"back"``: the weights are older ones; what was made of the newer
            ones (a moving average) must go back, too. ``"lost"``: a replica has no part in the mean.
            ``"end"``: the last step was taken.
        step: optimizer steps counted so far.
        sentence: what is logged of it.
        record: of the sync at which it happened; None for an end without one.
    """

    kind: Literal["moved", "best", "back", "lost", "end"]
    step: int
    sentence: str
    record: SyncRecord | None = None


def events_of(record: SyncRecord, decided: Decided, lost: Sequence[str]) -> list[Event]:
    """What a sync has brought, in the order in which it happened."""
    events = [Event("lost", record.step, sentence, record) for sentence in lost]
    moved = [one for one in record.hyperparameters if one.base_after != one.base_before]
    if decided.best:
        loss = record.horizon[0].loss_mean if record.horizon else record.held_out_mean
        metric = record.horizon[0].metric if record.horizon else None
        seen = f"the probe's loss is {loss:.4g}" if metric is None else f"the metric is {metric:.4g}"
        events.append(Event("best", record.step, f"{seen}, the best so far", record))
    if decided.went_back:
        events.append(Event("back", record.step, "; ".join(decided.events), record))
    if moved:
        moves = ", ".join(f"{one.name} from {one.base_before:.4g} to {one.base_after:.4g}" for one in moved)
        events.append(Event("moved", record.step, moves, record))
    return events


class Announcer:
    """Logs and writes for all ranks; on all ranks but one it is silent.

    Args:
        writes: whether this is the rank that logs and writes.
        history: a JSONL file to which records are appended, a listener that is called with them, or several.
        on_event: called with each event, at the end of its step, when everything has been done that follows
            from it. One that raises is logged, once, and training goes on: a rank that stopped alone would
            leave the others waiting.
    """

    #: Of the run that stepped last in this process, for the warning at its exit: the run itself is not kept.
    last: _Progress | None = None

    def __init__(
        self,
        caller: str,
        *,
        writes: bool,
        history: History | None = None,
        on_event: Callable[[Event], object] | None = None,
    ) -> None:
        if on_event is not None and not callable(on_event):
            raise TypeError(
                f"{caller}: on_event must be a function of one hdet.loop.announce.Event, got "
                f"{type(on_event).__name__}"
            )
        self._caller = caller
        self._writes = writes
        self._on_event = on_event
        #: Events of this step.
        self.events: list[Event] = []
        self._listeners: list[Listener] = []
        self._logged: set[str] = set()
        self._opening: dict[str, Any] | None = None
        #: How many lines each listener has missed since it began to fail.
        self._unwritten: dict[int, int] = {}
        self._introduced = False
        self._began, self._in_syncs = time.perf_counter(), 0.0
        self.progress = _Progress(caller)
        #: Why the history cannot be written, if so; files are looked at before ranks compare what they have.
        self.obstacle: Exception | None = None
        try:
            self._listeners = history_file.listeners_of(history)
            if writes:
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
        axes: Sequence[Axis],
    ) -> None:
        """The history opens with what the run is, at its first line: a file that explains itself later."""
        self._introduced = True
        if not self._writes:
            return
        trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        self._opening = {
            "caller": self._caller,
            "total_steps": total_steps,
            "replicas": size,
            # A learning rate has no bounds.
            "explored": {axis.name: list(axis.bounds) for axis in axes if isinstance(axis, ScalarAxis)},
            "id": uuid.uuid4().hex[:12],
            "began": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "optimizer": " and ".join(type(one).__name__ for one in parts_of(optimizer)),
            "parameters": sum(p.numel() for p in trained),
            "device": str(trained[0].device) if trained else "none",
            "configuration": {key: value[:_LONGEST] for key, value in facts.items() if key != "history"},
            "versions": {
                "hdet": hdet.__version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
            "platform": platform.platform(),
            "command": command()[:_LONGEST],
        }

    def resumed(self, step: int) -> None:
        """The run goes on from a state that was saved at this step."""
        if self._opening is not None:
            self._opening["resumed_at"] = step
        elif self._introduced:
            self.note("resumed", resumed_at=step)

    # ------------------------------------------------------------------ log lines

    def log(self, level: int, message: str) -> None:
        """One line of log; warnings and errors go into the history, too."""
        if self._writes:
            logger.log(level, "%s: %s", self._caller, message)
            if level > logging.INFO and self._introduced:
                self.note("said", level=logging.getLevelName(level).lower(), text=message)

    def say(self, message: str) -> None:
        """What every user is to read: one line at the start of a run and one at its end."""
        if self._writes:
            speak(f"{self._caller}: {message}")

    def warn_once(self, message: str, kind: str = "") -> None:
        """One warning in the whole run for each message, or kind of message."""
        if (kind or message) not in self._logged:
            self._logged.add(kind or message)
            self.log(logging.WARNING, message)

    # ------------------------------------------------------------------ the history

    def note(self, kind: str, **facts: Any) -> None:
        """A line of the history that is no sync."""
        self._tell(history_file.of_note(kind, **facts))
        if kind == "end" and self._unwritten:
            lost = sum(self._unwritten.values())
            logger.warning("%s: %d lines of the history could not be written", self._caller, lost)

    def publish(
        self, record: SyncRecord, events: Sequence[str], learning_rates: Sequence[GroupLearningRate] = ()
    ) -> None:
        """Log what happened and append the record, with what only this rank knows."""
        if not self._writes:
            return
        for event in dict.fromkeys(events):  # the record has them
            logger.warning("%s: step %d: %s", self._caller, record.step, event)
        self._in_syncs += record.milliseconds / 1e3
        if self._listeners:
            own = {
                "seconds": time.perf_counter() - self._began,
                "sync_seconds": self._in_syncs,
                "memory_bytes": memory_bytes(),
                "plain": {axis.name: axis.curve for axis in learning_rates},
            }
            self._tell(history_file.of_sync(record, **own))

    def _tell(self, line: Mapping[str, Any]) -> None:
        """A full disk or a tracker that fails is no reason to stop training, or to fall behind the others."""
        if not self._writes:
            return
        lines = [line]
        if self._opening is not None:
            lines.insert(0, history_file.of_note("run", **self._opening))
            self._opening = None
        for listener in self._listeners:
            self._tell_one(listener, lines)

    def _tell_one(self, listener: Listener, lines: Sequence[Mapping[str, Any]]) -> None:
        """Lines that could not be written are counted; the count is written as soon as that is possible."""
        key = id(listener)
        behind = self._unwritten.pop(key, 0)
        written = 0
        try:
            if behind:
                listener(history_file.of_note("lost", lines=behind))
                logger.warning("%s: %d lines of the history %r were lost", self._caller, behind, listener)
                behind = 0
            for each in lines:
                listener(each)
                written += 1
        except Exception as error:
            self._unwritten[key] = behind + len(lines) - written
            if (kind := f"history {listener!r}") not in self._logged:
                self._logged.add(kind)
                why = f"{type(error).__name__}: {error}"
                logger.warning("%s: the history could not be written to %r: %s", self._caller, listener, why)

    # ------------------------------------------------------------------ events, and the exit

    def call_listeners(self) -> None:
        """Call ``on_event`` with what has happened in this step."""
        waiting, self.events = self.events, []
        for event in waiting if self._on_event is not None else ():
            try:
                self._on_event(event)  # type: ignore[misc]  # it is not None
            except Exception:
                if "on_event" not in self._logged:
                    self._logged.add("on_event")
                    logger.exception(
                        "%s: on_event raised at step %d (%s); training goes on, and this is logged once",
                        self._caller,
                        event.step,
                        event.kind,
                    )

    def stepped_last(self) -> None:
        """A run that stops early is warned of when the process ends, if no other run has stepped since."""
        if self._writes:
            if Announcer.last is None and "PYTEST_VERSION" not in os.environ:  # tests stop anywhere
                atexit.register(_warn_unfinished)
            Announcer.last = self.progress

    def close(self) -> None:
        """Disables the warning at the exit."""
        self.progress.total = None


def speak(line: str) -> None:
    """To the log, where somebody has set one up that shows INFO; else to stderr, unless ``HDET_QUIET=1`` or
    a level of the logger ``hdet`` above INFO asks for silence."""
    if logger.isEnabledFor(logging.INFO) and logger.hasHandlers():
        logger.info("%s", line)
        return
    silenced = logger.level > logging.INFO or logging.root.manager.disable >= logging.INFO
    if not silenced and os.environ.get("HDET_QUIET", "0") in ("", "0"):
        print(line, file=sys.stderr, flush=True)


@dataclass(slots=True)
class _Progress:
    """Steps counted, and how many there are to be; None where no warning is due at the exit."""

    caller: str
    steps: int = 0
    total: int | None = None


def unfinished(steps: int, total_steps: int) -> str:
    """The schedule was made for more steps."""
    return (
        f"{steps} of {total_steps} steps were counted: the schedule has not come to its end, and the "
        "learning rate has not decayed; resume the run from its state, or give total_steps as many as "
        "there are optimizer steps (steps that a GradScaler skips are not among them)"
    )


def _warn_unfinished() -> None:
    # Not where the user sees why: a traceback, or a notebook that was stopped.
    raised = getattr(sys, "last_value", None) is not None
    if raised or hasattr(sys, "ps1") or Announcer.last is None:
        return
    run = Announcer.last
    if run.total is not None and run.steps < run.total:
        logger.warning("%s: %s", run.caller, unfinished(run.steps, run.total))


def command() -> str:
    """How the run was started; a script outside of the working folder by its name alone."""
    script, *arguments = sys.argv or [""]
    path = Path(script)
    if path.is_absolute() and path.name != "__main__.py":
        path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else Path(path.name)
    shown = f"python -m {path.parent.name}" if path.name == "__main__.py" else str(path)
    return " ".join([shown, *arguments])


def memory_bytes() -> dict[str, int | None]:
    """What this process holds now, and the most that its device held so far; None where it is unknown."""
    device = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {"process": pages * os.sysconf("SC_PAGE_SIZE"), "device": device}
    except OSError:  # no Linux
        return {"process": None, "device": device}
