"""Made-up results on which every rule about the published method reaches each of its verdicts."""

from __future__ import annotations

from typing import Any

from benchmarks.tools.claims import judges
from benchmarks.tools.claims.rules import Verdict
from tests.made_up import (
    COLD,
    FULL,
    HIGH,
    LOW,
    NO_AUTO,
    WARM,
    a_figure,
    a_table,
    drawing,
    no_rates,
    published,
    rates,
    replicas,
    scalars,
    training,
)

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
    judges.published.drawing_is_cheap: [
        ([drawing(0.1, 0.02)], HOLDS),
        ([drawing(0.2, 0.02)], PARTLY),
        ([drawing(0.2)], NOT_HERE),
    ],
}
