"""The tasks of the benchmark: their grids, their small data, and where values are written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.hyperparameters.tasks import TASKS, put, set_up
from benchmarks.workloads import charlm, digits, newsfeed
from benchmarks.workloads.base import Workload
from tests.benchmarks.hyperparameters.rows import needs_data


def rows_in(workload: Workload) -> tuple[set[bytes], set[bytes], set[bytes]]:
    """Samples that training, probe and held-out batches show, as bytes."""

    def bytes_of(batches: Any) -> set[bytes]:
        return {
            b"".join(part[i].cpu().numpy().tobytes() for part in batch)
            for batch in batches
            for i in range(len(batch[0]))
        }

    train, probe = workload.batches(0), workload.probe(0)
    return (
        bytes_of(next(train) for _ in range(30)),
        bytes_of(next(probe) for _ in range(3)),
        bytes_of(workload.held_out),
    )


def test_digits_are_few_and_a_fifth_of_the_labels_is_noise() -> None:
    made = digits.make_noisy()
    train, probe, held_out = rows_in(made)
    assert len(train) <= 150
    assert not train & probe
    assert not train & held_out
    assert not probe & held_out
    (images, labels), clean = made.held_out[0], digits.load()
    assert torch.equal(images, clean.test_images)
    # A tenth of those drawn at random are right by chance.
    assert float((labels != clean.test_labels).float().mean()) == pytest.approx(0.18, abs=0.05)


def test_small_parts_are_disjoint() -> None:
    for make in [charlm.make_overfitting, newsfeed.make_few]:
        needs_data()
        train, probe, held_out = rows_in(make())
        # A few rows of the feed look alike, though they are different impressions.
        assert len(train & probe) + len(train & held_out) <= 0.02 * len(train)


def test_values_are_written_where_they_act() -> None:
    task = replace(TASKS["dropout"], lr=0.1)
    setup = set_up(task, charlm.GPT(5, 2, 8, 2, 4))
    for name, value in {"weight decay": 0.3, "dropout": 0.4, "label smoothing": 0.2}.items():
        put(setup, name, value)
    put(setup, "attention temperature", 3.0)
    assert setup.optimizer.param_groups[0]["weight_decay"] == 0.3
    assert {module.p for module in setup.model.modules() if isinstance(module, nn.Dropout)} == {0.4}
    assert [block.temperature for block in setup.model.blocks] == [3.0, 3.0]
    assert setup.criterion.label_smoothing == 0.2
    with pytest.raises(TypeError, match="needs CrossEntropyLoss"):
        put(set_up(TASKS["weight decay"], nn.Linear(1, 1)), "label smoothing", 0.1)
