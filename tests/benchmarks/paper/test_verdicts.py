"""Verdicts about the paper follow from intervals, place by place."""

from __future__ import annotations

import json
from typing import Any

import pytest

from benchmarks.paper.verdicts import (
    CLAIMS,
    FULL,
    HIGH,
    LOW,
    Claim,
    below,
    cheap,
    critical,
    judged,
    plain_crashes,
    stable,
    table,
)
from benchmarks.reproduce.plan import CONFIGURATIONS
from tests import ROOT

EVIDENCE = ROOT / "docs" / "evidence"


def result(losses: dict[str, list[float | None]], crashed: dict[str, int] | None = None) -> dict[str, Any]:
    """A table with both blocks, each line with the same runs in both."""
    lrs = {line: place / 100 for place, line in enumerate(losses, 1)}
    rows = [{"configuration": line, "lr": lr} for line, lr in lrs.items()]
    header = ["configuration", "lr", "seed", "train", "held_out", "crashed"]
    runs = [
        [CONFIGURATIONS[line].runs, lrs[line], seed, loss, loss, seed < (crashed or {}).get(line, 0)]
        for line, some in losses.items()
        for seed, loss in enumerate(some)
    ]
    blocks = [{"name": name, "rows": rows} for name in ("paper", "crash")]
    return {
        "task": "feed",
        "blocks": blocks,
        "sweep": {"crash_lr": 0.1},
        "runs": {"header": header, "rows": runs},
    }


def verdict(rule: Any, *results: dict[str, Any]) -> str:
    return judged(Claim("it is so", "1", (), rule), results)[1]


BETTER = result({FULL: [1.0, 1.1, 1.2], LOW: [1.5, 1.6, 1.71]})
NOISY = result({FULL: [1.0, 1.1, 1.2], LOW: [0.9, 1.3, 1.2]})


def test_one_loss_is_below_another_only_with_its_whole_interval() -> None:
    rule = below(FULL, LOW)
    assert verdict(rule, BETTER) == "holds"
    assert verdict(rule, NOISY) == "does not hold here"
    assert verdict(rule, BETTER, NOISY) == "partly"
    assert verdict(rule, result({FULL: [1.0], LOW: [2.0]})) == "not tested"
    assert verdict(rule) == "not tested"


def test_a_loss_that_is_not_finite_is_above_all_others() -> None:
    lost = result({FULL: [1.0, None, 1.2], LOW: [2.0, 2.0, 2.0]})
    assert verdict(below(FULL, LOW), lost) == "does not hold here"


def test_stability_is_told_where_plain_training_crashes_alone() -> None:
    losses: dict[str, list[float | None]] = {FULL: [1.0] * 3, HIGH: [1.0] * 3}
    assert verdict(stable, result(losses, {HIGH: 3})) == "holds"
    assert verdict(stable, result(losses, {HIGH: 3, FULL: 1})) == "does not hold here"
    assert verdict(stable, result(losses, {HIGH: 1})) == "not tested"
    assert verdict(plain_crashes, result(losses, {HIGH: 2})) == "holds"


@pytest.mark.parametrize(("steps", "told"), [(1.4, "holds"), (1.6, "does not hold here")])
def test_a_sync_is_cheap_at_a_thousandth(steps: float, told: str) -> None:
    found = {"rows": [{"part": "training", "sync_steps": steps}], "machine": {"gpu": None}}
    assert verdict(cheap, found) == told


@pytest.mark.parametrize(("mean", "told"), [(0.03, "holds"), (0.005, "does not hold here")])
def test_reassignment_is_critical_where_the_loss_is_above_without_it(mean: float, told: str) -> None:
    line = {"arm": "never reassigned", "lr": 1e-3, "mean": mean, "half": 0.01}
    assert verdict(critical, {"parts": {"reassignment": [line]}}) == told


def test_every_claim_is_judged_by_files_that_are_there() -> None:
    text = table(EVIDENCE)
    assert text.count("\n| ") == len(CLAIMS) + 1
    assert "not tested" not in text
    for name in {name for claim in CLAIMS for name in claim.files}:
        assert json.loads((EVIDENCE / f"{name}.json").read_text(encoding="utf-8"))
