"""How a run went, in a sentence: pure, from the lines of its history.

``assets/verdict.js`` and ``assets/words.js`` do the same in the page; ``tests/browser`` compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Facts", "as_float", "facts_of", "held_out", "mean_of", "number", "plural", "sentence", "share"]

Record = dict[str, Any]


# ---------------------------------------------------------------------- numbers as a person reads them


def number(value: Any, digits: int = 3) -> str:
    """So many significant digits, with a power of ten only instead of many zeros.

    >>> [number(x) for x in (0.00310, 3.1e-5, 1234.5, 0, 2e7, None)]
    ['0.0031', '3.1e-5', '1230', '0', '2e7', '–']
    """
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    rounded = float(f"{mantissa}e{exponent}")
    plain = 1e-3 <= abs(rounded) < 1e5
    text = f"{rounded:.10f}" if plain else mantissa
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return text if plain else f"{text}e{int(exponent)}"


def plural(value: int, one: str) -> str:
    """1 line, 2,000 lines."""
    return f"{value:,} {one}{'' if value == 1 else 's'}"


def share(value: float) -> str:
    """Per cent, to two significant digits.

    >>> [share(x) for x in (0.0184, 0.1234, 0.00012)]
    ['1.8 %', '12 %', '0.012 %']
    """
    return f"{number(100 * value, 2)} %"


def as_float(value: Any, otherwise: float = math.nan) -> float:
    """A number as it is; ``otherwise`` for anything else."""
    return float(value) if isinstance(value, (int, float)) else otherwise


def mean_of(values: Sequence[Any] | None) -> float:
    """Their mean; NaN if one of them is not a number, or there is none."""
    return math.fsum(map(as_float, values)) / len(values) if values else math.nan


def held_out(line: Record) -> float:
    """The held-out loss of a sync: of AutoLR's window mean, or of the replicas' mean; NaN without a probe."""
    horizon = line.get("horizon")
    return as_float(horizon[0].get("loss_mean") if horizon else line.get("held_out_mean"))


# ---------------------------------------------------------------------- the verdict


@dataclass(slots=True)
class Facts:
    """What a history records of a run; NaN, None and empty where it does not."""

    rates: list[float] = field(default_factory=list)
    #: Whether ``rates`` are factors on the user's own schedule.
    of_schedule: bool = False
    others: dict[str, float] = field(default_factory=dict)
    first_loss: float = math.nan
    last_loss: float = math.nan
    best_loss: float = math.nan
    #: Whether there is no held-out loss, so that these are training losses.
    training: bool = False
    best_step: int | None = None
    kept: Record | None = None
    rollbacks: int = 0
    recovered: int = 0
    steps: int = 0
    total_steps: int | None = None
    ended: bool = False
    stalled: bool = False
    cost: float = math.nan


def facts_of(lines: Sequence[Record]) -> Facts:
    """From the lines of a history, thinned or not."""
    facts = Facts()
    not_recovered: list[float] = []  # losses to come back to
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
            facts.kept = line.get("weights")
        if kind is not None:
            continue
        facts.steps = line.get("step") or facts.steps
        seconds = as_float(line.get("seconds"), seconds)
        in_syncs = as_float(line.get("sync_seconds"), in_syncs)
        facts.stalled |= any("nothing has improved since step" in str(e) for e in line.get("events") or [])
        _take_values(facts, line)
        _take_losses(facts, line, not_recovered)
    if before + seconds > 0:
        facts.cost = (spent + in_syncs) / (before + seconds)
    facts.ended |= facts.total_steps is not None and facts.steps >= facts.total_steps
    return facts


def _take_values(facts: Facts, line: Record) -> None:
    """Learning rates without their schedule's decay, and all other values."""
    horizon = line.get("horizon") or []
    decays = any(seen.get("why") == "the schedule decays" for seen in horizon)
    plain = line.get("plain") or {}
    rates = []
    for seen in line.get("hyperparameters") or []:
        name, value = str(seen.get("name")), as_float(seen.get("base_after"))
        if name.split("/")[0] != "lr":
            facts.others[name] = value
        elif plain.get(name):
            rates.append(value / plain[name])  # what the schedule is multiplied by
            facts.of_schedule = not horizon
        elif not (decays and facts.rates):
            rates.append(value)
    facts.rates = rates or facts.rates


def _take_losses(facts: Facts, line: Record, not_recovered: list[float]) -> None:
    horizon, mean = line.get("horizon") or [], held_out(line)
    if horizon:
        previous = as_float(horizon[0].get("loss_previous"))
    else:
        facts.training = math.isnan(mean)
        mean = previous = mean_of(line.get("losses")) if facts.training else mean
    if math.isnan(facts.first_loss):
        facts.first_loss = mean if math.isnan(previous) else previous
    for loss in [loss for loss in not_recovered if mean <= loss]:
        not_recovered.remove(loss)
        facts.recovered += 1
    if any(seen.get("action") == "back" for seen in horizon):
        facts.rollbacks += 1
        not_recovered.append(previous)
    elif math.isfinite(mean):
        facts.last_loss = mean
        if not mean >= facts.best_loss:
            facts.best_loss, facts.best_step = mean, line.get("step")


def sentence(facts: Facts) -> str:
    """What was found, what went wrong, why it ended and what it cost."""
    if not facts.steps:
        return "Nothing has been measured yet."
    parts = [_found(facts), _loss(facts), _rollbacks(facts), _end(facts)]
    if math.isfinite(facts.cost):
        parts.append(f"syncs took {share(facts.cost)} of the time")
    text = "; ".join(part for part in parts if part)
    return text[0].upper() + text[1:] + "."


def _found(facts: Facts) -> str:
    rates = [rate for rate in facts.rates if math.isfinite(rate)]
    named = [f"{name.replace('_', ' ')} {number(value, 2)}" for name, value in facts.others.items()]
    if rates:
        low, high = (number(rate, 3 if facts.of_schedule else 2) for rate in (min(rates), max(rates)))
        named.insert(0, f"a learning rate of {low}" if low == high else f"learning rates of {low} to {high}")
        named[0] += " times the schedule's" if facts.of_schedule else ""
        likely = (facts.kept or {}).get("rates") or [None, None]
        if math.isfinite(as_float(likely[0])):
            named[0] += f" (the best is probably between {number(likely[0], 1)} and {number(likely[1], 1)})"
    return f"found {', '.join(named)}" if named else ""


def _loss(facts: Facts) -> str:
    if not math.isfinite(facts.last_loss):
        return "no loss was finite"
    name = "the training loss" if facts.training else "the loss"
    text = f"{name} went from {number(facts.first_loss)} to {number(facts.last_loss)}"
    kept = facts.kept or {}
    if math.isfinite(as_float(kept.get("estimate"))):
        text += f"; kept the {kept.get('kind')} of step {kept.get('step') or 0:,}, "
        return f"{text}estimated loss {number(kept['estimate'])} ± {number(kept.get('error'), 2)}"
    if facts.best_step is not None and facts.best_loss < facts.last_loss:
        return f"{text}, lowest {number(facts.best_loss)} at step {facts.best_step:,}"
    return text


def _rollbacks(facts: Facts) -> str:
    if not facts.rollbacks:
        return "no rollback"
    recovered = {1: "recovered", 2: "both recovered"}.get(facts.rollbacks, "all recovered")
    if facts.recovered != facts.rollbacks:
        recovered = f"{facts.recovered:,} recovered"
    return f"{plural(facts.rollbacks, 'rollback')}, {recovered}"


def _end(facts: Facts) -> str:
    of = "" if facts.total_steps is None else f" of {facts.total_steps:,}"
    if not facts.ended:
        return f"last seen at step {facts.steps:,}{of}"
    early = facts.total_steps is None or facts.steps < facts.total_steps
    why = " because the held-out loss had stopped falling" if facts.stalled and early else ""
    return f"ended at step {facts.steps:,}{of}{why}"
