"""What AutoLR, a step and a mean of weights cost: how claims are judged.

Goals stand in the JSON files, with what was measured and whether they are met: most rules count those.
"""

from __future__ import annotations

from benchmarks.tools.claims.rules import (
    Judged,
    Place,
    Results,
    at_places,
    counted,
    machine_of,
    percent,
)

__all__ = [
    "averaging_beats_others",
    "averaging_near_the_limit",
    "call_costs_little",
    "costs_two_percent",
    "light_around_a_large_model",
    "never_waits",
    "only_fewer_iterates_are_as_good",
    "step_costs_little",
]


def costs_two_percent(results: Results) -> Judged:
    """A run counts if its wall-clock and the time within AutoLR's calls are both at most 2 % more."""
    places = []
    for result in results.values():
        for row in result["rows"]:
            whole, calls = row["overhead"], row["overhead_in_calls"]
            text = f"{machine_of(result)}, {row['optimizer']}, {row['steps']:,} steps: "
            places.append(
                Place(f"{text}{percent(whole, 1)} (calls {percent(calls, 1)})", max(whole, calls) <= 0.02)
            )
    return at_places(places)


def only_fewer_iterates_are_as_good(results: Results) -> Judged:
    """Fewer iterates count if they are not worse, by more than the error and 0.5 %, and lose no more runs;
    longer windows and fewer batches if they are worse; shorter windows if not better by two errors."""
    texts = {
        "fewer iterates are as good": list[bool](),
        "longer windows or fewer batches are not": [],
        "shorter windows are not better": [],
    }
    fewer, cheaper, shorter = texts.values()
    for result in results.values():
        for name, told in list(result["variants"].items())[1:]:
            windows, batches = float(name.split(",")[0].split()[1]), int(name.split()[-1])
            worse = told["difference"] > max(told["error"], 0.005) or told["lost"] > told["lost_as_it_is"]
            if windows < 0.2:
                shorter.append(told["difference"] > -2 * told["error"])
            elif windows > 0.2 or batches < 4:
                cheaper.append(worse)
            else:
                fewer.append(not worse)
    return at_places(place for text, told in texts.items() for place in counted(text, told))


def light_around_a_large_model(results: Results) -> Judged:
    """A place for each goal: memory at every moment, wall-clock, packing."""
    (result,) = results.values()
    goals = {name: goal for name, goal in result["goals"].items() if goal["measured"] is not None}
    return at_places(Place(f"{name}: {goal['measured']:.3g}", goal["met"]) for name, goal in goals.items())


def averaging_near_the_limit(results: Results) -> Judged:
    """A set-up counts if it takes at most 1.3 times as long as one flat all_reduce of the same bytes."""
    places = []
    for result in results.values():
        ratios = [row["ratio_to_limit"]["hdet"] for row in result["rows"]]
        text = f"{machine_of(result)}: ×{min(ratios):.2f} to ×{max(ratios):.2f}"
        places += counted(text, [ratio <= 1.3 for ratio in ratios])
    return at_places(places)


def averaging_beats_others(results: Results) -> Judged:
    """A set-up counts if hdet is faster than both average_parameters and one all_reduce per tensor."""
    places = []
    for result in results.values():
        times = [row["milliseconds"] for row in result["rows"]]
        gains = [min(t["average_parameters"], t["all_reduce per tensor"]) / t["hdet"] for t in times]
        text = f"{machine_of(result)}: ×{min(gains):.2f} to ×{max(gains):.1f} faster than the better"
        places += counted(text, [gain > 1 for gain in gains])
    return at_places(places)


def call_costs_little(results: Results) -> Judged:
    """A set-up counts if step(loss) between syncs takes at most 1.5 times what OneCycleLR.step() does."""
    places = []
    for result in results.values():
        ratios = [row["ratio"] for row in result["rows"] if row["part"] == "scheduler call"]
        text = f"{machine_of(result)}: ×{min(ratios):.2f} to ×{max(ratios):.2f}"
        places += counted(text, [ratio <= 1.5 for ratio in ratios])
    return at_places(places)


def never_waits(results: Results) -> Judged:
    """A set-up counts if nothing between two syncs waits for the GPU."""
    places = []
    for result in results.values():
        waits = [row for row in result["rows"] if row.get("scheduler") == "OneCycleAutoLR"]
        places += counted("no wait", [row["never_waits"] and row["detector_works"] for row in waits])
    return at_places(places)


def step_costs_little(results: Results) -> Judged:
    """Two places a machine, its goals: at most 0.5 % over plain DDP at T = 100, 0.1 % at T = 1000."""
    places = []
    for result in results.values():
        for words, at in (("T=100", "T = 100"), ("T=1000", "T = 1000")):
            goal = next(goal for name, goal in result["goals"].items() if name.endswith(words))
            text = f"{machine_of(result)} {percent(goal['measured'])} at {at}"
            places.append(Place(text, goal["met"]))
    return at_places(places)
