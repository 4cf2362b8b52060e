"""Single runs, and Optuna's trials: what pruning saves is spent on more of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from benchmarks.autotune.arena import Arena
from benchmarks.autotune.plan import SEGMENTS, TPE_HYPERBAND, Run
from benchmarks.autotune.space import RANGES
from benchmarks.autotune.trials import tpe


def test_pruned_trials_are_counted_and_free_samples_for_more(tiny: Callable[..., Run]) -> None:
    pytest.importorskip(
        "optuna", reason="optuna is not installed: pip install -r benchmarks/requirements.txt"
    )
    run = tiny(TPE_HYPERBAND, members=10)
    arena = Arena.of(run)
    trials = tpe(arena)
    assert sum(trial["segments"] for trial in trials) == 10 * SEGMENTS
    assert arena.ledger.samples == 10 * 20 * 32
    pruned = [trial for trial in trials if trial["pruned"]]
    assert pruned
    assert len(trials) > 10
    assert all(trial["segments"] < SEGMENTS for trial in pruned)
    whole = [trial for trial in trials[:-1] if not trial["pruned"]]
    assert all(trial["segments"] == SEGMENTS for trial in whole), "only the last one ends with the budget"
    for trial in trials:
        assert all(known.clip(trial[name]) == trial[name] for name, known in RANGES.items())
    again = Arena.of(run)
    assert tpe(again) == trials, "a seed decides all of it"
    assert again.ledger.points == arena.ledger.points
