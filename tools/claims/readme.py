"""How each claim of our own README is judged by what the commands measured.

Goals stand in the JSON files, with what was measured and whether they are met: most rules count those.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from hdet.bench.autotune.analysis import NEAR
from hdet.bench.autotune.plan import AUTOTUNE, SEARCHES
from tools.claims.rules import (
    Difference,
    Judged,
    Place,
    Result,
    Results,
    apart,
    at_places,
    counted,
    headed,
    losses_between,
    machine_of,
    percent,
    runs_of,
    signed,
    task_of,
)

__all__ = [
    "ahead_of_peers",
    "ahead_of_searches",
    "all_at_once_beats_in_turn",
    "an_outer_step_helps",
    "as_good_as_tuned",
    "averaging_beats_others",
    "averaging_near_the_limit",
    "call_costs_little",
    "changes_nothing",
    "cost_is_predicted",
    "costs_two_percent",
    "crashes_as_well",
    "decision_steadies",
    "drawing_is_cheap",
    "fewer_bits_change_nothing",
    "islands_end_as_plain",
    "light_around_a_large_model",
    "moves_a_few_percent",
    "near_the_sweep",
    "near_the_sweep_with_its_choice",
    "near_the_truth",
    "never_diverges",
    "never_waits",
    "no_kill_is_felt",
    "no_order",
    "no_poison_is_averaged",
    "nothing_grows",
    "optimizers_rate_is_not_read",
    "reaches_published",
    "recovers",
    "replicas_help_the_search",
    "same_path_as_plain",
    "solves_as_ten_trials_do",
    "stacked_is_faster",
    "step_costs_little",
    "temperature_shows_late",
    "ten_times_off_stays_off",
]


_VARIANTS = ("HDET (full)", "HDET w/o auto-LR", "HDET w/o warm init")


# ---------------------------------------------------------------------- AutoLR


def near_the_sweep(results: Results) -> Judged:
    """Four places a machine, its goals: mean regret at most 0.3 and 0.7 %, worst at most 1 and 2 %."""
    places = []
    for result in results.values():
        over = result["overall"]["autolr"]
        text = f"{machine_of(result)}: mean {over['mean']:.2f} %, worst {over['worst']:.2f} %"
        goals = [_goal(result, words) for words in ("mean regret", "worst at", "mean 0.7", "worst 2")]
        places += [Place(text, goals[0]["met"]), *(Place("", goal["met"]) for goal in goals[1:])]
    return at_places(places)


def near_the_sweep_with_its_choice(results: Results) -> Judged:
    """A place for each goal: excess on average and at worst, beside peers, and over the sweep as it ends."""
    places = []
    for name, result in results.items():
        over = result["excess"]["overall"]["autolr"]
        chosen, ends = over["chosen"], over["chosen_over_ends"]
        text = (
            f"{name}: mean {chosen['mean']:.1f} %, worst {chosen['worst']:.1f} % ({chosen['worst_on']}); "
            f"over the sweep as it ends {signed(ends['mean'], '.1f')} %"
        )
        goals = list(result["excess"]["goals"].values())
        places += [Place("" if k else text, goal["met"]) for k, goal in enumerate(goals)]
    return at_places(places)


def solves_as_ten_trials_do(results: Results) -> Judged:
    """Two places: as many problems as AdamW solves within 10 trials of a search, and within 30."""
    (result,) = results.values()
    solved, published = result["counts"]["autolr"]["solved"], result["adamw_solved_within_trials"]
    text = (
        f"{solved} of {result['counts']['autolr']['run']} solved by one run each; AdamW {published['10']} "
        f"within 10 trials, {published['30']} within 30"
    )
    return at_places([Place(text, solved >= published["10"]), Place("", solved >= published["30"])])


def reaches_published(results: Results) -> Judged:
    """An optimizer counts unless AutoLR's loss is above the published tuned one by two standard errors."""
    (result,) = results.values()
    places = []
    for row in result["rows"]:
        if row["published"]:
            found, published = row["arms"]["AutoLR"]["mean"], row["published"]["mean"]
            text = f"{row['optimizer']} {found:.2f}, published {published:.2f}"
            places.append(Place(text, row["AutoLR_is"] != "above"))
    return at_places(places)


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


def ahead_of_peers(results: Results) -> Judged:
    """Holds if AutoLR is behind no peer on any task of any machine, partly if it is ahead in most."""
    places = []
    for result in results.values():
        goal = _goal(result, "ahead of every")
        behind, of = goal["measured"], goal["of"]
        places.append(Place(f"{machine_of(result)}: ahead in {of - behind} of {of} comparisons", behind == 0))
        places.append(Place("", 2 * behind < of))
    return at_places(places)


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


def light_around_a_large_model(results: Results) -> Judged:
    """A place for each goal: memory at every moment, wall-clock, packing."""
    (result,) = results.values()
    goals = {name: goal for name, goal in result["goals"].items() if goal["measured"] is not None}
    return at_places(Place(f"{name}: {goal['measured']:.3g}", goal["met"]) for name, goal in goals.items())


def never_diverges(results: Results) -> Judged:
    """A machine counts if no run of AutoLR diverged, from whatever start."""
    goals = {machine_of(result): _goal(result, "never diverges") for result in results.values()}
    return at_places(
        Place(f"{where}: {goal['measured']} of {goal['of']} runs diverged", goal["met"])
        for where, goal in goals.items()
    )


def optimizers_rate_is_not_read(results: Results) -> Judged:
    """A machine counts if mean regrets from optimizers built at 1e-8 to 10 differ by 0.3 points at most."""
    places = []
    for result in results.values():
        means = [over["mean"] for arm, over in result["overall"].items() if arm.startswith("autolr@")]
        if means and None not in means:
            low, high = (signed(end, ".2f") for end in (min(means), max(means)))
            text = f"{machine_of(result)}: mean regret {low} to {high} %"
            places.append(Place(text, max(means) - min(means) <= 0.3))
    return at_places(places)


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


def as_good_as_tuned(results: Results) -> Judged:
    """A task counts unless AutoLR's held-out loss is above that of the best plain run of the sweep."""
    places = []
    for result in results.values():
        found = losses_between(result, "paper", "AutoLR", "Tuned baseline", "held_out")
        above = None if found is None else found.above
        places.append(Place(f"{task_of(result)} {found or '–'}", None if above is None else not above))
    return at_places(headed("held-out loss", places))


# ---------------------------------------------------------------------- other hyperparameters


def recovers(results: Results) -> Judged:
    """Two places, the goals: all four recover 80 % from the worse start, three of the four 50 %."""
    places = []
    for result in results.values():
        for words, name in (("at least 80 %", "the worst of four"), ("recover 50 %", "the third of four")):
            goal = _goal(result, words)
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


# ---------------------------------------------------------------------- the published method


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


# ---------------------------------------------------------------------- speed


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


def drawing_is_cheap(results: Results) -> Judged:
    """A source counts if drawing its samples takes at most a tenth of a training step."""
    places = []
    for result in results.values():
        for row in result["rows"]:
            text = f"{row['source']}, {row['scale']} size {percent(row['share'], 1)}"
            places.append(Place(text, row["share"] <= 0.1))
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


# ---------------------------------------------------------------------- chaos


def no_kill_is_felt(results: Results) -> Judged:
    """A door counts if no run of its own that was hit broke what is promised."""
    (result,) = results.values()
    lines = result["kills"]["lines"]
    places = []
    for door in sorted({line["door"] for line in lines}):
        mine = [line for line in lines if line["door"] == door]
        hits = sum(len(line["hits"]) for line in mine)
        broken = sum(bool(line["broken"]) for line in mine)
        places.append(Place(f"{door}: {hits} hits in {len(mine)} runs, {broken} runs broken", not broken))
    return at_places(places)


def no_poison_is_averaged(results: Results) -> Judged:
    """A run, with a probe or without one, counts if no mean in it was not finite, or exploded."""
    (result,) = results.values()
    places = []
    for line in result["poisons"]["lines"]:
        text = (
            f"{line['poisons']} poisons {'with' if line['probe'] else 'without'} a probe: "
            f"{line['not_finite']} of {line['means']} means not finite"
        )
        places.append(Place(text, not line["broken"]))
    return at_places(places)


def nothing_grows(results: Results) -> Judged:
    """A door counts if at the end of its long run neither memory nor state nor step time has grown."""
    (result,) = results.values()
    places = []
    for line in result["soak"]["lines"]:
        text = f"{line['door']}, {line['steps']:,} steps: {line['broken'] or 'flat'}"
        places.append(Place(text, not line["broken"]))
    return at_places(places)


# ---------------------------------------------------------------------- reading


def _goal(result: Result, words: str) -> Mapping[str, Any]:
    """The goal whose name has ``words`` in it."""
    found: Mapping[str, Any] = next(goal for name, goal in result["goals"].items() if words in name)
    return found
