"""Hyperparameters other than the learning rate, and several at once: how claims are judged.

Goals stand in the JSON files, with what was measured and whether they are met: most rules count those.
"""

from __future__ import annotations

from benchmarks.autotune.analysis import NEAR
from benchmarks.autotune.plan import AUTOTUNE, SEARCHES
from benchmarks.tools.claims.rules import (
    Difference,
    Judged,
    Place,
    Results,
    at_places,
    goal_of,
    headed,
    signed,
)

__all__ = [
    "ahead_of_searches",
    "all_at_once_beats_in_turn",
    "near_the_truth",
    "recovers",
    "temperature_shows_late",
]


def ahead_of_searches(results: Results) -> Judged:
    """A search counts if AutoTune's mean test loss is below it on two thirds of the tasks."""
    (result,) = results.values()
    found = result["verdicts"]["autotune_ahead_of"]
    return at_places(
        Place(
            f"{arm} on {found[arm]['ahead']} of {found[arm]['of']}",
            3 * found[arm]["ahead"] >= 2 * found[arm]["of"],
        )
        for arm in SEARCHES
        if arm in found
    )


def near_the_truth(results: Results) -> Judged:
    """A task counts if AutoTune's excess over the sweep's best is at most 3 %."""
    (result,) = results.values()
    places = []
    for task in result["tasks"]:
        excess = next((line["excess"] for line in task["arms"] if line["arm"] == AUTOTUNE), None)
        if excess is not None:
            places.append(Place(f"{task['task']} {signed(excess, '.1f')} %", excess <= NEAR))
    return at_places(places)


def temperature_shows_late(results: Results) -> Judged:
    """A value counts if after 25 steps it does not look better than staying, by the interval over seeds."""
    (result,) = results.values()
    places = []
    for row in result["rows"]:
        at = row["after"].index(25) if 25 in row["after"] else None
        if at is not None and row["half_width"][at] is not None:
            mean, half = row["mean"][at], row["half_width"][at]
            places.append(Place(f"{row['value']:g}: {signed(mean, '.3f')} ± {half:.3f}", mean + half >= 0))
    return at_places(headed(f"after 25 steps, from {result['start']:g} to", places))


def recovers(results: Results) -> Judged:
    """Two places, the goals: all four recover 80 % from the worse start, three of the four 50 %."""
    places = []
    for result in results.values():
        for words, name in (("at least 80 %", "the worst of four"), ("recover 50 %", "the third of four")):
            goal = goal_of(result, words)
            where = f" ({goal['worst_on']})" if "worst_on" in goal else ""
            places.append(Place(f"{name}: {goal['measured']:.0f} %{where}", goal["met"]))
    return at_places(places)


def all_at_once_beats_in_turn(results: Results) -> Judged:
    """Holds if all at once is below one after the other, in held-out loss, seed by seed."""
    places = []
    for result in results.values():
        losses = {arm["arm"]: arm["losses"] for arm in result["four"]["arms"]}
        pairs = zip(losses["all at once"], losses["one after the other"], strict=True)
        found = Difference.of([ours - theirs for ours, theirs in pairs])
        places.append(Place(f"held-out loss {found}", None if found is None else found.below))
    return at_places(places)
