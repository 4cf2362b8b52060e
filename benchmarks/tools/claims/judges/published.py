"""What we say of the published method: how claims are judged.

Goals stand in the JSON files, with what was measured and whether they are met: most rules count those.
"""

from __future__ import annotations

import math
import statistics

from benchmarks.tools.claims.rules import (
    Judged,
    Place,
    Results,
    apart,
    at_places,
    headed,
    losses_between,
    percent,
    runs_of,
    signed,
    task_of,
)

__all__ = [
    "changes_nothing",
    "crashes_as_well",
    "decision_steadies",
    "drawing_is_cheap",
    "moves_a_few_percent",
    "no_order",
    "same_path_as_plain",
    "ten_times_off_stays_off",
]

_VARIANTS = ("HDET (full)", "HDET w/o auto-LR", "HDET w/o warm init")


def crashes_as_well(results: Results) -> Judged:
    """Three places a task: each of HDET's variants crashes in most seeds at the rate where plain does."""
    places = []
    for result in results.values():
        runs = {line: runs_of(result, "crash", line).values() for line in _VARIANTS}
        counts = {line: (sum(run["crashed"] for run in found), len(found)) for line, found in runs.items()}
        said = ", ".join(f"{line} {crashed} of {of}" for line, (crashed, of) in counts.items())
        told = [2 * crashed > of if of else None for crashed, of in counts.values()]
        places += [Place("" if k else f"{task_of(result)}: {said}", holds) for k, holds in enumerate(told)]
    return at_places(places)


def changes_nothing(results: Results) -> Judged:
    """A task counts if 0 lies in the interval of HDET (full) minus Warm-Init, in training loss."""
    return _alike(results, "HDET (full)")


def moves_a_few_percent(results: Results) -> Judged:
    """A block of a task counts if auto-LR moved no group's rate by more than 10 % (median over seeds)."""
    places = []
    for result in results.values():
        for block in result["blocks"]:
            if block["order"] is not None:
                moved = [math.expm1(x) for x in block["order"]["median_abs_log_factor"].values()]
                low, high = (percent(end, 1) for end in (min(moved), max(moved)))
                text = f"{task_of(result)} at {block['high']:g}: {low} to {high}"
                places.append(Place(text, max(moved) <= 0.1))
    return at_places(places)


def no_order(results: Results) -> Judged:
    """A block of a task counts unless its groups have some order that repeats (Friedman, p < 0.05)."""
    places = []
    for result in results.values():
        for block in result["blocks"]:
            if block["order"] is not None:
                p = block["order"]["any_order"]["p"]
                places.append(Place(f"{task_of(result)} at {block['high']:g}: p = {p:.2g}", p >= 0.05))
    return at_places(places)


def ten_times_off_stays_off(results: Results) -> Judged:
    """A number of replicas counts unless auto-LR's regret is below plain's, intervals apart."""
    places = []
    for row in results["replicas"]["rows"]:
        ours, plain = (row["regret_percent"][arm] for arm in ("published", "plain"))
        text = f"N = {row['replicas']}: {ours['mean']:.1f} %, plain {plain['mean']:.1f} %"
        places.append(Place(text, not apart(ours, plain)))
    return at_places(headed("regret", places))


def same_path_as_plain(results: Results) -> Judged:
    """A task counts if 0 lies in the interval of HDET w/o auto-LR minus Warm-Init, in training loss."""
    return _alike(results, "HDET w/o auto-LR")


def _alike(results: Results, line: str) -> Judged:
    places = []
    for result in results.values():
        found = losses_between(result, "paper", line, "Warm-Init", "train")
        parted = None if found is None or found.below is None else found.below or found.above
        places.append(Place(f"{task_of(result)} {found or '–'}", None if parted is None else not parted))
    return at_places(headed("training loss", places))


def decision_steadies(results: Results) -> Judged:
    """Holds if log deviation over log N has a slope within 0.1 of −1/2."""
    places = []
    for result in results.values():
        rows = result["rows"]
        spreads = [row["decision"]["published"]["deviation_percent"] for row in rows]
        slope = statistics.linear_regression(
            [math.log(row["replicas"]) for row in rows], [math.log(spread) for spread in spreads]
        ).slope
        first, last = (f"{spreads[k]:.2f} % at N = {rows[k]['replicas']}" for k in (0, -1))
        text = f"deviation {first}, {last}: like N^{signed(slope, '.2f')}"
        places.append(Place(text, abs(slope + 0.5) <= 0.1))
    return at_places(places)


def drawing_is_cheap(results: Results) -> Judged:
    """A source counts if drawing its samples takes at most a tenth of a training step."""
    places = []
    for result in results.values():
        for row in result["rows"]:
            text = f"{row['source']}, {row['scale']} size {percent(row['share'], 1)}"
            places.append(Place(text, row["share"] <= 0.1))
    return at_places(places)
