"""AutoTune's arm: one run on as many replicas as other arms have runs."""

from __future__ import annotations

import pytest
from torch import nn
from torch.optim import AdamW

from hdet.bench.autotune.arena import Arena
from hdet.bench.autotune.arms import execute
from hdet.bench.autotune.plan import AUTOTUNE, Run
from hdet.bench.autotune.replicas import autotune, explored
from hdet.bench.autotune.space import RANGES
from hdet.bench.autotune.tasks import SmoothedBinary, batch_size
from hdet.replicas.launch import LocalProcesses

RUN = Run("digits", AUTOTUNE, 0, 0, members=4, steps=120)


def test_one_replica_alone_spends_its_samples_and_hands_over_the_best() -> None:
    arena = Arena.of(Run("digits", AUTOTUNE, 0, 0, members=1, steps=120))
    (trial,) = autotune(0, arena)
    result = arena.ledger.result()
    assert result["samples"] == 120 * batch_size(arena.workload)
    assert result["probe"] == min(point[1] for point in result["points"]) <= trial["probe"]
    assert result["test"] < result["init"]


def test_replicas_spend_what_all_of_them_train_on_and_stay_within_the_bounds() -> None:
    with LocalProcesses(RUN.members) as ranks:
        row, *others = ranks.run(execute, RUN, size=RUN.members, timeout=180)
    assert others == [None] * 3
    assert row is not None
    assert row["samples"] == RUN.members * 120 * batch_size(RUN.workload)
    assert row["test"] < row["init"]
    for name in ("weight_decay", "dropout", "label_smoothing"):
        assert RANGES[name].low <= row["trials"][0][name] <= RANGES[name].high


@pytest.mark.parametrize("criterion", [nn.CrossEntropyLoss(), SmoothedBinary()])
def test_all_that_a_search_tunes_is_explored_within_its_bounds(criterion: nn.Module) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0))
    optimizer = AdamW(model.parameters())
    axes = [axis for item in explored(model, criterion) for axis in item.bind(optimizer)]
    assert {axis.name for axis in axes} == set(RANGES) - {"lr"}
    for axis in axes:
        far = [axis.values([level])[0] for level in (-1e3, 1e3)]
        assert far == pytest.approx([RANGES[axis.name].low, RANGES[axis.name].high])
        assert axis.regulariser or axis.name == "weight_decay"
