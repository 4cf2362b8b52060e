"""AutoTune's arm: one run on as many replicas as other arms have runs."""

from __future__ import annotations

import pytest
from torch import nn
from torch.optim import AdamW

from benchmarks.autotune.arena import Arena
from benchmarks.autotune.plan import AUTOTUNE, LARGE, Run
from benchmarks.autotune.replicas import autotune, explored, large
from benchmarks.autotune.space import RANGES
from benchmarks.autotune.tasks import SmoothedBinary, batch_size

RUN = Run("digits", AUTOTUNE, 0, 0, members=4, steps=120)


def test_one_replica_alone_spends_its_samples_and_hands_over_the_best() -> None:
    arena = Arena.of(Run("digits", AUTOTUNE, 0, 0, members=1, steps=120))
    (trial,) = autotune(0, arena)
    result = arena.ledger.result()
    assert result["samples"] == 120 * batch_size(arena.workload)
    assert result["probe"] == min(point[1] for point in result["points"]) <= trial["probe"]
    assert result["test"] < result["init"]


def test_all_that_a_search_tunes_is_explored_within_its_bounds() -> None:
    for criterion in [nn.CrossEntropyLoss(), SmoothedBinary()]:
        model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0))
        optimizer = AdamW(model.parameters())
        axes = [axis for item in explored(model, criterion, RANGES) for axis in item.bind(optimizer)]
        assert {axis.name for axis in axes} == set(RANGES) - {"lr"}
        for axis in axes:
            far = [axis.values([level])[0] for level in (-1e3, 1e3)]
            assert far == pytest.approx([RANGES[axis.name].low, RANGES[axis.name].high])
            assert axis.regulariser or axis.name == "weight_decay"


def test_a_large_batch_is_that_of_all_replicas() -> None:
    arena = Arena.of(Run("digits", LARGE, 0, 0, members=3, steps=40))
    (trial,) = large(arena)
    result = arena.ledger.result()
    assert result["samples"] == 3 * 40 * batch_size(arena.workload)
    assert result["test"] < result["init"]
    assert trial["weight_decay"] == 0.01
