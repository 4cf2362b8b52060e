"""Excess: its arithmetic against slow twins, what it says of runs without a loss, and the goals."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from typing import Any

import pytest

from benchmarks.regret.analysis import interval
from benchmarks.regret.excess import compare
from benchmarks.regret.plan import Row, Run
from tests.benchmarks.regret.rows import row


def run(arm: str, seed: int, end: float, chosen: float | None = None, **about: Any) -> Row:
    """A run that ended at ``end`` and chose weights of that loss, or of another."""
    chosen = end if chosen is None else chosen
    made = row(arm, seed, end, **about)
    return {**made, "chosen": chosen, "chosen_step": 3, "chosen_kind": "mean", "estimate": chosen, "taken": 5}


def lost(arm: str, seed: int, chosen: float | None = None, **about: Any) -> Row:
    """A run that diverged, with or without something chosen before."""
    made = {**row(arm, seed, 1.0, **about), "held_out": None, "train": None, "diverged": True}
    return made if chosen is None else {**made, "chosen": chosen, "chosen_step": 3}


#: By its end 0.1 is the best; by what it chose, 1.0, under the same schedule.
SWEEP = [
    *(run("sweep", seed, 1.5 + seed / 10, 1.4 + seed / 10, lr=0.01) for seed in range(3)),
    *(run("sweep", seed, 1.0 + seed / 10, 1.0 + seed / 10, lr=0.1) for seed in range(3)),
    *(run("sweep", seed, 1.2 + seed / 10, 0.8 + seed / 10, lr=1.0) for seed in range(3)),
    *(lost("sweep", seed, lr=10.0) for seed in range(3)),
]
ENDS, CHOSEN = (1.02, 1.13, 1.26), (0.82, 0.91, 1.02)
OURS = [run("autolr", seed, end, best) for seed, (end, best) in enumerate(zip(ENDS, CHOSEN, strict=True))]


def cells(rows: list[Row], arm: str = "autolr") -> Any:
    (pair,) = compare(rows)["pairs"]
    return pair["arms"][arm]


def test_each_measure_is_paired_with_its_own_yardstick() -> None:
    found = cells(SWEEP + OURS)
    by_end, by_choice = (1.0, 1.1, 1.2), (0.8, 0.9, 1.0)
    for measure, ours, theirs in (
        ("ends", ENDS, by_end),
        ("chosen", CHOSEN, by_choice),
        ("chosen_over_ends", CHOSEN, by_end),
    ):
        mean, half = interval([100 * (a / b - 1) for a, b in zip(ours, theirs, strict=True)])
        assert (found[measure]["excess"], found[measure]["half_width"]) == pytest.approx((mean, half))
        assert (found[measure]["seeds"], found[measure]["lost"]) == (3, 0)
        assert "reason" not in found[measure]
    (pair,) = compare(SWEEP + OURS)["pairs"]
    assert (pair["tuned"]["held_out"]["lr"], pair["tuned"]["chosen"]["lr"]) == (0.1, 1.0)
    assert pair["tuned"]["chosen"]["loss"] == pytest.approx(0.9)


def test_a_diverged_end_is_infinite_and_its_choice_may_not_be() -> None:
    rows = [*SWEEP, *OURS[:2], lost("autolr", 2, chosen=1.1)]
    found = cells(rows)
    assert found["ends"]["excess"] is None
    assert found["ends"]["lost"] == 1
    assert found["ends"]["reason"] == "1 of 3 runs have no finite loss"
    assert found["chosen"]["excess"] == pytest.approx(statistics.fmean([2.5, 100 * (0.91 / 0.9 - 1), 10]))
    over = compare(rows)["overall"]["autolr"]
    assert (over["ends"]["mean"], over["ends"]["worst"], over["ends"]["lost"]) == (None, None, 1)
    assert over["chosen"]["worst_on"] == "quadratic adamw"
    # Nothing was chosen either.
    assert cells([*SWEEP, lost("autolr", 0)])["chosen"]["lost"] == 1


def test_a_rate_with_fewer_seeds_is_compared_on_those() -> None:
    # Seed 0 is easier for all: a rate that has it alone must not look better for it.
    rows = [
        *(run("sweep", seed, 1.0 + seed, lr=0.1, init=9.0) for seed in range(3)),
        *(run("sweep", seed, 1.5 + seed, lr=0.01, init=9.0) for seed in range(3)),
        run("sweep", 0, 1.4, lr=1.0, init=9.0),
        *(run("autolr", seed, 1.2 + seed, init=9.0) for seed in range(3)),
    ]
    assert cells(rows)["ends"]["off"]["above"] == pytest.approx(10**0.5)


def test_goals() -> None:
    goals = compare(
        [
            *SWEEP,
            *OURS,
            *(run("default-onecycle", seed, 1.5) for seed in range(3)),
            *(run("prodigy", seed, 0.8) for seed in range(3)),
            run("autolr", 7, 2.5),
        ]
    )["goals"]
    assert {name: goal["met"] for name, goal in goals.items()} == {
        "mean excess of AutoLR, chosen over chosen, at most 2 %": True,
        "worst excess at most 5 %": True,
        "at least: mean excess 4 %": True,
        "at least: worst excess 10 %": True,
        "ahead of the default rate, in mean and in worst": True,
        "ahead of every peer that asks for no rate, in mean and in worst": False,
        "mean excess, chosen over the sweep as it ends, at most 0 %": True,
        "nothing ends worse than it began": False,
    }
    peers = goals["ahead of every peer that asks for no rate, in mean and in worst"]
    assert (peers["measured"], peers["of"]) == (2, 2)
    assert peers["behind"][0].startswith("Prodigy: mean ")
    worse = goals["nothing ends worse than it began"]
    assert (worse["behind"], worse["of"]) == (["quadratic adamw autolr seed 7"], 4)
    assert not any(goal["met"] for goal in compare([])["goals"].values())


def test_a_run_that_raised_counts_as_worse() -> None:
    raised = {**asdict(Run("quadratic", "adamw", "autolr", None, "own", 1)), "error": "ValueError: no"}
    assert compare(SWEEP + OURS, [raised])["goals"]["nothing ends worse than it began"]["measured"] == 1
    # What was handed over counts, not how it ended; the start itself is no worse.
    first = {**run("autolr", 0, 3.0, 2.0), "chosen_step": 0}
    assert compare([*SWEEP, first])["goals"]["nothing ends worse than it began"]["met"]
