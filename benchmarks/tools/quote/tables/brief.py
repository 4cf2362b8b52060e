"""The excess of every method in a line each: what a stranger reads first.

Losses stand beside wins: the worst line of every method by its name, and below the table every line on which
AutoLR is not the best.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.regret.analysis import COLUMNS, digits
from benchmarks.regret.excess import excess_of, name_of
from benchmarks.tools.quote.tables.grid import markdown

__all__ = ["OPTIMIZERS", "WORKLOADS", "brief", "called", "known", "methods"]

#: The tasks in words of their own.
WORKLOADS = {
    "charlm": "characters",
    "sentences": "sentences, few",
    "bikes": "raw counts",
    "ratings": "watch times",
    "wordlm": "words, many epochs",
    "few-images": "fine-tuning, few images",
    "diffusion": "denoising",
    "vae": "autoencoder",
    "charlm-tuned": "fine-tuning, text",
    "charlm-lora": "LoRA, text",
}
OPTIMIZERS = {"adamw": "AdamW", "sgd": "SGD"}
_HEADINGS = [
    "one run, no rate given",
    "mean excess (median), %",
    "worst, %, and where",
    "best of all on",
    "diverged, or worse than untrained",
]


def brief(result: dict[str, Any]) -> str:
    """A line for each method, AutoLR first, and where AutoLR loses."""
    pairs = result["excess"]["pairs"]
    arms = methods(pairs)
    best = {name_of(pair): min(known(pair), key=lambda arm: known(pair)[arm]) for pair in pairs}
    rows = []
    for arm in arms:
        mine = {name_of(pair): known(pair)[arm] for pair in pairs if arm in known(pair)}
        worst = max(mine, key=lambda name: mine[name])
        lost = _lost(result, arm) & mine.keys()
        cells = [
            f"{_digits(statistics.fmean(mine.values()))} ({_digits(statistics.median(mine.values()))})",
            f"{_digits(mine[worst])}, {_named(worst, pairs)}",
            f"{sum(first == arm for first in best.values())} of {len(mine)}",
            f"{len(lost)} of {len(mine)}",
        ]
        name = COLUMNS[arm]
        rows.append([f"**{name}**" if arm == "autolr" else name, *cells])
    return f"{markdown(_HEADINGS, rows)}\n\n{_notes(pairs, best)}"


def methods(pairs: list[dict[str, Any]]) -> list[str]:
    """The arms that are compared, AutoLR first."""
    shown = [arm for arm in COLUMNS if any(arm in known(pair) for pair in pairs)]
    return sorted(shown, key=lambda arm: arm != "autolr")


def called(pair: Mapping[str, Any]) -> str:
    """A workload and its optimizer in words."""
    workload, optimizer = pair["workload"], pair["optimizer"]
    return f"{WORKLOADS.get(workload, workload)}, {OPTIMIZERS.get(optimizer, optimizer)}"


def _notes(pairs: list[dict[str, Any]], best: Mapping[str, str]) -> str:
    behind = [
        _lost_line(pair, best[name_of(pair)])
        for pair in pairs
        if best[name_of(pair)] != "autolr" and "autolr" in known(pair)
    ]
    kinds = len({pair["workload"] for pair in pairs})
    optimizers = " and ".join(
        OPTIMIZERS.get(one, one) for one in dict.fromkeys(p["optimizer"] for p in pairs)
    )
    notes = [
        f"{len(pairs)} lines: {kinds} kinds of training, each with {optimizers}. Excess is the held-out loss "
        "over that of a tuned sweep, L/L_tuned − 1; every method and the sweep choose their best weights by "
        "the same held-out batches. The last column is of runs as they end.",
        f"**AutoLR loses** on {'; '.join(behind)}." if behind else "AutoLR is the best on every line.",
    ]
    if partly := [arm for arm in methods(pairs) if sum(arm in known(pair) for pair in pairs) < len(pairs)]:
        names = " and ".join(COLUMNS[arm] for arm in partly)
        same = [known(pair)["autolr"] for pair in pairs if all(arm in known(pair) for arm in partly)]
        notes.append(
            f"{names} have no variant of SGD; on their {len(same)} lines AutoLR's mean is "
            f"{digits(statistics.fmean(same))} %."
        )
    seeds = sorted({cells["chosen"]["seeds"] for pair in pairs for cells in pair["arms"].values()})
    notes.append(f"AutoLR has three seeds, others {' to '.join(map(str, seeds))}.")
    return " ".join(notes)


def _lost_line(pair: Mapping[str, Any], first: str) -> str:
    """What AutoLR has there, what the best has, and how many more are ahead of AutoLR."""
    values = known(pair)
    more = sum(value < values["autolr"] for value in values.values()) - 1
    others = f", and {more} more ahead" if more else ""
    by = f"{digits(values[first])} by {COLUMNS[first]}"
    return f"{called(pair)} ({digits(values['autolr'])} against {by}{others})"


def known(pair: Mapping[str, Any]) -> dict[str, float]:
    """The excess of every method that has one, chosen over chosen; infinite where a loss is not finite."""
    found = {arm: excess_of(pair, arm, "chosen") for arm in COLUMNS if arm in pair["arms"]}
    return {arm: value for arm, value in found.items() if not math.isnan(value)}


def _lost(result: Mapping[str, Any], arm: str) -> set[str]:
    """The lines on which a run of ``arm`` ended not finite, or above the loss that it began with."""
    rows = [dict(zip(result["runs"]["header"], row, strict=True)) for row in result["runs"]["rows"]]
    return {
        name_of(row)
        for row in rows
        if row["arm"] == arm
        and (row["diverged"] or row["held_out"] is None or not row["held_out"] <= row["init"])
    }


def _named(name: str, pairs: list[dict[str, Any]]) -> str:
    return next(called(pair) for pair in pairs if name_of(pair) == name)


def _digits(value: float) -> str:
    return digits(value) if math.isfinite(value) else "∞"
