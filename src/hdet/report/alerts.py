"""What in a history someone should hear of, with a level: pure, one line of the file after the other.

``assets/alerts.js`` does the same in the page, for files that are dropped there; ``tests/browser`` holds the
two equal.
"""

from __future__ import annotations

import math
import re
from dataclasses import asdict, dataclass
from typing import Any

from hdet.report.words import number

__all__ = ["Alert", "Alerts"]

Record = dict[str, Any]

#: What an event, or a warning between syncs, is about. The first that fits counts.
_KINDS = (
    ("relapse", "error", r"no way back|weights are lost|not finite at the end"),
    ("replica lost", "error", r"left out of the (mean|decision)|no replica has a finite loss"),
    ("replica unlike the others", "warning", r"heard, but not as loud"),
    ("relapse", "warning", r": back to the weights of step"),
    ("overfitting", "warning", r"nothing better since step|nothing has improved since step"),
    ("rate at a bound", "warning", r"clamped to"),
    (
        "steps not counted",
        "warning",
        r"has not stepped since|without one of optimizer\.step|got \d+ of them since|has missed",
    ),
    ("probe in doubt", "warning", r"the probe"),
    ("no fan-out", "warning", r"undoes the fan-out|at the same weights although|same on all ranks"),
)
_NOISY_WINDOWS = 3
_RISES = 3


@dataclass(frozen=True, slots=True)
class Alert:
    """One thing to hear of: ``level`` is info, warning or error."""

    step: int | None
    level: str
    kind: str
    text: str

    def as_dict(self) -> Record:
        """Plain values."""
        return asdict(self)

    def as_line(self, run: str) -> Record:
        """A line among those of a history, where ``kind`` says what a line is."""
        about = {"step": self.step, "level": self.level, "text": self.text}
        return {"kind": "alert", "run": run, "alert": self.kind, **about}


class Alerts:
    """Sees the lines of a run in order, and says what each gives cause for."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._bounds: dict[str, list[float | None]] = {}
        self._at_bound: set[str] = set()
        self._noisy = self._rises = 0
        #: The training loss and the held-out loss of the sync before.
        self._last = (math.nan, math.nan)

    def see(self, line: Record) -> list[Alert]:
        """The next line."""
        kind = line.get("kind")
        if kind == "run":
            explored = line.get("explored")
            self._bounds = explored if isinstance(explored, dict) else {}
            self._at_bound = set()
        if kind == "said":
            return [self._told(str(line.get("text")), str(line.get("level", "warning")))]
        if kind is not None:
            return []
        step = line.get("step")
        self._step = step if isinstance(step, int) else None
        found = [self._told(str(event)) for event in line.get("events") or []]
        return found + self._bounded(line) + self._noise(line) + self._overfits(line)

    def _told(self, text: str, least: str = "info") -> Alert:
        for kind, level, pattern in _KINDS:
            if re.search(pattern, text):
                return Alert(self._step, level, kind, text)
        return Alert(self._step, least, "event", text)

    def _bounded(self, line: Record) -> list[Alert]:
        """What stands at the end of where it may stand, said when it comes there."""
        found = []
        for seen in line.get("hyperparameters") or []:
            name, value = str(seen.get("name")), seen.get("base_after")
            bounds = self._bounds.get(name) or [None, None]
            at = [i for i in (0, 1) if bounds[i] is not None and bounds[i] == value]
            if at and name not in self._at_bound:
                which = ("lower", "upper")[at[0]]
                text = (
                    f"{name} stands at its {which} bound, {number(value)}: widen the bounds if it is meant "
                    "to go on"
                )
                found.append(Alert(self._step, "warning", "rate at a bound", text))
            (self._at_bound.add if at else self._at_bound.discard)(name)
        return found

    def _noise(self, line: Record) -> list[Alert]:
        horizon = line.get("horizon") or []
        if not horizon:
            return []
        noisy = all(seen.get("why") == "not significant" for seen in horizon)
        self._noisy = self._noisy + 1 if noisy else 0
        if self._noisy != _NOISY_WINDOWS:
            return []
        text = (
            f"{_NOISY_WINDOWS} windows in a row showed nothing beyond the probe's noise: give the probe more "
            "batches"
        )
        return [Alert(self._step, "warning", "probe too noisy", text)]

    def _overfits(self, line: Record) -> list[Alert]:
        """The training loss falls and the held-out loss rises, several syncs in a row."""
        horizon = line.get("horizon") or []
        held_out = _finite(horizon[0].get("loss_mean") if horizon else line.get("held_out_mean"))
        losses = [_finite(loss) for loss in line.get("losses") or []]
        training = math.fsum(losses) / len(losses) if losses else math.nan
        apart = training < self._last[0] and held_out > self._last[1]
        self._rises = self._rises + 1 if apart else 0
        self._last = training, held_out
        if self._rises != _RISES:
            return []
        text = (
            f"for {_RISES} syncs the training loss fell while the held-out loss rose, to {number(held_out)}"
        )
        return [Alert(self._step, "warning", "overfitting", text)]


def _finite(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan
