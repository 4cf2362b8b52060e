"""How a run went, in a sentence: pure, from the lines of its history.

``assets/verdict.js`` says the same in the page, for files that are dropped there; ``tests/browser`` holds the
two equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hdet.report.words import count, number, plural, share

__all__ = ["Facts", "facts_of", "sentence"]

Record = dict[str, Any]

_COMES_DOWN = "the schedule comes down"


@dataclass(slots=True)
class Facts:
    """What a history says of a run; NaN, None and empty where it does not."""

    rates: list[float] = field(default_factory=list)
    others: dict[str, float] = field(default_factory=dict)
    first_loss: float = math.nan
    last_loss: float = math.nan
    best_loss: float = math.nan
    best_step: int | None = None
    handed: Record | None = None
    relapses: int = 0
    recovered: int = 0
    steps: int = 0
    total_steps: int | None = None
    ended: bool = False
    stalled: bool = False
    cost: float = math.nan


def facts_of(lines: Sequence[Record]) -> Facts:
    """From the lines of a history, thinned or not."""
    facts = Facts()
    open_relapses: list[float] = []
    before = spent = 0.0  # seconds of earlier sessions in the same file
    seconds = in_syncs = 0.0
    for line in lines:
        kind = line.get("kind")
        if kind == "run":
            facts.total_steps = line.get("total_steps")
            facts.ended = facts.stalled = False
            before, spent, seconds, in_syncs = before + seconds, spent + in_syncs, 0.0, 0.0
        elif kind == "end":
            facts.ended, facts.steps = True, max(facts.steps, line.get("step") or 0)
        elif kind == "handed":
            facts.handed = line.get("weights")
        if kind is not None:
            continue
        facts.steps = line.get("step") or facts.steps
        seconds, in_syncs = _or(line.get("seconds"), seconds), _or(line.get("sync_seconds"), in_syncs)
        facts.stalled |= any("nothing has improved since step" in str(e) for e in line.get("events") or [])
        _take_values(facts, line)
        _take_losses(facts, line, open_relapses)
    if before + seconds > 0:
        facts.cost = (spent + in_syncs) / (before + seconds)
    # A file of before there were notes: a run that reached its last step has ended.
    facts.ended |= facts.total_steps is not None and facts.steps >= facts.total_steps
    return facts


def _take_values(facts: Facts, line: Record) -> None:
    """Learning rates as they stood while the schedule was at its height, all else as it stands."""
    horizon = line.get("horizon") or []
    down = any(seen.get("why") == _COMES_DOWN for seen in horizon)
    plain = line.get("plain") or {}
    rates = []
    for seen in line.get("hyperparameters") or []:
        name, value = str(seen.get("name")), seen.get("base_after")
        if name.split("/")[0] != "lr":
            facts.others[name] = _or(value, math.nan)
        elif horizon and plain.get(name):
            rates.append(_or(value, math.nan) / plain[name])  # what the schedule is multiplied by
        elif not (down and facts.rates):
            rates.append(_or(value, math.nan))
    facts.rates = rates or facts.rates


def _take_losses(facts: Facts, line: Record, open_relapses: list[float]) -> None:
    horizon = line.get("horizon") or []
    if horizon:
        seen = horizon[0]
        mean, previous = (_or(seen.get(key), math.nan) for key in ("loss_mean", "loss_previous"))
    else:
        mean = previous = _or(line.get("held_out_mean"), math.nan)
        if math.isnan(mean):
            losses = [_or(loss, math.nan) for loss in line.get("losses") or []]
            mean = previous = math.fsum(losses) / len(losses) if losses else math.nan
    if math.isnan(facts.first_loss):
        facts.first_loss = mean if math.isnan(previous) else previous
    for before in [loss for loss in open_relapses if mean <= loss]:
        open_relapses.remove(before)
        facts.recovered += 1
    if any(seen.get("action") == "back" for seen in horizon):
        facts.relapses += 1
        open_relapses.append(previous)
    elif math.isfinite(mean):
        facts.last_loss = mean
        if not mean >= facts.best_loss:
            facts.best_loss, facts.best_step = mean, line.get("step")


def sentence(facts: Facts) -> str:
    """What was found, what went wrong, why it ended and what it cost."""
    if not facts.steps:
        return "Nothing has been measured yet."
    parts = [_found(facts), _loss(facts), _relapses(facts), _end(facts)]
    if math.isfinite(facts.cost):
        parts.append(f"syncs took {share(facts.cost)} of the time")
    text = "; ".join(part for part in parts if part)
    return text[0].upper() + text[1:] + "."


def _found(facts: Facts) -> str:
    rates = [rate for rate in facts.rates if math.isfinite(rate)]
    named = [f"{name.replace('_', ' ')} {number(value, 2)}" for name, value in facts.others.items()]
    if rates:
        low, high = number(min(rates), 2), number(max(rates), 2)
        named.insert(0, f"a learning rate of {low}" if low == high else f"learning rates of {low} to {high}")
    return f"found {', '.join(named)}" if named else ""


def _loss(facts: Facts) -> str:
    if not math.isfinite(facts.last_loss):
        return "no loss was finite"
    course = f"the loss went from {number(facts.first_loss)} to {number(facts.last_loss)}"
    handed = facts.handed or {}
    if math.isfinite(_or(handed.get("estimate"), math.nan)):
        worth = f"{number(handed['estimate'])} ± {number(handed.get('error'), 2)}"
        which = f"the {handed.get('kind')} of step {count(handed.get('step') or 0)}"
        return f"{course}, and {which}, worth {worth}, was kept"
    if facts.best_step is not None and facts.best_loss < facts.last_loss:
        return f"{course}, lowest {number(facts.best_loss)} at step {count(facts.best_step)}"
    return course


def _relapses(facts: Facts) -> str:
    if not facts.relapses:
        return "no relapse"
    all_of = {1: "recovered", 2: "both recovered"}.get(facts.relapses, "all recovered")
    some = f"{count(facts.recovered)} recovered"
    return f"{plural(facts.relapses, 'relapse')}, {all_of if facts.recovered == facts.relapses else some}"


def _end(facts: Facts) -> str:
    of = "" if facts.total_steps is None else f" of {count(facts.total_steps)}"
    if not facts.ended:
        return f"last seen at step {count(facts.steps)}{of}"
    early = facts.total_steps is None or facts.steps < facts.total_steps
    why = " because the held-out loss had stopped falling" if facts.stalled and early else ""
    return f"ended at step {count(facts.steps)}{of}{why}"


def _or(value: Any, otherwise: float) -> float:
    return float(value) if isinstance(value, (int, float)) else otherwise
