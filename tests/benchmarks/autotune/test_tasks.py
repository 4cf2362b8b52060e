"""Each task has a place for every value, and three parts that share no sample."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.autotune import tasks
from benchmarks.autotune.plan import SEGMENTS
from benchmarks.autotune.space import Setting
from benchmarks.autotune.tasks import (
    FROM_ZOO,
    TASKS,
    SmoothedBinary,
    batch_size,
    drawn_from_zoo,
    optimizer_of,
    put,
    workload,
)
from benchmarks.workloads import Workload


def made(task: str) -> Workload:
    try:
        return workload(task, "cpu", "cpu")
    except (FileNotFoundError, ModuleNotFoundError) as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("task", list(TASKS)[:2])
def test_every_value_has_a_place_where_it_is_felt(task: str) -> None:
    work, known = made(task), TASKS[task]
    assert work.steps % SEGMENTS == 0
    model = work.build(0).train()
    optimizer, criterion = optimizer_of(model), known.criterion()
    batch = next(work.batches(0))
    assert len(batch[0]) == batch_size(work)

    def loss(*values: float) -> float:
        put(Setting(1e-3, *values), model, optimizer, criterion)
        torch.manual_seed(0)
        return float(criterion(*known.outputs(model, batch)).detach())

    plain = loss(0.0, 0.0, 0.0)
    model.eval()
    statistics_of_training = any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    if not statistics_of_training:
        assert plain == pytest.approx(float(work.loss(model, batch).detach()), rel=1e-5), (
            "what the probe measures"
        )
    model.train()
    assert loss(0.0, 0.5, 0.0) != plain
    assert loss(0.0, 0.0, 0.0) == pytest.approx(plain)
    torch.nn.init.normal_(
        [*model.parameters()][-1]
    )  # else all classes are as likely, and smoothing is nothing
    assert loss(0.0, 0.0, 0.3) != loss(0.0, 0.0, 0.0)
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.0}
    put(Setting(1e-3, 0.7, 0.0, 0.0), model, optimizer, criterion)
    assert {group["weight_decay"] for group in optimizer.param_groups} == {0.7}


def test_no_sample_is_in_two_parts() -> None:
    work = made("digits")

    def rows(batches: object) -> set[tuple[float, ...]]:
        return {tuple(image.tolist()) for batch in batches for image in batch[0]}  # type: ignore[attr-defined]

    train, probe, test = (
        rows(islice(work.batches(0), 10)),
        rows(islice(work.probe(0), 4)),
        rows(work.held_out),
    )
    assert not train & probe
    assert not probe & test
    assert not train & test


def test_smoothing_of_a_binary_loss_is_that_of_two_classes() -> None:
    """A logit x is two classes with logits x and 0."""
    logits = torch.tensor([[0.3, -1.0, 2.0]])
    targets = torch.tensor([[1.0, 0.0, 0.0]])
    both = torch.stack([torch.zeros(3), logits[0]], dim=1)
    expected = F.cross_entropy(both, targets[0].long(), label_smoothing=0.2) * 3
    torch.testing.assert_close(SmoothedBinary(0.2)(logits, targets), expected)


def test_a_task_of_the_zoo_is_trained_by_its_own_loss() -> None:
    """A table that is made, not read, stands for those that need files."""
    known = tasks._from_zoo("teacher-one-pass")
    assert set(known.ranges) == {"lr", "weight_decay"}
    work = known.make("cpu", "cpu")
    model, batch = work.build(0), next(work.batches(0))
    loss = known.criterion()(work.loss(model, batch))
    assert torch.equal(loss, work.loss(model, batch))
    assert work.evaluate(model) > 0
    first, second = (next(work.batches(seed)) for seed in (0, 1))
    assert not torch.equal(first[0], second[0]), "each number has batches of its own"


def test_what_is_of_the_zoo_was_drawn() -> None:
    try:
        assert tuple(drawn_from_zoo(1)) == FROM_ZOO[:1]
    except FileNotFoundError as error:
        pytest.skip(str(error))
