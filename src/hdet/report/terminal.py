"""A run in a terminal: the verdict, losses and rates as a line of blocks, the latest alerts. Pure text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hdet.report.alerts import Alert, Alerts
from hdet.report.verdict import facts_of, sentence
from hdet.report.words import count, number

__all__ = ["drawn", "sparkline", "summary"]

_BLOCKS = "▁▂▃▄▅▆▇█"
_SHOWN_ALERTS = 5


def sparkline(values: Sequence[Any], width: int = 50, *, log: bool = False) -> str:
    """A line of blocks, low to high; what is not finite is a gap.

    >>> sparkline([1, 2, None, 8], log=True)
    '▁▃ █'
    """
    every = max(1, math.ceil(len(values) / width))
    shown = [_scaled(value, log=log) for value in values[(len(values) - 1) % every :: every]]
    known = [value for value in shown if math.isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    step = (high - low) / (len(_BLOCKS) - 1) or 1.0
    return "".join(_BLOCKS[round((v - low) / step)] if math.isfinite(v) else " " for v in shown)


def _scaled(value: Any, *, log: bool) -> float:
    if not isinstance(value, (int, float)):
        return math.nan
    if not log:
        return float(value)
    return math.log(value) if value > 0 else math.nan


def drawn(name: str, lines: Sequence[dict[str, Any]], alerts: Sequence[Alert], width: int = 78) -> str:
    """A screen of a run."""
    syncs = [line for line in lines if "kind" not in line]
    rows = [f"{name}: {sentence(facts_of(lines))}"]
    rates = [_first(sync.get("hyperparameters"), "base_after") for sync in syncs]
    losses = [_first(sync.get("horizon"), "loss_mean", sync.get("held_out_mean")) for sync in syncs]
    if not any(isinstance(loss, float) for loss in losses):
        losses = [_mean(sync.get("losses")) for sync in syncs]
    for label, series, log in (("rate", rates, True), ("loss", losses, False)):
        if syncs:
            rows.append(f"  {label}  {sparkline(series, width - 20, log=log)}  {number(series[-1])}")
    for alert in alerts[-_SHOWN_ALERTS:]:
        step = "" if alert.step is None else f"step {count(alert.step)}: "
        rows.append(f"  {alert.level}: {step}{alert.kind}: {alert.text}")
    return "\n".join(rows)


def summary(name: str, lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A verdict and all alerts, as plain values."""
    alerts = Alerts()
    found = [alert.as_dict() for line in lines for alert in alerts.see(line)]
    return {"run": name, "verdict": sentence(facts_of(lines)), "alerts": found}


def _first(items: Any, key: str, otherwise: Any = None) -> Any:
    return items[0].get(key) if items else otherwise


def _mean(values: Any) -> float | None:
    known = [value for value in values or [] if isinstance(value, (int, float))]
    return math.fsum(known) / len(known) if known else None
