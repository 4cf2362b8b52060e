"""What of the paper holds, study by study, as tables of docs/evidence/paper.json."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.tools.claims.rules import course_of, signed
from benchmarks.tools.quote.tables.grid import markdown

__all__ = ["averaging", "edge", "eq8", "large", "parts"]

Line = Mapping[str, Any]


def edge(result: dict[str, Any]) -> str:
    """How far each arm moves the rate at which training crashes."""
    rows, plain = [], []
    courses = {name: told for name, told in result["edge"].items() if name != "cells"}
    for name, told in courses.items():
        for arm, line in told["shifts"].items():
            counts = f"{line['crashed']} of {line['runs']}"
            moved, interval = "–", "–"
            if arm == "plain":
                plain.append(f"{line['edge']:.2g} ({course_of(name)})")
            else:
                moved = _share(line["shift"])
                interval = f"{_share(line['low'])} to {_share(line['high'])}"
            rows.append([course_of(name), arm, counts, moved, interval])
    seeds = next(iter(courses.values()))["seeds"]
    note = (
        f"Half of the plain runs crash at {' and '.join(plain)}. All arms are run at the same eight rates "
        f"around it, with the same {seeds} seeds; the interval is of 95 %, by resampling seeds."
    )
    return f"{markdown(['course', 'arm', 'crashed', 'edge moves by, %', 'interval, %'], rows)}\n\n{note}"


def eq8(result: dict[str, Any]) -> str:
    """Where Eq. 8 as printed ends, and what the vote adds to it."""
    told = result["eq8"]
    over, vote = ({_place(line): line for line in told[kind]} for kind in ("to OneCycle", "vote"))
    rows = []
    for cell in told["cells"]:
        ends, answers = cell.get("final_rate", []), cell.get("auc")
        rows.append(
            [
                course_of(cell["course"]),
                f"{cell['lr']:g}",
                cell["arm"],
                "–".join(dict.fromkeys(f"{end:.2f}" for end in (min(ends), max(ends)))) if ends else "",
                _difference(over.get(_place(cell))),
                _difference(vote.get(_place(cell))),
                f"{statistics.fmean(answers):.4f}" if answers else "",
            ]
        )
    headings = ["course", "rate", "arm", "final rate / peak", "over OneCycle, %", "vote alone, %", "AUC"]
    note = (
        "Final rates: the least and the greatest of five seeds, f_div/f_final = 25/5. Differences are of "
        "held-out losses; *vote alone* is over Eq. 8 at the same T without fan-out and vote."
    )
    return f"{markdown(headings, rows)}\n\n{note}"


def averaging(result: dict[str, Any]) -> str:
    """Fan-out below the edge, for each α and T over all N."""
    kinds = ("last", "best mean", "last to best mean")
    pooled = {
        kind: {(line["spread"], line["sync_every"]): line for line in result["averaging"]["pooled"][kind]}
        for kind in kinds
    }
    rows = []
    for spread, every in sorted(pooled["last to best mean"], key=lambda setting: setting[::-1]):
        end, both = (pooled[kind].get((spread, every)) for kind in kinds[:2])
        to_mean = pooled["last to best mean"][spread, every]
        name = f"α = {spread:.2g}, T = {every}" if spread else "*plain*"
        rows.append([name, str(to_mean["places"]), *_counts(end), *_counts(both), _counts(to_mean)[0]])
    headings = ["", "places", "end: below / above", "median, %", "worst, %"]
    headings += ["both best means: below / above", "median, %", "worst, %", "end to plain's best mean"]
    table = markdown(headings, rows)
    helps = [sum(line["helps"] for line in result["averaging"][kind]) for kind in kinds]
    note = (
        "Held-out loss over the plain run's; a place is a task at a rate with N replicas, and *below* one "
        "whose whole 95 % interval over 24 seeds lies below 0. Best mean: the best of 20 window means by a "
        f"probe. By the protocol's rule (two tasks, two rates each) {helps[0]}, {helps[1]} and {helps[2]} of "
        f"{len(result['averaging']['last'])} settings help in the three comparisons."
    )
    return f"{table}\n\n{note}"


#: What the lines of a part are compared with.
_OTHERS = {
    "to plain": "plain",
    "reassignment": "full, T = 250, reassigned in every round",
    "warm": "plain from the checkpoint",
    "noise": "full from the checkpoint",
}


def parts(result: dict[str, Any]) -> str:
    """What T, reassignment and noise of the warm start come to."""
    if "parts" not in result:
        return _not_run("parts")
    rows = [
        [f"{line['lr']:g}", line["arm"], other, _difference(line)]
        for kind, other in _OTHERS.items()
        for line in result["parts"][kind]
    ]
    return markdown(["rate", "arm", "against", "held-out loss, %"], rows)


def large(result: dict[str, Any]) -> str:
    """The same at a larger size, from one checkpoint a seed."""
    if "large" not in result:
        return _not_run("large")
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


def _not_run(study: str) -> str:
    return f"Not run yet: `python -m benchmarks.paper {study} --device cuda`. The other studies:"


def _place(line: Line) -> tuple[str, float, str]:
    return line["course"], line["lr"], line["arm"]


def _counts(line: Line | None) -> Sequence[str]:
    if line is None:
        return ("", "", "")
    return f"{line['below']} / {line['above']}", _share(line["median"]), _share(line["worst"])


def _difference(line: Line | None) -> str:
    if line is None or line["mean"] is None:
        return ""
    return f"{signed(100 * line['mean'], '.2f')} ± {100 * line['half']:.2f}"


def _share(value: float) -> str:
    return signed(100 * value, ".1f")
