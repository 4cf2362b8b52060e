"""Made-up results on which every rule about our own claims reaches each of its verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.tools.claims import judges
from benchmarks.tools.claims.rules import Verdict
from tests.benchmarks.tools.claims.cases_paper import beside
from tests.made_up import (
    CPU,
    a_table,
    averaging,
    calls,
    goals,
    overhead,
    regret,
    scalars,
    waits,
    wall_clock,
)

HOLDS, PARTLY, NOT_HERE, UNTESTED = Verdict


def excess(*met: bool) -> dict[str, Any]:
    """The goals of the excess table."""
    over = {"mean": 1.0, "worst": 3.0, "worst_on": "task adamw"}
    goals = {str(k): {"met": one} for k, one in enumerate(met)}
    return {"excess": {"overall": {"autolr": {"chosen": over, "chosen_over_ends": over}}, "goals": goals}}


def zoo(*met: bool) -> dict[str, Any]:
    """The goals of the zoo."""
    chosen = {"mean": 0.07, "median": 0.03, "worst": 0.5, "ahead_of_default": 49}
    told = {"cells": 54, "runs": 162, "lost": 19, "test_chosen": chosen}
    return {
        "summary": {"test": {"autolr": told}},
        "goals": {str(k): {"met": one} for k, one in enumerate(met)},
    }


def tuned(ahead: tuple[int, int] = (0, 0), excess: tuple[float, ...] = ()) -> dict[str, Any]:
    counts = {
        arm: {"ahead": n, "clearly": 0, "of": 6} for arm, n in zip(("random", "PBT"), ahead, strict=True)
    }
    tasks = [
        {"task": f"task {k}", "arms": [{"arm": "PBT", "excess": 0.0}, {"arm": "AutoTune", "excess": one}]}
        for k, one in enumerate(excess)
    ]
    return {"verdicts": {"autotune_ahead_of": counts}, "tasks": tasks}


def delayed(*at_25: tuple[float, float | None]) -> dict[str, Any]:
    rows = [
        {"value": k, "after": [0, 25], "mean": [1.0, mean], "half_width": [0.1, half]}
        for k, (mean, half) in enumerate(at_25)
    ]
    return {"start": 0.01, "rows": rows}


def goals_met(*met: bool) -> dict[str, Any]:
    return {"goals": {f"goal {k}": {"measured": 1.0, "met": one} for k, one in enumerate(met)}}


def published(autotune: tuple[float, float], autolr: tuple[float, float]) -> Any:
    """The difference of each arm to the published setting, and half of its interval."""
    arms = {"autotune": autotune, "autolr, as it ran": autolr}
    told = {
        arm: {"rmse_difference": difference, "rmse_half_width": half, "on": [0, 1, 2]}
        for arm, (difference, half) in arms.items()
    }
    return {"yields": {"suzuki": told}}


def finders(ours: float | None, other: float | None) -> Any:
    """The median factor of each finder."""
    return {"finders": {"hdet.find": {"median_factor": ours}, "range test": {"median_factor": other}}}


def ablation(*pays: bool) -> dict[str, Any]:
    """Changes of a constant, beside the rule as it is."""
    changes = {f"pull {k}": {"pays": one} for k, one in enumerate(pays)}
    return {"variants": {"as it is": {"pays": False}, **changes}}


def costs(**variants: tuple[float, int]) -> dict[str, Any]:
    """Differences to AutoLR as it was, which has lost four runs, with an error of 1 %; and lost runs."""
    names = {
        "fewer": "windows 0.2, iterates 8, batches 4",
        "longer": "windows 0.5, iterates 32, batches 4",
        "batches": "windows 0.2, iterates 32, batches 2",
        "shorter": "windows 0.1, iterates 32, batches 4",
    }
    told = {
        names[key]: {"difference": difference, "error": 0.01, "lost": lost, "lost_as_it_is": 4}
        for key, (difference, lost) in variants.items()
    }
    return {"variants": {"windows 0.2, iterates 32, batches 4": {}, **told}}


def choice(*behind: float) -> dict[str, Any]:
    """By so much the rule is behind the best of others, with one batch and with more."""

    def losses(given: Sequence[float]) -> dict[str, Any]:
        return {str(k): {"dev": {"mean_to_one": loss}} for k, loss in enumerate(given, 1)}

    rules = {"as it is": [0.1 + one for one in behind], "the end": [0.1 for _ in behind]}
    unreachable = {"the best by the test loss": [0.0 for _ in behind]}
    return {"rules": {name: losses(given) for name, given in {**rules, **unreachable}.items()}}


def solved(count: int) -> dict[str, Any]:
    """Of LightBench's problems."""
    published = {"10": 62, "30": 86, "1000": 95}
    return {
        "counts": {"autolr": {"solved": count, "run": 136}},
        "adamw_solved_within_trials": published,
    }


def deepobs(*beside: str) -> dict[str, Any]:
    """AutoLR beside published runs."""
    arms = {"AutoLR": {"mean": 87.0}}
    rows = [
        {"optimizer": "SGD", "published": {"mean": 87.1}, "arms": arms, "AutoLR_is": one} for one in beside
    ]
    return {"rows": [*rows, {"optimizer": "momentum 0.9", "published": None, "arms": arms}]}


def zoo_replicas(overfits: float, otherwise: float) -> dict[str, Any]:
    """How far four replicas are above a large batch, give or take a hundredth."""
    found = {"overfits": overfits, "does not": otherwise}
    return {
        "summary": {
            kind: {"tuned": {"cells": 9, "ahead": 5, "mean": mean, "interval": 0.01}}
            for kind, mean in found.items()
        }
    }


def fan_out(*differences: tuple[float, float | None]) -> dict[str, Any]:
    """What four replicas lose beside one."""
    lines = [
        {
            "replicas": 4,
            "chosen": {"difference": change, "difference_half_width": half},
        }
        for change, half in differences
    ]
    return {"lines": [{"replicas": 1, "chosen": {}}, *lines]}


def cost(seconds: float, memory: float) -> dict[str, Any]:
    """How far predictions are off."""
    found = {"seconds": seconds, "memory": memory}
    return {
        "goals": {name: {"measured": off, "worst": 2 * off, "met": off <= 0.3} for name, off in found.items()}
    }


def chaos(**broken: tuple[str, ...]) -> dict[str, Any]:
    line = {
        "door": "A",
        "hits": ["SIGKILL"],
        "poisons": 1,
        "probe": True,
        "not_finite": 0,
        "means": 2,
        "steps": 9,
    }
    return {
        part: {"lines": [{**line, "door": f"door {k}", "broken": what} for k, what in enumerate(lines)]}
        for part, lines in broken.items()
    }


CASES: dict[Any, list[tuple[Any, Verdict]]] = {
    judges.rates.near_the_sweep: [
        ([regret(0.3, 1.0)], HOLDS),
        ([regret(0.2, 5.0)], PARTLY),
        ([regret(1.0, 5.0)], NOT_HERE),
    ],
    judges.rates.near_the_sweep_of_the_zoo: [
        ([zoo(True, True)], HOLDS),
        ([zoo(True, False)], PARTLY),
        ([zoo(False, False)], NOT_HERE),
    ],
    judges.rates.equals_the_published_setting: [
        ([published((2.0, 3.0), (-1.0, 0.5))], HOLDS),
        ([published((2.0, 3.0), (9.0, 0.5))], PARTLY),
        ([published((3.5, 3.0), (9.0, 0.5))], NOT_HERE),
    ],
    judges.rates.finds_nearer_than_others: [
        ([finders(2.0, 5.0)], HOLDS),
        ([finders(2.0, None)], HOLDS),
        ([finders(6.0, 5.0)], NOT_HERE),
        ([finders(None, 5.0)], NOT_HERE),
    ],
    judges.rates.each_constant_pays: [
        ([ablation(True, True)], HOLDS),
        ([ablation(True, False)], PARTLY),
        ([ablation(False, False)], NOT_HERE),
    ],
    judges.cost.only_fewer_iterates_are_as_good: [
        ([costs(fewer=(0.008, 4), longer=(0.02, 4), batches=(0.008, 5), shorter=(-0.01, 4))], HOLDS),
        ([costs(fewer=(0.008, 5), longer=(0.02, 4))], PARTLY),
        ([costs(fewer=(0.008, 4), shorter=(-0.03, 4))], PARTLY),
        ([costs(fewer=(0.02, 4), longer=(0.008, 4), batches=(0.004, 4))], NOT_HERE),
    ],
    judges.rates.chooses_as_well_as_any: [
        ([choice(-0.1, 0.004)], HOLDS),
        ([choice(0.004, 0.006)], PARTLY),
        ([choice(0.006)], NOT_HERE),
    ],
    judges.rates.near_the_sweep_with_its_choice: [
        ([excess(True, True)], HOLDS),
        ([excess(True, False)], PARTLY),
        ([excess(False, False)], NOT_HERE),
    ],
    judges.replicas.ahead_of_a_large_batch: [
        ([zoo_replicas(-0.1, -0.02)], HOLDS),
        ([zoo_replicas(-0.1, -0.005)], PARTLY),
        ([zoo_replicas(-0.005, 0.1)], NOT_HERE),
    ],
    judges.several.ahead_of_searches: [
        ([tuned(ahead=(4, 6))], HOLDS),
        ([tuned(ahead=(4, 3))], PARTLY),
        ([tuned(ahead=(3, 2))], NOT_HERE),
    ],
    judges.several.near_the_truth: [
        ([tuned(excess=(3.0, -5.0))], HOLDS),
        ([tuned(excess=(3.1, -5.0))], PARTLY),
        ([tuned(excess=(3.1, 9.0))], NOT_HERE),
    ],
    judges.several.temperature_shows_late: [
        ([delayed((0.1, 0.05), (-0.1, 0.2))], HOLDS),
        ([delayed((0.1, 0.05), (-0.1, 0.05))], PARTLY),
        ([delayed((-0.1, 0.05))], NOT_HERE),
        ([delayed((-0.1, None))], UNTESTED),
    ],
    judges.cost.light_around_a_large_model: [
        ([goals_met(True, True)], HOLDS),
        ([goals_met(True, False)], PARTLY),
        ([goals_met(False)], NOT_HERE),
    ],
    judges.rates.solves_as_ten_trials_do: [
        ([solved(86)], HOLDS),
        ([solved(62)], PARTLY),
        ([solved(61)], NOT_HERE),
    ],
    judges.rates.reaches_published: [
        ([deepobs("below", "within")], HOLDS),
        ([deepobs("below", "above")], PARTLY),
        ([deepobs("above")], NOT_HERE),
    ],
    judges.replicas.replicas_help_the_search: [
        ([fan_out((-2.0, 1.0))], HOLDS),
        ([fan_out((-2.0, 1.0), (-0.5, 1.0))], PARTLY),
        ([fan_out((-0.5, 1.0), (3.0, 0.1))], NOT_HERE),
        ([fan_out((-0.5, None))], UNTESTED),
    ],
    judges.rates.ahead_of_peers: [
        ([regret()], HOLDS),
        ([regret(behind=1)], PARTLY),
        ([regret(behind=5)], NOT_HERE),
    ],
    judges.rates.never_diverges: [
        ([regret()], HOLDS),
        ([regret(), {**regret(diverged=1), "machine": {**CPU, "gpu": "Gpu"}}], PARTLY),
        ([regret(diverged=1)], NOT_HERE),
    ],
    judges.rates.optimizers_rate_is_not_read: [
        ([regret(misled=(1.0, 1.2))], HOLDS),
        ([regret(misled=(1.0, 1.2)), regret(misled=(0.0, 1.0))], PARTLY),
        ([regret(misled=(0.0, 1.0))], NOT_HERE),
        ([regret()], UNTESTED),
    ],
    judges.cost.costs_two_percent: [
        ([wall_clock((0.01, 0.02))], HOLDS),
        ([wall_clock((0.01, 0.02), (-0.01, 0.03))], PARTLY),
        ([wall_clock((0.03, 0.01))], NOT_HERE),
    ],
    judges.rates.as_good_as_tuned: [
        *beside("AutoLR"),
        ([a_table(paper_held_out={"AutoLR": -0.5})], HOLDS),
        ([a_table(paper_held_out={"AutoLR": None})], NOT_HERE),
    ],
    judges.several.recovers: [
        ([scalars(80, 81, 90, 99)], HOLDS),
        ([scalars(10, 50, 90, 99)], PARTLY),
        ([scalars(10, 40, 90, 99)], NOT_HERE),
    ],
    judges.several.all_at_once_beats_in_turn: [
        ([scalars(at_once=-0.5)], HOLDS),
        ([scalars(at_once=0.1)], NOT_HERE),
    ],
    judges.cost.averaging_near_the_limit: [
        ([averaging((1.3, 1.0), (1.1, 1.0))], HOLDS),
        ([averaging((1.3, 1.0), (1.4, 1.0))], PARTLY),
        ([averaging((1.4, 1.0))], NOT_HERE),
    ],
    judges.cost.averaging_beats_others: [
        ([averaging((1.0, 9.0), (1.0, 5.0))], HOLDS),
        ([averaging((1.0, 9.0), (1.0, 11.0))], PARTLY),
        ([averaging((1.0, 11.0))], NOT_HERE),
    ],
    judges.cost.call_costs_little: [
        ([calls(1.2, 1.5)], HOLDS),
        ([calls(1.2, 1.6)], PARTLY),
        ([calls(1.6)], NOT_HERE),
    ],
    judges.cost.never_waits: [
        ([waits(True, True)], HOLDS),
        ([waits(True, False)], PARTLY),
        ([waits(False)], NOT_HERE),
        ([waits()], UNTESTED),
    ],
    judges.cost.step_costs_little: [
        ([overhead(True, True)], HOLDS),
        ([overhead(True, False)], PARTLY),
        ([overhead(False, False)], NOT_HERE),
    ],
    judges.replicas.stacked_is_faster: [
        ([goals(a=True, b=True)], HOLDS),
        ([goals(a=True, b=False)], PARTLY),
        ([goals(a=False)], NOT_HERE),
    ],
    judges.replicas.cost_is_predicted: [
        ([cost(0.3, 0.01)], HOLDS),
        ([cost(0.4, 0.01)], PARTLY),
        ([cost(0.4, 0.5)], NOT_HERE),
    ],
    judges.faults.no_kill_is_felt: [
        ([chaos(kills=("", ""))], HOLDS),
        ([chaos(kills=("", "ended elsewhere"))], PARTLY),
        ([chaos(kills=("ended elsewhere",))], NOT_HERE),
        ([chaos(kills=())], UNTESTED),
    ],
    judges.faults.no_poison_is_averaged: [
        ([chaos(poisons=("", ""))], HOLDS),
        ([chaos(poisons=("1 means not finite",))], NOT_HERE),
    ],
    judges.faults.nothing_grows: [
        ([chaos(soak=("", ""))], HOLDS),
        ([chaos(soak=("", "memory grows"))], PARTLY),
        ([chaos(soak=("memory grows",))], NOT_HERE),
    ],
}
