"""What is written down, and what a method is told of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.autotune.ledger import Ledger
from benchmarks.autotune.space import DEFAULTS
from benchmarks.autotune.tasks import workload


def test_only_improvements_are_kept_with_what_was_spent_by_then() -> None:
    work = workload("digits", "cpu", "cpu")
    model = work.build(0)
    ledger = Ledger(work, 0, model)
    begun = ledger.points[0]
    assert begun[0] == 0
    assert begun[2] == pytest.approx(work.evaluate(model))
    ledger.spend(32)
    with torch.no_grad():
        [*model.parameters()][-1][0] += 5.0
    worse = ledger.look(model, DEFAULTS)
    assert worse > begun[1]
    assert ledger.points == [begun]
    assert ledger.setting is None
    with torch.no_grad():
        [*model.parameters()][-1][0] -= 5.0
        [*model.parameters()][-2].mul_(0.5)
    better = ledger.look(model, DEFAULTS)
    if better < begun[1]:
        assert ledger.points[-1][:2] == (32, better)
        assert ledger.setting == DEFAULTS
    assert ledger.result()["samples"] == 32


def test_a_lost_model_is_told_as_ten_times_the_start_and_never_handed_over() -> None:
    work = workload("digits", "cpu", "cpu")
    model = work.build(0)
    ledger = Ledger(work, 0, model)
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    assert ledger.look(model) == pytest.approx(10 * ledger.points[0][1])
    assert len(ledger.points) == 1
    assert ledger.result()["test"] == ledger.result()["init"]


def test_the_test_is_not_told() -> None:
    """With other test samples the loss that a method hears is the same."""
    work = workload("digits", "cpu", "cpu")
    model = work.build(0)
    other = replace(work, held_out=tuple((part[0] * 0, part[1]) for part in work.held_out))
    first, second = Ledger(work, 0, model), Ledger(other, 0, model)
    assert first.points[0][2] != second.points[0][2]
    assert first.look(model) == second.look(model)
