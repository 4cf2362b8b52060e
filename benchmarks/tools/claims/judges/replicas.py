"""What replicas do and what they cost at scale: how claims are judged.

Goals stand in the JSON files, with what was measured and whether they are met: most rules count those.
"""

from __future__ import annotations

from benchmarks.tools.claims.rules import (
    Judged,
    Place,
    Results,
    at_places,
    headed,
    machine_of,
    percent,
    signed,
)

__all__ = [
    "ahead_of_a_large_batch",
    "cost_is_predicted",
    "replicas_help_the_search",
    "stacked_is_faster",
]


def ahead_of_a_large_batch(results: Results) -> Judged:
    """Where the large batch overfits, and where it does not: a kind counts if AutoTune is ahead on average,
    interval and all."""
    places = []
    for result in results.values():
        for kind in ("overfits", "does not"):
            told = result["summary"][kind]["tuned"]
            mean, half = 100 * told["mean"], 100 * told["interval"]
            where = "where it overfits" if kind == "overfits" else "elsewhere"
            text = (
                f"{where} {signed(mean, '.1f')} ± {half:.1f} %, ahead in {told['ahead']} of {told['cells']}"
            )
            places.append(Place(text, mean + half < 0))
    return at_places(places)


def replicas_help_the_search(results: Results) -> Judged:
    """It counts if the weights that most replicas chose lose less than one replica's, intervals apart."""
    (result,) = results.values()
    most = max(line["replicas"] for line in result["lines"])
    places = []
    for line in result["lines"]:
        change, half = (line["chosen"].get(name) for name in ("difference", "difference_half_width"))
        if line["replicas"] == most and change is not None:
            text = f"{signed(change, '.2f')}{'' if half is None else f' ± {half:.2f}'}"
            places.append(Place(text, None if half is None else change + half < 0))
    return at_places(headed(f"points of regret, N = {most}", places))


def stacked_is_faster(results: Results) -> Judged:
    """A set-up counts if eight stacked replicas have three times the throughput of eight processes."""
    places = []
    for result in results.values():
        goals = {
            name.replace(": stacked at least 3 × ", ", "): goal for name, goal in result["goals"].items()
        }
        found = [Place(f"{name} ×{goal['measured']:.1f}", goal["met"]) for name, goal in goals.items()]
        places += headed(machine_of(result), found)
    return at_places(places)


def cost_is_predicted(results: Results) -> Judged:
    """Seconds and bytes count each, if the prediction is within the goal at the median."""
    places = []
    for result in results.values():
        for what, goal in result["goals"].items():
            off = f"{percent(goal['measured'], 1)} at the median, {percent(goal['worst'], 0)} at worst"
            places.append(Place(f"{what} off by {off}", goal["met"]))
    return at_places(places)
