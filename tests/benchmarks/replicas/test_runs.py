"""Runs with more replicas: repeatable, and each sees samples of its own."""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.replicas import runs as replicas_runs
from benchmarks.replicas.runs import Run


def test_a_run_is_the_same_again_and_another_with_another_seed(small: None) -> None:
    run = Run("published", 2, 0.01, seed=0, steps=20)
    row = replicas_runs.execute(run)
    assert len(row["decisions"]) == 2
    assert {len(decision) for decision in row["decisions"]} == {4}, "one for each group of parameters"
    assert replicas_runs.execute(run) == row
    assert replicas_runs.execute(replace(run, seed=1))["held_out"] != row["held_out"]
    assert row["held_out"] < row["init"]


def test_n_replicas_see_n_times_the_samples_and_no_seed_those_of_another() -> None:
    def some(replicas: int, seed: int) -> torch.Tensor:
        return next(replicas_runs._batches(Run("plain", replicas, 0.01, seed)))[0]

    assert (len(some(2, 0)), len(some(4, 0))) == (32, 64)
    assert torch.equal(some(4, 0)[:32], some(2, 0))
    assert not torch.equal(some(2, 1), some(2, 0))
