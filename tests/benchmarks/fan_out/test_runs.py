"""What a replica is given to probe, and one run of a single one."""

from __future__ import annotations

import torch

from benchmarks.fan_out.plan import PROBES, Run, run_of
from benchmarks.fan_out.runs import BATCHES, MOST_RANKS, SAMPLES, execute, probed
from benchmarks.workloads import WORKLOADS

RUN = Run("quadratic", "adamw", PROBES, 1, seed=1, steps=60)


def test_no_two_replicas_probe_the_same_sample() -> None:
    workload = WORKLOADS["digits-mlp"]()
    given = [probed(rank, RUN, workload) for rank in range(MOST_RANKS)]
    chosen = [batch for batches in given for batch in batches[:BATCHES]]
    assert {len(labels) for _, labels in chosen} == {SAMPLES}
    images = torch.cat([images for images, _ in chosen])
    assert len(images) == MOST_RANKS * BATCHES * SAMPLES == 256
    assert len(torch.unique(images, dim=0)) == 256, "all that there are"
    again = probed(3, RUN, workload)
    assert all(torch.equal(a[0], b[0]) for a, b in zip(given[3], again, strict=True))


def test_a_run_is_the_same_again() -> None:
    row, again = execute(0, RUN), execute(0, RUN)
    assert row is not None
    assert again is not None
    assert {**row, "seconds": 0} == {**again, "seconds": 0}
    assert run_of(row) == RUN
    assert row["held_out"] < row["init"]
    assert row["windows"] > 0
    assert row["progress_error"] > 0
