"""Every rule by which a claim is judged reaches each of its verdicts, on made-up results."""

from __future__ import annotations

from typing import Any

import pytest

from tests.made_up import (
    COLD,
    CPU,
    FULL,
    HIGH,
    LOW,
    NO_AUTO,
    WARM,
    a_figure,
    a_table,
    averaging,
    calls,
    drawing,
    goals,
    no_rates,
    overhead,
    published,
    rates,
    regret,
    replicas,
    scalars,
    training,
    waits,
    wall_clock,
)
from tools.claims import judges
from tools.claims.rules import Difference, Verdict, asserted, refuted, runs_of, untested
from tools.claims.table import CLAIMS

HOLDS, PARTLY, NOT_HERE, UNTESTED = Verdict

ALL = {LOW: 0, HIGH: 3}


def below(line: str, metric: str = "train", than: str = "paper") -> list[tuple[Any, Verdict]]:
    """What every rule says that one line's loss is below another's, on each of two tasks."""
    lower = {f"{than}_{metric}": {line: -0.5}}
    higher = {f"{than}_{metric}": {line: 0.5}}
    lost = {f"{than}_{metric}": {line: None}}
    return [
        ([a_table(**lower), a_table("charlm", **lower)], HOLDS),
        ([a_table(**lower), a_table("charlm")], PARTLY),
        ([a_table(), a_table("charlm", **higher)], NOT_HERE),
        ([a_table(**lost)], NOT_HERE),
    ]


def beside(line: str) -> list[tuple[Any, Verdict]]:
    """What every rule says that one line's loss is another's, or is not above it."""
    higher = {"paper_train": {line: 0.5}, "paper_held_out": {line: 0.5}}
    return [
        ([a_table(), a_table("charlm")], HOLDS),
        ([a_table(), a_table("charlm", **higher)], PARTLY),
        ([a_table(**higher)], NOT_HERE),
        ([{**a_table(), "blocks": []}], UNTESTED),
    ]


def beats_low(line: str) -> list[tuple[Any, Verdict]]:
    there, here = {"crash_train": {line: -0.5}}, {"paper_train": {line: -0.5}}
    return [
        ([a_table(**here, **there)], HOLDS),
        ([a_table(**here)], PARTLY),
        ([a_table(**here, crash_lr=None)], HOLDS),
        ([a_table()], NOT_HERE),
    ]


def excess(*met: bool) -> dict[str, Any]:
    """The goals of the excess table."""
    over = {"mean": 1.0, "worst": 3.0, "worst_on": "task adamw"}
    goals = {str(k): {"met": one} for k, one in enumerate(met)}
    return {"excess": {"overall": {"autolr": {"chosen": over, "chosen_over_ends": over}}, "goals": goals}}


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


def fan_out(*differences: tuple[float, float | None]) -> dict[str, Any]:
    """What arms of four replicas lose beside one."""
    lines = [
        {
            "arm": f"arm {k}",
            "spread": 0.3,
            "replicas": 4,
            "chosen": {"difference": change, "difference_half_width": half},
        }
        for k, (change, half) in enumerate(differences)
    ]
    return {"lines": [{"arm": "probes", "spread": 0.0, "replicas": 1, "chosen": {}}, *lines]}


def cost(seconds: float, memory: float) -> dict[str, Any]:
    """How far predictions are off."""
    found = {"seconds": seconds, "memory": memory}
    return {
        "goals": {name: {"measured": off, "worst": 2 * off, "met": off <= 0.3} for name, off in found.items()}
    }


def wires(*over: tuple[float, float | None]) -> dict[str, Any]:
    """What forms of the wire end at, beside float32."""
    rows = [
        {"wire": f"int{k}", "over_float32_percent": mean, "half_width": half}
        for k, (mean, half) in enumerate(over)
    ]
    first = {"wire": "float32", "over_float32_percent": 0.0, "half_width": 0.0}
    return {"measured": {"final_loss": [first, *rows]}}


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


def islands(*ends: tuple[float, float, float | None]) -> dict[str, Any]:
    """For each length the mean's excess over DDP, the outer step's loss beside 1, and half of an interval."""
    lines = []
    for k, (excess, outer, half) in enumerate(ends):
        known: dict[str, Any] = {"workload": "digits", "steps": 100 * (k + 1), "excess_half_width": half}
        known |= {"held_out_half_width": half and half / 100, "excess_percent": excess}
        lines += [{**known, "arm": "mean", "held_out": 1.0}, {**known, "arm": "outer", "held_out": outer}]
    return {"lines": lines}


CASES: dict[Any, list[tuple[Any, Verdict]]] = {
    judges.paper.baseline_crashes: [
        ([a_table(paper_crashes={HIGH: 3})], HOLDS),
        ([a_table(paper_crashes={HIGH: 3}), a_table("charlm", paper_crashes={HIGH: 2})], PARTLY),
        ([a_table(paper_crashes={HIGH: 2}, crash_lr=None)], NOT_HERE),
    ],
    judges.paper.stable_where_plain_crashes: [
        ([a_table(crash_crashes=ALL)], HOLDS),
        ([a_table(crash_crashes=ALL), a_table("charlm", crash_crashes={**ALL, FULL: 1})], PARTLY),
        ([a_table(crash_crashes={**ALL, FULL: 1})], NOT_HERE),
        ([a_table(crash_lr=None)], UNTESTED),
        ([a_table(crash_crashes={HIGH: 2})], UNTESTED),
    ],
    judges.paper.warm_start_crashes: [
        ([a_table(crash_crashes={**ALL, WARM: 3})], HOLDS),
        ([a_table(crash_crashes={**ALL, WARM: 3}), a_table("charlm", crash_crashes=ALL)], PARTLY),
        ([a_table(crash_crashes={**ALL, WARM: 2})], NOT_HERE),
        ([a_table(crash_crashes={WARM: 3})], UNTESTED),
    ],
    judges.paper.warm_start_crashes_later_and_worse: [
        ([a_table(crash_crashes={HIGH: 3, WARM: 3}, crash_step={WARM: 200}, crash_train={WARM: 1.0})], HOLDS),
        ([a_table(crash_crashes={HIGH: 3, WARM: 3}, crash_step={WARM: 200})], PARTLY),
        ([a_table(crash_crashes={HIGH: 3, WARM: 3}, crash_step={WARM: 50})], NOT_HERE),
        ([a_table(crash_lr=None)], UNTESTED),
    ],
    judges.paper.without_auto_lr_beats_low: beats_low(NO_AUTO),
    judges.paper.full_beats_low: beats_low(FULL),
    judges.paper.spread_finds_better_optima: below(NO_AUTO),
    judges.paper.averaging_generalises: below(NO_AUTO, "held_out"),
    judges.paper.warm_start_contributes: below(FULL),
    judges.paper.auto_lr_contributes: below(FULL),
    judges.paper.auto_lr_improves: [
        ([a_table(paper_train={COLD: -0.5}, paper_held_out={COLD: -0.5})], HOLDS),
        ([a_table(paper_train={COLD: -0.5})], PARTLY),
        ([a_table(paper_held_out={COLD: 0.5})], NOT_HERE),
    ],
    judges.paper.adapts_in_pretraining: [
        ([a_table("charlm", paper_train={COLD: -0.5, NO_AUTO: 0.5})], HOLDS),
        ([a_table("charlm", paper_train={COLD: -0.5})], PARTLY),
        ([a_table("charlm")], NOT_HERE),
    ],
    judges.paper.converges_sooner: [
        ([a_figure(late={LOW: 0.5, WARM: 0.5})], HOLDS),
        ([a_figure(late={LOW: 0.5})], PARTLY),
        ([a_figure(late={FULL: 0.5})], NOT_HERE),
    ],
    judges.paper.warm_start_is_ahead_early: [
        ([a_figure(early={WARM: -0.5}, late={WARM: 0.5})], HOLDS),
        ([a_figure(early={WARM: -0.5}), a_figure("kuairand")], PARTLY),
        ([a_figure(late={WARM: -0.5})], NOT_HERE),
    ],
    judges.paper.needs_no_schedule: [
        ({"replicas": replicas((0, 2, 0, 1)), "regret-cpu": published(-0.5)}, HOLDS),
        ({"replicas": replicas((0, 2, 0, 1)), "regret-cpu": published()}, PARTLY),
        ({"replicas": replicas((2, 2.1, 0, 1)), "regret-cpu": published(sweep_lr=0.1)}, NOT_HERE),
        ({"replicas": replicas(), "regret-cpu": published(sweep_lr=0.1)}, UNTESTED),
    ],
    judges.paper.signal_points_up: [
        ([replicas((0, 0, 1.0, 0.1), (0, 0, 0.5, 0.1))], HOLDS),
        ([replicas((0, 0, 1.0, 0.1), (0, 0, 0.5, 9.0))], PARTLY),
        ([replicas((0, 0, -1.0, 0.1))], NOT_HERE),
        ([replicas()], UNTESTED),
    ],
    judges.paper.order_emerges: [
        ([rates(p=0.01)], HOLDS),
        ([rates(p=0.01), rates(task="kuairand")], PARTLY),
        ([rates(p=0.2)], NOT_HERE),
        ([no_rates()], UNTESTED),
    ],
    judges.paper.residual_rate: [
        ([rates(end=0.2)], HOLDS),
        ([rates(end=0.2), rates(task="kuairand")], PARTLY),
        ([rates(end=0.05)], NOT_HERE),
        ([no_rates()], UNTESTED),
    ],
    judges.paper.costs_a_thousandth: [
        ([training(1.0), training(0.2)], HOLDS),
        ([training(1.0), training(2.0)], PARTLY),
        ([training(2.0)], NOT_HERE),
    ],
    judges.paper.any_scalar: [
        ([scalars(60, 100)], HOLDS),
        ([scalars(49, 100)], PARTLY),
        ([scalars(20)], NOT_HERE),
    ],
    judges.rates.near_the_sweep: [
        ([regret(0.3, 1.0)], HOLDS),
        ([regret(0.2, 5.0)], PARTLY),
        ([regret(1.0, 5.0)], NOT_HERE),
    ],
    judges.rates.near_the_sweep_with_its_choice: [
        ([excess(True, True)], HOLDS),
        ([excess(True, False)], PARTLY),
        ([excess(False, False)], NOT_HERE),
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
    judges.published.crashes_as_well: [
        ([a_table(crash_crashes={FULL: 3, NO_AUTO: 4, COLD: 3})], HOLDS),
        ([a_table(crash_crashes={FULL: 3, NO_AUTO: 2, COLD: 3})], PARTLY),
        ([a_table(crash_crashes={FULL: 1})], NOT_HERE),
        ([a_table(crash_lr=None)], UNTESTED),
    ],
    judges.published.changes_nothing: [*beside(FULL), ([a_table(paper_train={FULL: -0.5})], NOT_HERE)],
    judges.published.same_path_as_plain: [
        *beside(NO_AUTO),
        ([a_table(paper_train={NO_AUTO: -0.5})], NOT_HERE),
    ],
    judges.published.moves_a_few_percent: [
        ([rates(moved=0.09)], HOLDS),
        ([rates(moved=0.09), rates(moved=0.2, task="kuairand")], PARTLY),
        ([rates(moved=0.1)], NOT_HERE),
        ([no_rates()], UNTESTED),
    ],
    judges.published.no_order: [
        ([rates(any_p=0.06)], HOLDS),
        ([rates(), rates(any_p=0.01, task="kuairand")], PARTLY),
        ([rates(any_p=0.01)], NOT_HERE),
        ([no_rates()], UNTESTED),
    ],
    judges.published.ten_times_off_stays_off: [
        ({"replicas": replicas((2, 2.1, 0, 1))}, HOLDS),
        ({"replicas": replicas((2, 2.1, 0, 1), (0, 2, 0, 1))}, PARTLY),
        ({"replicas": replicas((0, 2, 0, 1))}, NOT_HERE),
        ({"replicas": replicas()}, UNTESTED),
    ],
    judges.published.decision_steadies: [
        ([replicas((0, 0, 0, 4.0), (0, 0, 0, 2.8), (0, 0, 0, 2.0))], HOLDS),
        ([replicas((0, 0, 0, 4.0), (0, 0, 0, 3.9), (0, 0, 0, 3.8))], NOT_HERE),
        ([replicas((0, 0, 0, 4.0), (0, 0, 0, 2.0), (0, 0, 0, 1.0))], NOT_HERE),
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
    judges.replicas.fewer_bits_change_nothing: [
        ([wires((1.0, 1.5), (-1.0, 1.5))], HOLDS),
        ([wires((1.0, 1.5), (2.0, 1.5))], PARTLY),
        ([wires((2.0, 1.5))], NOT_HERE),
        ([wires((2.0, None))], UNTESTED),
    ],
    judges.replicas.islands_end_as_plain: [
        ([islands((1.0, 1.0, 1.5), (-5.0, 1.0, 1.5))], HOLDS),
        ([islands((1.0, 1.0, 1.5), (2.0, 1.0, 1.5))], PARTLY),
        ([islands((2.0, 1.0, 1.5))], NOT_HERE),
        ([islands((2.0, 1.0, None))], UNTESTED),
        ([islands((-2.0, 1.0, 30.0))], UNTESTED),
    ],
    judges.replicas.an_outer_step_helps: [
        ([islands((0.0, 0.9, 1.0), (0.0, 0.8, 1.0))], HOLDS),
        ([islands((0.0, 0.9, 1.0), (0.0, 0.99, 1.0))], PARTLY),
        ([islands((0.0, 0.99, 1.0), (0.0, 1.3, 1.0))], NOT_HERE),
        ([islands((0.0, 0.9, None))], UNTESTED),
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
    judges.published.drawing_is_cheap: [
        ([drawing(0.1, 0.02)], HOLDS),
        ([drawing(0.2, 0.02)], PARTLY),
        ([drawing(0.2)], NOT_HERE),
    ],
}


@pytest.mark.parametrize(
    ("judge", "results", "verdict"),
    [
        pytest.param(judge, results, verdict, id=f"{judge.__name__}, {k}: {verdict.value}")
        for judge, cases in CASES.items()
        for k, (results, verdict) in enumerate(cases)
    ],
)
def test_a_rule_reaches_its_verdicts(judge: Any, results: Any, verdict: Verdict) -> None:
    named = results if isinstance(results, dict) else {str(k): result for k, result in enumerate(results)}
    assert judge(named)[1] is verdict


def test_every_rule_is_tried_both_ways_and_judges_a_claim() -> None:
    rules = {getattr(room, name) for room in judges.ROOMS for name in room.__all__}
    assert rules == CASES.keys()
    assert rules <= {claim.judge for claim in CLAIMS}
    for rule, cases in CASES.items():
        assert {HOLDS, NOT_HERE} <= {verdict for _, verdict in cases}, rule
        assert rule.__doc__, "the docstring is the rule"


def test_claims_without_a_number_have_their_verdict() -> None:
    assert [judge("why")({}) for judge in (asserted, refuted, untested)] == [
        ("why", HOLDS),
        ("why", NOT_HERE),
        ("why", UNTESTED),
    ]


@pytest.mark.parametrize(
    ("values", "below", "above"),
    [
        ([-1.0, -1.1, -0.9], True, False),
        ([1.0, 1.1, 0.9], False, True),
        ([-1.0, 1.0, -0.5], False, False),
        ([-1.0], None, None),
        ([float("inf"), 0.0], False, True),
        ([float("inf"), -float("inf")], None, None),
    ],
)
def test_a_difference_is_told_by_its_whole_interval(values: Any, below: Any, above: Any) -> None:
    found = Difference.of(values)
    assert found is not None
    assert (found.below, found.above) == (below, above)


def test_differences_are_taken_seed_by_seed() -> None:
    """Seeds of the made-up table differ far more than its lines, and yet a small difference is seen."""
    text, verdict = judges.paper.auto_lr_contributes({"": a_table(paper_train={FULL: -0.001})})
    assert verdict is HOLDS
    assert "−0.0010" in text


def test_what_was_measured_is_said() -> None:
    crashed = a_table(crash_crashes={HIGH: 3, FULL: 1, NO_AUTO: 2, COLD: 4})
    text, _ = judges.paper.stable_where_plain_crashes({"": crashed})
    assert text == "feed at 0.1: plain 3, full 1 of 4 (w/o auto-LR 2, w/o warm init 4)"
    text, _ = judges.rates.ahead_of_peers({"": regret(behind=2)})
    assert text == "2 cores of Cpu: ahead in 7 of 9 comparisons"
    text, _ = judges.paper.averaging_generalises({"": a_table(), " ": a_table("charlm")})
    assert text == "held-out loss: feed +0.0000; charlm +0.0000"


def test_a_baseline_of_the_table_is_a_run_of_the_sweep() -> None:
    result = a_table(paper_train={LOW: 0.5})
    assert [run["train"] for run in runs_of(result, "paper", LOW).values()] == [1.5, 1.6, 1.7, 1.8]
    assert [run["train"] for run in runs_of(result, "paper", HIGH).values()] == [1.0, 1.1, 1.2, 1.3]
