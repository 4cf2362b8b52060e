"""What replicas, islands and fewer bits do: how claims are judged.

Goals stand in the JSON files, with what was measured and whether they are met: most rules count those.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tools.claims.rules import (
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
    "an_outer_step_helps",
    "cost_is_predicted",
    "fewer_bits_change_nothing",
    "islands_end_as_plain",
    "replicas_help_the_search",
    "stacked_is_faster",
]


def replicas_help_the_search(results: Results) -> Judged:
    """An arm with most replicas counts if the weights it chose lose less than one replica's, intervals
    apart."""
    (result,) = results.values()
    most = max(line["replicas"] for line in result["lines"])
    places = []
    for line in result["lines"]:
        change, half = (line["chosen"].get(name) for name in ("difference", "difference_half_width"))
        if line["replicas"] == most and change is not None:
            spread = f", spread {line['spread']:g}" if line["spread"] else ""
            text = f"{line['arm']}{spread} {signed(change, '.2f')}{'' if half is None else f' ± {half:.2f}'}"
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


def fewer_bits_change_nothing(results: Results) -> Judged:
    """A form of the wire counts if its final losses differ from float32's by no more than the seeds do."""
    (result,) = results.values()
    places = []
    for row in result["measured"]["final_loss"]:
        mean, half = row["over_float32_percent"], row["half_width"]
        if row["wire"] != "float32":
            text = f"{row['wire']} {signed(mean, '.1f')}{'' if half is None else f' ± {half:.1f}'} %"
            places.append(Place(text, None if half is None else abs(mean) <= half))
    return at_places(headed("loss over float32's", places))


def islands_end_as_plain(results: Results) -> Judged:
    """A task and length counts if the islands' mean is not above plain data parallelism beyond the seeds;
    seeds that differ by more than a quarter cannot tell."""
    places = []
    for line in _islands(results, "mean"):
        half = line["excess_half_width"]
        within = "" if half is None else f" ± {half:.0f}"
        text = f"{_length(line)} {signed(line['excess_percent'], '.0f')}{within} %"
        tells = half is not None and half <= 25
        places.append(Place(text, line["excess_percent"] - half <= 0 if tells else None))
    return at_places(headed("loss over DDP's", places))


def an_outer_step_helps(results: Results) -> Judged:
    """A task and length counts if the outer step ends below the mean alone, intervals apart."""
    means = {(line["workload"], line["steps"]): line for line in _islands(results, "mean")}
    places = []
    for line in _islands(results, "outer"):
        other = means[line["workload"], line["steps"]]
        halves = line["held_out_half_width"], other["held_out_half_width"]
        text = f"{_length(line)} {line['held_out']:.3f} beside {other['held_out']:.3f}"
        known = None not in halves
        places.append(
            Place(text, line["held_out"] + halves[0] < other["held_out"] - halves[1] if known else None)
        )
    return at_places(places)


def _islands(results: Results, arm: str) -> list[Mapping[str, Any]]:
    (result,) = results.values()
    return [line for line in result["lines"] if line["arm"] == arm]


def _length(line: Mapping[str, Any]) -> str:
    return f"{line['workload']}, {line['steps']:,} steps"
