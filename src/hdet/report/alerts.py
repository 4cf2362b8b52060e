"""Alerts: what in a history a user should know, with a level. Pure, line by line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import nan
from typing import Any

from hdet.report.verdict import facts_of, held_out, mean_of, number, sentence, spoken

__all__ = ["Alert", "Alerts", "alerts_of", "summary"]

Record = dict[str, Any]

#: Kind, level and pattern of an event, or of a warning between syncs. The first that matches counts.
_KINDS = (
    ("rollback", "error", r"no rollback|weights are lost|not finite at the end"),
    ("replica lost", "error", r"left out of the (mean|decision)|no replica has a finite loss"),
    ("replica unlike the others", "warning", r"heard, but not as loud"),
    ("rollback", "warning", r": back to the weights of step"),
    ("restart", "info", r"nothing better since step"),
    ("early end", "info", r"nothing has improved since step"),
    ("value at a bound", "warning", r"clamped to"),
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
    """``level`` is info, warning or error."""

    step: int | None
    level: str
    kind: str
    text: str


class Alerts:
    """Takes the lines of a run in order, and returns the alerts of each."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._bounds: dict[str, list[float | None]] = {}
        self._at_bound: set[str] = set()
        self._noisy = self._rises = 0
        #: The training loss and the held-out loss of the sync before.
        self._last = (nan, nan)

    def see(self, line: Record) -> list[Alert]:
        """The alerts of the next line."""
        kind = line.get("kind")
        if kind == "run":
            self._bounds, self._at_bound = line.get("explored") or {}, set()
        if kind == "said":
            return [self._of_text(str(line.get("text")), str(line.get("level", "warning")))]
        if kind is not None:
            return []
        self._step = line.get("step")
        found = [self._of_text(str(event)) for event in line.get("events") or []]
        return found + self._bounded(line) + self._noise(line) + self._overfitting(line)

    def _of_text(self, text: str, otherwise: str = "info") -> Alert:
        for kind, level, pattern in _KINDS:
            if re.search(pattern, text):
                return Alert(self._step, level, kind, text)
        return Alert(self._step, otherwise, "event", text)

    def _bounded(self, line: Record) -> list[Alert]:
        """When a value reaches one of its bounds."""
        found = []
        for seen in line.get("hyperparameters") or []:
            name, value = str(seen.get("name")), seen.get("base_after")
            bounds = self._bounds.get(name) or [None, None]
            at = [i for i in (0, 1) if bounds[i] is not None and bounds[i] == value]
            if at and name not in self._at_bound:
                which = ("lower", "upper")[at[0]]
                text = f"{spoken(name)} is at its {which} bound, {number(value)}; widen bounds= to go beyond"
                found.append(Alert(self._step, "warning", "value at a bound", text))
            (self._at_bound.add if at else self._at_bound.discard)(name)
        return found

    def _noise(self, line: Record) -> list[Alert]:
        """Windows in a row without a significant difference."""
        if not (horizon := line.get("horizon")):
            return []
        noisy = all(seen.get("why") == "not significant" for seen in horizon)
        self._noisy = self._noisy + 1 if noisy else 0
        if self._noisy != _NOISY_WINDOWS:
            return []
        text = f"{_NOISY_WINDOWS} windows in a row were within the probe's noise: give the probe more batches"
        return [Alert(self._step, "warning", "probe too noisy", text)]

    def _overfitting(self, line: Record) -> list[Alert]:
        """Syncs in a row in which the training loss fell and the held-out loss rose."""
        training, loss = mean_of(line.get("losses")), held_out(line)
        self._rises = self._rises + 1 if training < self._last[0] and loss > self._last[1] else 0
        self._last = training, loss
        if self._rises != _RISES:
            return []
        text = f"for {_RISES} syncs the training loss fell and the held-out loss rose, to {number(loss)}"
        return [Alert(self._step, "warning", "overfitting", text)]


def summary(name: str, lines: Sequence[Record]) -> Record:
    """A run's verdict and all its alerts, as plain values."""
    return {
        "run": name,
        "verdict": sentence(facts_of(lines)),
        "alerts": [asdict(alert) for alert in alerts_of(lines)],
    }


def alerts_of(lines: Sequence[Record]) -> list[Alert]:
    """All alerts of a run, in order."""
    alerts = Alerts()
    return [alert for line in lines for alert in alerts.see(line)]
