"""Whether a run was healthy, in sentences, each with what to do: pure, from the lines of its history."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hdet.report.alerts import Alerts
from hdet.report.verdict import Facts, facts_of
from hdet.report.words import count, number, plural, share

__all__ = ["Finding", "examine"]

Record = dict[str, Any]

#: Syncs that take more of the time than this are too many, or too dear.
_DEAR = 0.15
#: A run is as good as ended so close to its last step.
_NEARLY = 0.98
#: What to do about each kind of alert.
_MENDS = {
    "relapse": "training went back and on by itself; if it happens again and again, clip gradients, or look "
    "at the batches of those steps",
    "replica lost": "its weights were left out of the mean; if it is always the same rank, look at its data "
    "and its device",
    "replica unlike the others": "its loss counts for less, and its weights are in the mean; if it is always "
    "the same rank, look at its data",
    "overfitting": "the best weights were kept: call finish_(); regularise more, or train less",
    "steps not counted": "call step() once after every optimizer.step()",
    "probe in doubt": "give the probe batches that are not trained on, of the same kind",
    "probe too noisy": "give the probe more batches, or larger ones",
    "no fan-out": "let every rank keep its own weights between syncs: nothing else may copy or average them",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that someone who trains should know: ``level`` is good, warning or error."""

    level: str
    text: str
    mend: str = ""

    def __str__(self) -> str:
        return f"{self.text}{f': {self.mend}' if self.mend else ''}."


def examine(lines: Sequence[Record], torn: int = 0) -> list[Finding]:
    """What there is to say, the worst first; of a healthy run one thing that is good.

    Args:
        lines: of a history, thinned or not.
        torn: how many could not be read.
    """
    facts = facts_of(lines)
    if not any("kind" not in line for line in lines):
        return [Finding("error", "no sync has been recorded", "train at least until the first window ends")]
    searched = any(line.get("horizon") for line in lines)
    found = [*_end(facts), *_losses(facts, searched=searched), *_alerts(lines), *_file(lines, torn)]
    if facts.cost > _DEAR:
        text = f"syncs took {share(facts.cost)} of the time"
        found.append(
            Finding(
                "warning", text, "give the probe fewer or smaller batches, or sync less often (sync_every)"
            )
        )
    found.sort(key=lambda finding: ("error", "warning").index(finding.level))
    return found or [Finding("good", _well(facts))]


def _well(facts: Facts) -> str:
    relapses = f", with {plural(facts.relapses, 'relapse')}, all of them overcome" if facts.relapses else ""
    return f"the run was healthy: it {'ended' if facts.ended else 'goes on'} as it should{relapses}"


def _end(facts: Facts) -> Iterable[Finding]:
    total = facts.total_steps
    if total is None or facts.ended or facts.steps >= _NEARLY * total:
        return
    yield Finding(
        "warning",
        f"the run was last seen at step {count(facts.steps)} of {count(total)}, and its learning rate has "
        "not come down",
        "if it is not training any more, resume it from its last checkpoint; if it has ended, give the "
        "number of optimizer steps that it takes as total_steps",
    )


def _losses(facts: Facts, *, searched: bool) -> Iterable[Finding]:
    if not math.isfinite(facts.last_loss):
        yield Finding(
            "error", "no loss was ever finite", "look at the data and the loss before any learning rate"
        )
        return
    if facts.relapses > facts.recovered:
        lost = facts.relapses - facts.recovered
        yield Finding(
            "error" if lost > 2 else "warning",
            f"after {plural(lost, 'relapse')} the loss has not come back to where it was",
            "lower the top of what may be tried, or clip gradients",
        )
    if not facts.last_loss < facts.first_loss:
        yield Finding(
            "error",
            f"nothing was learnt: the loss went from {number(facts.first_loss)} to {number(facts.last_loss)}",
            "look at whether the optimizer holds the parameters that the loss depends on",
        )
    elif searched and facts.handed is None and facts.best_loss < facts.last_loss - 0.05 * _gained(facts):
        step = "" if facts.best_step is None else f" of step {count(facts.best_step)}"
        yield Finding(
            "warning",
            f"better weights than the last were seen, those{step}: {number(facts.best_loss)} against "
            f"{number(facts.last_loss)}",
            "call finish_() at the end",
        )


def _gained(facts: Facts) -> float:
    return max(facts.first_loss - facts.best_loss, 0.0)


def _alerts(lines: Sequence[Record]) -> Iterable[Finding]:
    """Kinds, not every one: how often, and an example."""
    alerts = Alerts()
    seen = [alert for line in lines for alert in alerts.see(line) if alert.level != "info"]
    often = Counter(alert.kind for alert in seen)
    for kind, times in often.items():
        of_kind = [alert for alert in seen if alert.kind == kind]
        worst = next((alert for alert in of_kind if alert.level == "error"), of_kind[-1])
        if kind == "relapse" and worst.level != "error":
            continue  # each is told of by what became of it
        step = "" if worst.step is None else f" at step {count(worst.step)}"
        more = f" ({plural(times, 'time')})" if times > 1 else ""
        name = "it was said" if kind == "event" else kind
        level = "error" if worst.level == "error" else "warning"
        yield Finding(level, f"{name}{step}{more}: {worst.text}", _MENDS.get(kind, ""))


def _file(lines: Sequence[Record], torn: int) -> Iterable[Finding]:
    lost = sum(line.get("lines") or 0 for line in lines if line.get("kind") == "lost")
    if lost:
        yield Finding("warning", f"{plural(lost, 'line')} of the history could not be written", "free disk")
    if torn:
        yield Finding("warning", f"{plural(torn, 'line')} of the history cannot be read", "take them out")
    resumes = [line for line in lines if isinstance(line.get("resumed_at"), int)]
    again = _taken_again(lines)
    if again:
        yield Finding(
            "warning",
            f"of {plural(len(resumes), 'resume')}, {plural(again, 'step')} had to be taken again",
            "save more often, if that is much",
        )


def _taken_again(lines: Sequence[Record]) -> int:
    """Steps that lay behind the checkpoint that a run went on from."""
    last = again = 0
    for line in lines:
        if isinstance(resumed := line.get("resumed_at"), int):
            again += max(0, last - resumed)
            last = resumed
        elif "kind" not in line and isinstance(step := line.get("step"), int):
            last = step
    return again
