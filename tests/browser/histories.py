"""Histories to be drawn: as runs leave them, and as crashes, odd numbers and bad intentions do."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

#: Shown as text, each of them; run, none of them.
HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    '<img src=x onerror="window.hacked = 1">',
    "<b>bold</b> & 'quoted' \"double\" `${1}` \u2028",
)


def opening(**more: Any) -> dict[str, Any]:
    return {
        "kind": "run",
        "caller": "AutoTune",
        "total_steps": 2000,
        "replicas": 4,
        "explored": {"weight_decay": [0.0, 10.0]},
        "id": "0123456789ab",
        "began": "2026-11-16T10:00:00+00:00",
        "optimizer": "AdamW",
        "parameters": 12345,
        "device": "cpu",
        "configuration": {"seed": "0"},
        "versions": {"hdet": "0.1.0", "torch": "2.13.0"},
        "platform": "Linux",
        "command": "train.py --steps 2000",
        **more,
    }


def sync(i: int, *, every: int = 10, **more: Any) -> dict[str, Any]:
    """The i-th sync of a run of four replicas that has everything in it."""
    step = every * (i + 1)
    rate = 1e-5 * 1.4 ** min(i, 20)
    decay = 0.01 * 1.05 ** min(i, 60)
    loss = 0.5 + 2 * math.exp(-i / 12) + 0.02 * math.sin(i)
    levels = [((r + i) % 4 - 1.5) / 1.5 for r in range(4)]
    explored = [
        _value("lr/0", [rate] * 4, rate, rate * 1.4 if i < 20 else rate),
        _value(
            "weight_decay", [decay * math.exp(0.5 * z) for z in levels], decay, decay * 1.05, -0.002, 0.001
        ),
    ]
    seen = {"name": "lr", "action": "up" if i < 20 else "hold", "speed": 2.0, "lag": 0.1 * i - 1}
    seen |= {"tolerated": 2.5, "gap": 0.01, "progress": 0.1, "why": "" if i < 20 else "no progress"}
    seen |= {"loss_previous": loss + 0.1, "loss_mean": loss, "loss_end": loss + 0.03}
    return {
        "step": step,
        "round": i,
        "losses": [loss - 0.05 + 0.01 * z for z in levels],
        "weights": [],
        "hyperparameters": explored,
        "distance_measured": [0.1, 0.2, 0.15, 0.1],
        "distance_predicted": [0.1, 0.21, 0.15, 0.1],
        "milliseconds": 12.5,
        "events": [],
        "horizon": [seen],
        "held_out": [loss + 0.01 * z for z in levels],
        "held_out_mean": loss,
        "seconds": 0.1 * (i + 1),
        "sync_seconds": 0.0124 * (i + 1),
        "memory_bytes": {"process": 4e8, "device": 2e9},
        "plain": {"lr/0": 1.0},
        **more,
    }


def _value(name: str, values: list[float], before: float, after: float, *slope: float) -> dict[str, Any]:
    found = {"slope": slope[0], "error": slope[1]} if slope else {"slope": None, "error": None}
    known = {"multipliers": [1.0] * 4, "delta": 0.0, "velocity": 0.0, "spread": 0.5}
    return {"name": name, "values": values, "base_before": before, "base_after": after, **known, **found}


def rollback(i: int) -> dict[str, Any]:
    seen = {**sync(i)["horizon"][0], "action": "back", "why": "the loss rose along the window"}
    seen |= {"loss_mean": 2.9, "loss_end": 3.1}
    text = "the probe's loss rose from 1.1 to 2.9: back to the weights of step 90, learning rate times 0.33"
    return sync(i, horizon=[seen], events=[text])


def whole() -> list[dict[str, Any]]:
    """A run with a rollback, a warning, an early end and the weights that were kept."""
    lines = [opening(), *(rollback(i) if i == 9 else sync(i) for i in range(80))]
    lines.insert(
        30,
        {
            "kind": "said",
            "level": "warning",
            "text": "step() was called although the optimizer has "
            "not stepped since the last call: it does not count",
        },
    )
    lines[-1] = sync(79, events=["nothing has improved since step 700"])
    kept = {"step": 700, "kind": "mean", "loss": 0.5, "estimate": 0.51, "error": 0.012}
    return [*lines, {"kind": "end", "step": 800}, {"kind": "handed", "weights": kept}]


def fanned_out(rounds: int = 40) -> list[dict[str, Any]]:
    """OneCycleAutoLR on four replicas: rates a ninth around a base, who has which changes."""
    lines = [opening(caller="OneCycleAutoLR", explored={}, total_steps=10 * rounds)]
    for i in range(rounds):
        base = 1e-3 * (1 - math.cos(math.pi * (i + 1) / rounds)) / 2
        multipliers = [1 + ((r + i) % 4 - 1.5) / 13.5 for r in range(4)]
        rate = _value("lr/0", [base * rho for rho in multipliers], base, 1.01 * base)
        rate["multipliers"] = multipliers
        lines.append(sync(i, hyperparameters=[rate], horizon=[], held_out=[], plain={"lr/0": base}))
    return lines


def nothing_finite() -> list[dict[str, Any]]:
    """Every number a null, as NaN is written."""

    def lost(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k: lost(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [lost(v, key) for v in value]
        return None if isinstance(value, float) else value

    return [sync(0), *(lost(sync(i)) for i in range(1, 6)), sync(6), lost(sync(7))]


def hostile() -> list[dict[str, Any]]:
    """Every string that a user could have a hand in."""
    lines = [
        opening(command=HOSTILE[0], caller=HOSTILE[1], configuration={HOSTILE[1]: HOSTILE[2]}),
        {"kind": "said", "level": HOSTILE[1], "text": HOSTILE[1]},
    ]
    for i in range(5):
        record = sync(i, events=list(HOSTILE))
        record["hyperparameters"][1]["name"] = HOSTILE[1]
        record["horizon"][0] |= {"why": HOSTILE[2], "action": "hold", "name": HOSTILE[0]}
        lines.append(record)
    return lines


def save(path: Path, lines: list[dict[str, Any]], *, torn: bool = False) -> Path:
    text = "".join(json.dumps(line) + "\n" for line in lines)
    path.write_text(text[:-40] if torn else text, encoding="utf-8")
    return path
