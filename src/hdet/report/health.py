"""Whether a run was healthy, in sentences with what to do: pure, from the lines of its history."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hdet.report.alerts import Alert, Alerts
from hdet.report.verdict import Facts, facts_of, number, plural, share

__all__ = ["Finding", "examine"]

Record = dict[str, Any]

#: Probing should take less of the time than this, in a run of more than so many seconds.
_COSTLY, _SHORT_RUN = 0.15, 60.0
#: What to do about each kind of alert.
_FIXES = {
    "rollback": "clip gradients, or look at the batches of those steps",
    "replica lost": "its weights were left out of the mean; if it is always the same rank, look at its data "
    "and its device",
    "replica unlike the others": "its loss counts for less, and its weights are in the mean; if it is always "
    "the same rank, look at its data",
    "overfitting": "regularise more, train less, or keep the best weights, as AutoLR's finish_() does",
    "steps not counted": "call step() once after every optimizer.step()",
    "probe in doubt": "give the probe batches that are not trained on, of the same kind",
    "probe too noisy": "give the probe more batches, or larger ones",
    "no fan-out": "let every rank keep its own weights between syncs: nothing else may copy or average them",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """``level`` is good, warning or error; ``fix`` is what to do."""

    level: str
    text: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.text}{f': {self.fix}' if self.fix else ''}."


def examine(lines: Sequence[Record], torn: int = 0) -> list[Finding]:
    """All findings, errors first; for a healthy run a single good one.

    Args:
        lines: of a history, thinned or not.
        torn: how many could not be read.
    """
    if all("kind" in line for line in lines):
        return [Finding("error", "no sync has been recorded", "train at least until the first window ends")]
    facts = facts_of(lines)
    found = [*_of_facts(facts), *_of_alerts(lines), *_of_file(lines, torn)]
    good = f"the run {'was' if facts.ended else 'is'} healthy"
    return sorted(found, key=lambda finding: finding.level) or [Finding("good", good)]


def _of_facts(facts: Facts) -> Iterator[Finding]:
    total = facts.total_steps
    if total is not None and not facts.ended and facts.steps < 0.98 * total:
        yield Finding(
            "warning",
            f"the run was last seen at step {facts.steps:,} of {total:,}, before its rate had decayed",
            "resume it from its last checkpoint; if it has ended, set total_steps to the number of optimizer "
            "steps it takes",
        )
    if facts.cost > _COSTLY and facts.seconds > _SHORT_RUN:
        fix = "give the probe fewer or smaller batches"
        yield Finding("warning", f"probing took {share(facts.cost)} of the time", fix)
    if not math.isfinite(facts.last_loss):
        yield Finding("error", "no loss was finite", "look at the data and the loss before any learning rate")
        return
    late = [step for step in facts.rollbacks if step > (facts.best_step or 0)]
    if late:
        yield Finding(
            "error" if len(late) > 2 else "warning",
            f"after {plural(len(late), 'rollback')} the loss has not come back to where it was",
            "clip gradients, or look at the batches of those steps",
        )
    if not facts.last_loss < facts.first_loss:
        yield Finding(
            "error",
            f"nothing was learnt: the loss went from {number(facts.first_loss)} to {number(facts.last_loss)}",
            "check that the optimizer holds the parameters that the loss depends on",
        )
        return
    gained = max(facts.first_loss - facts.best_loss, 0.0)
    if facts.searched and facts.kept is None and facts.best_loss < facts.last_loss - 0.05 * gained:
        step = "" if facts.best_step is None else f" of step {facts.best_step:,}"
        yield Finding(
            "warning",
            f"the weights{step} were better than the last: {number(facts.best_loss)} against "
            f"{number(facts.last_loss)}",
            "call finish_() at the end",
        )


def _of_alerts(lines: Sequence[Record]) -> Iterator[Finding]:
    """One finding for each kind of alert: how often, and the worst."""
    alerts, kinds = Alerts(), dict[str, list[Alert]]()
    for alert in (alert for line in lines for alert in alerts.see(line)):
        if alert.level != "info":
            kinds.setdefault(alert.kind, []).append(alert)
    for kind, seen in kinds.items():
        worst = next((alert for alert in seen if alert.level == "error"), seen[-1])
        if kind == "rollback" and worst.level != "error":
            continue  # the facts count those that did not recover
        step = "" if worst.step is None else f" at step {worst.step:,}"
        times = f" ({plural(len(seen), 'time')})" if len(seen) > 1 else ""
        level = "error" if worst.level == "error" else "warning"
        name = "warning" if kind == "event" else kind
        yield Finding(level, f"{name}{step}{times}: {worst.text}", _FIXES.get(kind, ""))


def _of_file(lines: Sequence[Record], torn: int) -> Iterator[Finding]:
    lost = sum(line.get("lines") or 0 for line in lines if line.get("kind") == "lost")
    if lost:
        yield Finding(
            "warning", f"{plural(lost, 'line')} of the history could not be written", "free disk space"
        )
    if torn:
        yield Finding("warning", f"{plural(torn, 'line')} of the history cannot be read", "remove them")
    last = repeated = resumes = 0
    for line in lines:
        if isinstance(resumed := line.get("resumed_at"), int):
            resumes, repeated, last = resumes + 1, repeated + max(0, last - resumed), resumed
        elif "kind" not in line and isinstance(step := line.get("step"), int):
            last = step
    if repeated:
        text = f"{plural(resumes, 'resume')} repeated {plural(repeated, 'step')}"
        yield Finding("warning", text, "save more often, if that is much")
