"""How a run went, in a few sentences: pure, from the lines of its history."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hdet.autolr.choice import Candidate, Choice
from hdet.autolr.prior import likely_rates
from hdet.autolr.rule import DECAYS

__all__ = [
    "Facts",
    "as_float",
    "capital",
    "facts_of",
    "held_out",
    "is_rate",
    "mean_of",
    "number",
    "plural",
    "sentence",
    "share",
    "spoken",
]

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
    plain = 1e-4 <= abs(rounded) < 1e5
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


def spoken(name: Any) -> str:
    """weight_decay and lr/0 as words."""
    return re.sub(r"^lr\b", "learning rate", str(name).replace("_", " "))


def capital(text: str) -> str:
    """With its first letter a capital one."""
    return text[:1].upper() + text[1:]


def is_rate(name: Any) -> bool:
    """Whether a hyperparameter of this name is a learning rate."""
    return str(name).split("/")[0] == "lr"


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

    caller: str = ""
    #: ``"searching"``, ``"decaying"``, ``"training"`` (at a rate that was given) or ``"ended"``.
    state: str = "training"
    searched: bool = False
    #: Of the window whose weights are kept, as ``auto.best.rate``; of a given schedule the highest so far.
    rate: float = math.nan
    #: Where replicas vote on a given schedule: the factor on it.
    factor: float = math.nan
    rate_now: float = math.nan
    others: dict[str, float] = field(default_factory=dict)
    first_loss: float = math.nan
    last_loss: float = math.nan
    best_loss: float = math.nan
    best_step: int | None = None
    #: Whether there is no held-out loss, so that these are training losses.
    training: bool = False
    #: The weights that ``finish_()`` returned.
    kept: Record | None = None
    #: Steps at which a window was rolled back, the search restarted, and returned to the best weights.
    rollbacks: list[int] = field(default_factory=list)
    restarts: list[int] = field(default_factory=list)
    returns: list[int] = field(default_factory=list)
    steps: int = 0
    total_steps: int | None = None
    stalled: bool = False
    replicas: int = 1
    #: Seconds in all, and the share of them that probing and averaging took.
    seconds: float = 0.0
    cost: float = math.nan

    @property
    def ended(self) -> bool:
        """Whether the last step was taken."""
        return self.state == "ended"


def facts_of(lines: Sequence[Record]) -> Facts:
    """From the lines of a history, thinned or not."""
    facts = Facts()
    choice, rates = Choice(), dict[int, float]()
    before = spent = seconds = in_syncs = 0.0  # the first two: of earlier sessions in the same file
    for line in lines:
        kind = line.get("kind")
        if kind == "run":
            facts.caller, facts.total_steps = str(line.get("caller") or ""), line.get("total_steps")
            facts.state, facts.stalled, facts.kept = "training", False, None
            before, spent, seconds, in_syncs = before + seconds, spent + in_syncs, 0.0, 0.0
        elif kind == "end":
            facts.state, facts.steps = "ended", max(facts.steps, line.get("step") or 0)
        elif kind == "handed":
            facts.kept = line.get("weights")
        if kind is not None:
            continue
        facts.steps = line.get("step") or facts.steps
        facts.replicas = max(facts.replicas, len(line.get("losses") or []))
        seconds = as_float(line.get("seconds"), seconds)
        in_syncs = as_float(line.get("sync_seconds"), in_syncs)
        _take_setbacks(facts, line)
        _take_values(facts, line, rates)
        choice = _take_losses(facts, line, choice)
    facts.seconds = before + seconds
    if facts.seconds > 0:
        facts.cost = (spent + in_syncs) / facts.seconds
    if facts.total_steps is not None and facts.steps >= facts.total_steps:
        facts.state = "ended"
    if facts.searched:
        facts.rate = _kept_rate(facts, choice, rates)
    return facts


def _kept_rate(facts: Facts, choice: Choice, rates: dict[int, float]) -> float:
    """As told; else that of the window which the same choice would keep."""
    told = as_float((facts.kept or {}).get("rate"))
    if math.isfinite(told) or choice.kept is None:
        return told
    return rates.get(choice.kept.step, math.nan)


def _take_setbacks(facts: Facts, line: Record) -> None:
    for event in map(str, line.get("events") or []):
        facts.stalled |= "nothing has improved since step" in event
        if "nothing better since step" in event:
            (facts.restarts if "from the beginning" in event else facts.returns).append(facts.steps)
    if any(seen.get("action") == "back" for seen in line.get("horizon") or []):
        facts.rollbacks.append(facts.steps)


def _take_values(facts: Facts, line: Record, rates: dict[int, float]) -> None:
    """Every value, and for each step the learning rate of its window, before the schedule's decay."""
    horizon, plain = line.get("horizon") or [], line.get("plain") or {}
    used, now, factors = list[float](), list[float](), list[float]()
    for seen in line.get("hyperparameters") or []:
        name, value = seen.get("name"), as_float(seen.get("base_after"))
        if not is_rate(name):
            facts.others[str(name)] = value
            continue
        used.append(as_float(seen.get("base_before")))
        now.append(value)
        if plain.get(name):
            factors.append(value / plain[name])
    if not used:
        return
    facts.rate_now, rate = max(now), max(used)
    decays = any(seen.get("why") == DECAYS for seen in horizon)
    if horizon:
        facts.searched = True
        last = list(rates.values())[-1] if rates else math.nan
        rates[facts.steps] = last if decays else rate
    else:
        facts.rate = max(rate, facts.rate) if math.isfinite(facts.rate) else rate
        facts.factor = max(factors, default=math.nan)
    facts.state = "decaying" if decays else "searching" if horizon else "training"


def _take_losses(facts: Facts, line: Record, choice: Choice) -> Choice:
    horizon, mean = line.get("horizon") or [], held_out(line)
    if not horizon:
        facts.training = math.isnan(mean)
        mean = mean_of(line.get("losses")) if facts.training else mean
    if math.isnan(facts.first_loss):
        before = as_float(horizon[0].get("loss_previous")) if horizon else math.nan
        facts.first_loss = mean if math.isnan(before) else before
    if not math.isfinite(mean) or any(seen.get("action") == "back" for seen in horizon):
        return choice
    facts.last_loss = mean
    if not mean >= facts.best_loss:
        facts.best_loss, facts.best_step = mean, facts.steps
    start = any(seen.get("action") == "scale" for seen in horizon)
    if start and choice.kept is not None:
        return choice
    return choice.offered(Candidate(0 if start else facts.steps, "mean", (mean,)))[0]


def sentence(facts: Facts) -> str:
    """What was found, what was returned, what went wrong, why it ended and what it cost."""
    if not facts.steps:
        return "Nothing has been measured yet."
    parts = [_rate(facts), _loss(facts), _returned(facts), _setbacks(facts), _end(facts)]
    if math.isfinite(facts.cost):
        what = "Probing, averaging and waiting for one another" if facts.replicas > 1 else "Probing"
        parts.append(f"{what} took {share(facts.cost)} of the time")
    return ". ".join(part for part in parts if part) + "."


def _rate(facts: Facts) -> str:
    others = "".join(f", {spoken(name)} {number(value, 2)}" for name, value in facts.others.items())
    if not facts.ended:
        doing = f"{capital(facts.state)}: step {facts.steps:,}"
        doing += "" if facts.total_steps is None else f" of {facts.total_steps:,}"
        rate = number(facts.rate_now, 2)
        return doing + ("" if rate == "–" else f", the learning rate is {rate} now{others}")
    if not facts.searched:
        if math.isfinite(facts.factor):
            return f"The learning rate ended at {number(facts.factor)} times the given schedule's{others}"
        given = number(facts.rate, 2)
        return "" if given == "–" else f"The learning rate was given: {given} at its highest{others}"
    if not math.isfinite(facts.rate):
        return f"Found no learning rate{others}"
    low, high = likely_rates(facts.rate)
    return (
        f"Found a learning rate of {number(facts.rate, 2)}, the best probably between {number(low, 1)} and "
        f"{number(high, 1)}{others}"
    )


def _loss(facts: Facts) -> str:
    if not math.isfinite(facts.last_loss):
        return "No loss was finite"
    name = "The training loss" if facts.training else "The held-out loss"
    text = f"{name} went from {number(facts.first_loss)} to {number(facts.last_loss)}"
    if facts.best_step is not None and facts.best_loss < facts.last_loss:
        text += f"; its lowest was {number(facts.best_loss)}, at step {facts.best_step:,}"
    return text


#: What is returned, by ``Best.kind``.
_KINDS = {
    "mean": "the window average at step {}",
    "end": "the final weights, of step {}",
    "start": "the initial weights",
}


def _returned(facts: Facts) -> str:
    if facts.kept is None:
        return ""
    kind = _KINDS.get(str(facts.kept.get("kind")), "the weights of step {}")
    step = f"{facts.kept.get('step') or 0:,}"
    text = f"finish_() returned {kind.format(step)}"
    if not math.isfinite(as_float(facts.kept.get("estimate"))):
        return text
    error = as_float(facts.kept.get("error"))
    around = f" ± {number(error, 2)}" if math.isfinite(error) else ""
    return f"{text}: estimated loss {number(facts.kept['estimate'])}{around}"


def _setbacks(facts: Facts) -> str:
    told = [
        f"{verb} {_times(len(steps))} (step{'s' if len(steps) > 1 else ''} {_listed(steps)})"
        for verb, steps in (
            ("rolled a window back", facts.rollbacks),
            ("went back to the best weights", facts.returns),
            ("restarted from the beginning", facts.restarts),
        )
        if steps
    ]
    if not told:
        return "No rollback, no restart" if facts.searched else ""
    return f"It {' and '.join([', '.join(told[:-1]), told[-1]] if told[1:] else told)}"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def _listed(steps: Sequence[int]) -> str:
    shown = [f"{step:,}" for step in steps[:5]] + (["…"] if len(steps) > 5 else [])
    return ", ".join(shown)


def _end(facts: Facts) -> str:
    if not facts.ended:
        return ""
    if facts.total_steps is None or facts.steps >= facts.total_steps:
        return f"Ended at step {facts.steps:,}"
    why = ", because the held-out loss had stopped falling" if facts.stalled else ""
    return f"Ended at step {facts.steps:,} of {facts.total_steps:,}{why}"
