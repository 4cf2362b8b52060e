"""What the page draws of runs that are compared: pure, from their lines to series of numbers.

A chart is a title, a caption of what it draws, and series; ``assets/page.js`` draws any of them. A
series has the colour of its run, whatever else is shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

from hdet.autolr.rule import DECAYS
from hdet.report.alerts import Alert, alerts_of
from hdet.report.verdict import Facts, Record, as_float, capital, held_out, is_rate, mean_of, number, spoken

__all__ = ["Run", "charts", "decisions"]

Chart = dict[str, Any]
Series = dict[str, Any]
_MOST_REPLICAS = 16
#: A learning rate is drawn down to so small a part of the highest.
_DECADES = 2e4


@dataclass(frozen=True)
class Run:
    """One run on the page; its number gives it its colour."""

    index: int
    name: str
    facts: Facts
    lines: Sequence[Record]

    @cached_property
    def syncs(self) -> list[Record]:
        """The lines that are no notes."""
        return [line for line in self.lines if "kind" not in line and line.get("step") is not None]

    @cached_property
    def rate_name(self) -> str:
        """Of the first learning rate; groups of one optimizer move together."""
        found = (v.get("name") for sync in self.syncs for v in sync.get("hyperparameters") or [])
        return next((str(name) for name in found if is_rate(name)), "lr/0")

    @cached_property
    def reasons(self) -> list[str]:
        """What each sync decided of that rate, and why."""
        return [words(sync, self.rate_name) for sync in self.syncs]

    @cached_property
    def alerts(self) -> list[Alert]:
        """All of them, in order."""
        return alerts_of(self.lines)

    def series(self, name: str, points: Sequence[tuple[float, float]], **more: Any) -> Series:
        """Points as a line of this run's. What is not finite is a gap, and so is a step back in time."""
        x: list[float | None] = []
        y: list[float | None] = []
        for step, value in points:
            if x and (x[-1] or 0) > step:
                x.append(step)
                y.append(None)
            x.append(step)
            y.append(value if math.isfinite(value) else None)
        label = name if name == self.name else f"{self.name}: {name}"
        return {"run": self.index, "name": label, "x": x, "y": y, **more}


def charts(runs: Sequence[Run]) -> list[Chart]:
    """All charts that runs of one task have something for; their axes of steps are the same."""
    last = max((max(run.facts.steps, run.facts.total_steps or 0) for run in runs), default=0)
    found = [_losses(runs), _rates(runs), _lags(runs), *_values(runs)]
    found += [chart for run in runs for chart in (_fan_out(run), _replica_losses(run))]
    return [
        {**chart, "last": last, "caption": " ".join(filter(None, chart["caption"]))}
        for chart in found
        if any(isinstance(y, float) for series in chart["series"] for y in series["y"])
    ]


# ---------------------------------------------------------------------- comparing runs


def _losses(runs: Sequence[Run]) -> Chart:
    """Held-out losses; where no run has one, training losses: the two never share an axis."""
    training = all(run.facts.training for run in runs)
    read: Callable[[Record], float] = (lambda s: mean_of(s.get("losses"))) if training else held_out
    series, kept, setbacks = [], False, False
    for run in runs:
        if run.facts.training and not training:
            continue
        series.append(run.series(run.name, [(s["step"], read(s)) for s in run.syncs if not _is_back(s)]))
        at = _kept_at(run)
        back = {*run.facts.rollbacks, *run.facts.restarts, *run.facts.returns}
        for mark, steps in (("kept", {at}), ("back", back)):
            loss = partial(_kept_loss, run) if mark == "kept" else _loss_before
            points = [(s["step"], loss(s, read)) for s in run.syncs if s["step"] in steps]
            if points:
                why = "returned by finish_()" if mark == "kept" else ""
                notes = [why or "; ".join(map(str, _events_of(s))) for s in run.syncs if s["step"] in steps]
                series.append(run.series(run.name, points, mark=mark, notes=notes))
                kept, setbacks = kept or mark == "kept", setbacks or mark == "back"
    if len(runs) == 1 and not training:
        series += _within(runs[0])
    unit = "training loss" if training else "held-out loss"
    caption = [
        _searched(runs, "each point is the average of a window's weights."),
        "The ring: the weights that were returned." if kept else "",
        "Crosses: rollbacks and restarts." if setbacks else "",
        "Dotted: the last weights of each window; the gap above the line is noise, which the decay removes."
        if any(one.get("style") == "dotted" for one in series)
        else "",
        "Dashed: the training loss." if any(one.get("style") == "dashed" for one in series) else "",
    ]
    return {"title": capital(unit), "series": series, "caption": caption}


def _searched(runs: Sequence[Run], text: str) -> str:
    """What holds only for runs that search, with their names where others are drawn beside them."""
    names = [run.name for run in runs if run.facts.searched]
    return capital(text) if len(names) == len(runs) else f"{', '.join(names)}: {text}" if names else ""


def _within(run: Run) -> Iterator[Series]:
    ends = [(s["step"], as_float(_seen(s).get("loss_end"))) for s in run.syncs]
    if any(math.isfinite(y) for _, y in ends):
        yield run.series("last weights", ends, style="dotted")
    training = [(s["step"], mean_of(s.get("losses"))) for s in run.syncs]
    if any(math.isfinite(y) for _, y in training):
        yield run.series("training", training, style="dashed")


def _rates(runs: Sequence[Run]) -> Chart:
    """What was used, from each decision to the next; why it was decided, on hover."""
    series = []
    for run in runs:
        name, points, notes = run.rate_name, list[tuple[float, float]](), list[str]()
        for sync, why in zip(run.syncs, run.reasons, strict=True):
            seen = _value(sync, name)
            before, after = (_positive(seen.get(key)) for key in ("base_before", "base_after"))
            after = before if math.isnan(after) else after
            points += [(points[-1][0] if points else 0, before)] * (not points)
            points += [(sync["step"], before), (sync["step"], after)]
            notes += [""] * (not notes) + ["", why]
        series.append(run.series(run.name, points, notes=notes))
        at = _kept_at(run)
        full = [s["step"] for s in run.syncs if _seen(s).get("why") != DECAYS and at and s["step"] <= at]
        if full and math.isfinite(run.facts.rate):
            found = [(full[-1], run.facts.rate)]
            series.append(run.series(run.name, found, mark="kept", notes=["the learning rate found"]))
    marked = any("mark" in one for one in series)
    caption = [
        _searched(runs, "each step of the line is a decision; hover for its reason."),
        "The ring: the rate found, of the window whose weights were returned." if marked else "",
    ]
    # A schedule that ends at next to nothing leaves the others no room.
    least = max((y for one in series for y in one["y"] if y is not None), default=0.0) / _DECADES
    for one in series:
        one["y"] = [None if y is None or y < least else y for y in one["y"]]
    return {"title": "Learning rate", "log": True, "series": series, "caption": caption}


def _lags(runs: Sequence[Run]) -> Chart:
    """Cut at three times what is tolerated: one window's division by next to nothing says no more."""
    series = []
    for run in runs:
        tolerated = [(s["step"], as_float(_seen(s).get("tolerated"))) for s in run.syncs]
        top = 3 * max([1.0, *(y for _, y in tolerated if math.isfinite(y))])
        lag = [(s["step"], as_float(_seen(s).get("lag"))) for s in run.syncs]
        if any(math.isfinite(y) for _, y in lag):
            cut = [(x, max(-top, min(top, y)) if math.isfinite(y) else y) for x, y in lag]
            series += [run.series("lag", cut), run.series("tolerated", tolerated, style="dashed")]
    caption = "How many windows of progress the noise throws the run back. Dashed: what is tolerated."
    return {"title": "Lag", "series": series, "caption": [caption]}


def _values(runs: Sequence[Run]) -> Iterator[Chart]:
    names = dict.fromkeys(name for run in runs for name in run.facts.others)
    for name in list(names)[:8]:
        series, banded = list[Series](), False
        for run in runs:
            seen = [(s["step"], _value(s, name)) for s in run.syncs]
            lows, highs = (
                [(x, pick(_list(v, "values"), default=math.nan)) for x, v in seen] for pick in (min, max)
            )
            if any(low != high for (_, low), (_, high) in zip(lows, highs, strict=True) if low == low):
                low, banded = run.series("replicas", lows), True
                series.append(run.series("replicas", highs, style="band", low=low["y"]))
            base = [(x, as_float(v.get("base_after"))) for x, v in seen]
            series.append(run.series(run.name, base, notes=[words(s, name) for s in run.syncs]))
        caption = ["The value that all share.", "The band: where replicas lay." if banded else ""]
        yield {"title": capital(spoken(name)), "series": series, "caption": caption}


# ---------------------------------------------------------------------- replicas of one run


def _fan_out(run: Run) -> Chart:
    """From the base to its own rate and back: lines that meet show where the replicas are averaged."""
    name, series = run.rate_name, list[Series]()
    rates = [(s["step"], _value(s, name)) for s in run.syncs]
    if any(len({*_list(v, "values")}) > 1 for _, v in rates):
        for replica in range(min(run.facts.replicas, _MOST_REPLICAS)):
            points, before, base = list[tuple[float, float]](), 0, math.nan
            for step, seen in rates:
                own = [*_list(seen, "values"), *[math.nan] * _MOST_REPLICAS][replica]
                now = as_float(seen.get("base_before"))
                start, begin = (base if math.isfinite(base) else now), min(before, step)
                for part, factor in (
                    ((0.0, 1.0), (0.1, own / now), (0.9, own / now), (1.0, 1.0)) if now else ()
                ):
                    points.append((begin + part * (step - begin), (start + part * (now - start)) * factor))
                before, base = step, as_float(seen.get("base_after"))
            faint = 1 - 0.7 * replica / max(1, run.facts.replicas - 1)
            series.append(run.series(f"replica {replica}", points, opacity=faint))
    caption = ["Replicas fan out around the base rate, and are averaged where the lines meet."]
    title = f"Replicas' learning rates: {run.name}"
    return {"title": title, "log": False, "series": series, "caption": caption}


def _replica_losses(run: Run) -> Chart:
    size = min(run.facts.replicas, _MOST_REPLICAS)
    of = "held_out" if any(len(_list(s, "held_out")) > 1 for s in run.syncs) else "losses"
    losses = [_list(sync, of) for sync in run.syncs] if size > 1 else []
    means = [mean_of([loss for loss in row if math.isfinite(loss)]) for row in losses]
    series = []
    for replica in range(size if size > 1 else 0):
        points = [
            (sync["step"], row[replica] - mean if replica < len(row) else math.nan)
            for sync, row, mean in zip(run.syncs, losses, means, strict=True)
        ]
        faint = 1 - 0.7 * replica / (size - 1)
        series.append(run.series(f"replica {replica}", points, opacity=faint))
    kind = "held-out" if of == "held_out" else "training"
    title, caption = f"Replicas' losses: {run.name}", f"Each replica's {kind} loss, less the mean of all."
    return {"title": title, "series": series, "caption": [caption]}


# ---------------------------------------------------------------------- words of decisions

#: Why a window says nothing for or against the rate.
_UNSEEN = {
    "not significant": "what was seen is within the probe's noise",
    "no progress": "the averaged weights made no progress",
    "nothing learnt": "the probe's loss has not clearly fallen yet",
    "one sample": "the probe has one sample, which says nothing",
}


def decisions(run: Run) -> Iterator[tuple[int, float, str]]:
    """Every step at which something was decided, its loss, and what was decided and why."""
    for sync, why in zip(run.syncs, run.reasons, strict=True):
        loss = held_out(sync)
        loss = loss if math.isfinite(loss) else mean_of(sync.get("losses"))
        for seen in sync.get("hyperparameters") or []:
            name = str(seen.get("name"))
            if (sync.get("horizon") and name == run.rate_name) or (
                not (sync.get("horizon") and is_rate(name))
                and seen.get("base_before") != seen.get("base_after")
            ):
                yield sync["step"], loss, why if name == run.rate_name else words(sync, name)


def words(sync: Record, name: str) -> str:
    """What one sync decided of a hyperparameter, and why."""
    value = _value(sync, name)
    seen, before, after = _seen(sync), number(value.get("base_before"), 2), number(value.get("base_after"), 2)
    moved = f", from {before} to {after}" if "–" not in (before, after) else ""
    if not (seen and is_rate(name)):
        slope = as_float(value.get("slope"))
        why = f"; slope {number(slope)} ± {number(value.get('error'), 2)}" if math.isfinite(slope) else ""
        return f"{capital(spoken(name))}{moved}{why}." if moved else ""
    again = "; ".join(map(str, _events_of(sync)))
    if "nothing better since step" in again:
        return f"{capital(again)}."
    action, why = str(seen.get("action")), str(seen.get("why") or "")
    if action == "scale":
        hardly = why in ("hardly moved", "rounded away")
        return (
            f"The weights {'hardly moved' if hardly else 'are brought up to speed'}: the rate rises{moved}."
        )
    if action == "back":
        return f"Rollback to the start of the window, at a lower rate: {why or 'the loss rose'}."
    if action in ("up", "down"):
        return f"The rate {'rises' if action == 'up' else 'falls'}{moved}{_because(seen, action, why)}."
    if why in _UNSEEN:
        return f"The rate stays: {_UNSEEN[why]}."
    return f"The rate stays{f': {why}' if why else ''}."


def _because(seen: Record, action: str, why: str) -> str:
    """By evidence; or toward the usual rate where there is none, or too little."""
    if why in _UNSEEN:
        return f", toward the usual rate: {_UNSEEN[why]}"
    lag, tolerated = as_float(seen.get("lag")), as_float(seen.get("tolerated"))
    if not (math.isfinite(lag) and math.isfinite(tolerated)):
        return f": {why}" if why else ""
    text, up = f"the lag is {number(lag)} and {number(tolerated)} is tolerated", action == "up"
    if (lag < tolerated) == up:
        return f": {text}, so {'the rate' if up else 'noise'} is what limits progress"
    return f": the usual rate is {'higher' if up else 'lower'}, and the lag says too little ({text})"


# ---------------------------------------------------------------------- reading a line


def _seen(sync: Record) -> Record:
    horizon: list[Record] = sync.get("horizon") or [{}]
    return horizon[0]


def _value(sync: Record, name: str) -> Record:
    return next((v for v in sync.get("hyperparameters") or [] if str(v.get("name")) == name), {})


def _list(of: Record, key: str) -> list[float]:
    values = of.get(key)
    return [as_float(value) for value in values] if isinstance(values, list) else []


def _events_of(sync: Record) -> list[Any]:
    return sync.get("events") or []


def _is_back(sync: Record) -> bool:
    return _seen(sync).get("action") == "back"


def _kept_loss(run: Run, sync: Record, read: Callable[[Record], float]) -> float:
    """Of the last weights, where those were returned and not their average."""
    end = as_float(_seen(sync).get("loss_end"))
    return end if (run.facts.kept or {}).get("kind") == "end" and math.isfinite(end) else read(sync)


def _loss_before(sync: Record, read: Callable[[Record], float]) -> float:
    """Of a window that diverged, the loss before it, which is on the scale."""
    return as_float(_seen(sync).get("loss_previous")) if _is_back(sync) else read(sync)


def _kept_at(run: Run) -> int | None:
    return None if run.facts.kept is None else run.facts.kept.get("step")


def _positive(value: Any) -> float:
    value = as_float(value)
    return value if value > 0 else math.nan
