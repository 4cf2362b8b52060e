"""What of the paper holds, study by study, as tables of docs/evidence/paper.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.tools.quote.tables.grid import markdown, signed

__all__ = ["edge", "large"]

Line = Mapping[str, Any]
_COURSES = {"digits": "digits", "kuairand": "KuaiRand"}


def edge(result: dict[str, Any]) -> str:
    """How far each arm moves the rate at which training crashes."""
    rows, plain = [], []
    courses = {name: told for name, told in result["edge"].items() if name != "cells"}
    for name, told in courses.items():
        for arm, line in told["shifts"].items():
            counts = f"{line['crashed']} of {line['runs']}"
            moved, interval = "–", "–"
            if arm == "plain":
                plain.append(f"{line['edge']:.2g} ({_COURSES[name]})")
            else:
                moved = _share(line["shift"])
                interval = f"{_share(line['low'])} to {_share(line['high'])}"
            rows.append([_COURSES[name], arm, counts, moved, interval])
    seeds = next(iter(courses.values()))["seeds"]
    note = (
        f"Half of the plain runs crash at {' and '.join(plain)}. All arms are run at the same eight rates "
        f"around it, with the same {seeds} seeds; the interval is of 95 %, by resampling seeds."
    )
    return f"{markdown(['course', 'arm', 'crashed', 'edge moves by, %', 'interval, %'], rows)}\n\n{note}"


def large(result: dict[str, Any]) -> str:
    """The same at a larger size, from one checkpoint a seed."""
    told = result["large"]
    training, held_out = (
        {line["arm"]: line for line in told[kind]} for kind in ("training loss", "held out")
    )
    rows = [
        [arm, _difference(training.get(arm)), _difference(held_out.get(arm)), f"{auc:.4f}", f"{ne:.4f}"]
        for arm, auc, ne in ((arm, told["auc"][arm], told["ne"][arm]) for arm in told["auc"])
    ]
    cell = told["cells"][0]
    note = (
        f"{cell['weights']:,} weights, {cell['steps']:,} steps, {cell['seeds']} seeds; losses over plain's."
    )
    return f"{markdown(['arm', 'training loss, %', 'held-out loss, %', 'AUC', 'NE'], rows)}\n\n{note}"


def _difference(line: Line | None) -> str:
    if line is None or line["mean"] is None:
        return ""
    return f"{signed(100 * line['mean'], '.2f')} ± {100 * line['half']:.2f}"


def _share(value: float) -> str:
    return signed(100 * value, ".1f")
