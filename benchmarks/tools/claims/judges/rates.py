"""AutoLR beside tuned sweeps, peers, and problems of others: how claims are judged.

Goals stand in the JSON files, with what was measured and whether they are met: most rules count those.
"""

from __future__ import annotations

import math

from benchmarks.tools.claims.rules import (
    Judged,
    Place,
    Results,
    at_places,
    goal_of,
    headed,
    losses_between,
    machine_of,
    signed,
    task_of,
)

__all__ = [
    "ahead_of_peers",
    "as_good_as_tuned",
    "chooses_as_well_as_any",
    "each_constant_pays",
    "equals_the_published_setting",
    "finds_nearer_than_others",
    "near_the_sweep",
    "near_the_sweep_of_the_zoo",
    "near_the_sweep_with_its_choice",
    "never_diverges",
    "optimizers_rate_is_not_read",
    "reaches_published",
    "solves_as_ten_trials_do",
]


def near_the_sweep(results: Results) -> Judged:
    """Four places a machine, its goals: mean regret at most 0.3 and 0.7 %, worst at most 1 and 2 %."""
    places = []
    for result in results.values():
        over = result["overall"]["autolr"]
        text = f"{machine_of(result)}: mean {over['mean']:.2f} %, worst {over['worst']:.2f} %"
        goals = [goal_of(result, words) for words in ("mean regret", "worst at", "mean 0.7", "worst 2")]
        places += [Place(text, goals[0]["met"]), *(Place("", goal["met"]) for goal in goals[1:])]
    return at_places(places)


def near_the_sweep_of_the_zoo(results: Results) -> Judged:
    """A place for each goal on the test families."""
    places = []
    for result in results.values():
        auto = result["summary"]["test"]["autolr"]
        chosen = auto["test_chosen"]
        text = (
            f"{auto['cells']} cells: median {100 * chosen['median']:.1f} %, "
            f"mean {100 * chosen['mean']:.0f} %, worst {100 * chosen['worst']:.0f} %, {auto['lost']} of "
            f"{auto['runs']} runs lost, ahead of the default rate in {chosen['ahead_of_default']}"
        )
        places += [Place("" if k else text, goal["met"]) for k, goal in enumerate(result["goals"].values())]
    return at_places(places)


def finds_nearer_than_others(results: Results) -> Judged:
    """One place: the median factor to the sweep's rate is the lowest."""
    factors = {
        name: math.inf if told["median_factor"] is None else told["median_factor"]
        for result in results.values()
        for name, told in result["finders"].items()
    }
    text = ", ".join(f"{name} {factor:.1f} ×" for name, factor in factors.items())
    return at_places([Place(text, min(factors, key=factors.__getitem__) == "hdet.find")])


def equals_the_published_setting(results: Results) -> Judged:
    """A place for each arm without a rate: the interval of the difference in RMSE holds 0, or lies below."""
    places = []
    for result in results.values():
        for task, arms in result["yields"].items():
            for arm in ("autotune", "autolr, as it ran"):
                told = arms[arm]
                difference, half = told["rmse_difference"], told["rmse_half_width"]
                text = f"{task}, {arm}: RMSE {difference:+.1f} ± {half:.1f} on {len(told['on'])} splits"
                places.append(Place(text, difference - half <= 0))
    return at_places(places)


def each_constant_pays(results: Results) -> Judged:
    """A place for each change of a constant."""
    changes = [
        told for result in results.values() for name, told in result["variants"].items() if name != "as it is"
    ]
    paying = sum(told["pays"] for told in changes)
    text = f"{paying} of {len(changes)} changes are worse by 0.3 % or lose more runs"
    return at_places([Place("" if k else text, told["pays"]) for k, told in enumerate(changes)])


def chooses_as_well_as_any(results: Results) -> Judged:
    """A place for each part and number of batches."""
    places: list[Place] = []
    for result in results.values():
        rules = {name: told for name, told in result["rules"].items() if name != "the best by the test loss"}
        for batches, parts in rules["as it is"].items():
            for part, own in parts.items():
                lowest = min(told[batches][part]["mean_to_one"] for told in rules.values())
                behind = own["mean_to_one"] - lowest
                text = f"{part}, {batches} batch{'es' * (batches != '1')}: {100 * behind:.1f}"
                places.append(
                    Place(f"points behind the best rule: {text}" if not places else text, behind <= 0.005)
                )
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


def ahead_of_peers(results: Results) -> Judged:
    """Holds if AutoLR is behind no peer on any task of any machine, partly if it is ahead in most."""
    places = []
    for result in results.values():
        goal = goal_of(result, "ahead of every")
        behind, of = goal["measured"], goal["of"]
        places.append(Place(f"{machine_of(result)}: ahead in {of - behind} of {of} comparisons", behind == 0))
        places.append(Place("", 2 * behind < of))
    return at_places(places)


def never_diverges(results: Results) -> Judged:
    """A machine counts if no run of AutoLR diverged, from whatever start."""
    goals = {machine_of(result): goal_of(result, "never diverges") for result in results.values()}
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


def as_good_as_tuned(results: Results) -> Judged:
    """A task counts unless AutoLR's held-out loss is above that of the best plain run of the sweep."""
    places = []
    for result in results.values():
        found = losses_between(result, "paper", "AutoLR", "Tuned baseline", "held_out")
        above = None if found is None else found.above
        places.append(Place(f"{task_of(result)} {found or '–'}", None if above is None else not above))
    return at_places(headed("held-out loss", places))
