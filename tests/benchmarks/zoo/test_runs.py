"""One run of a cell."""

import json

import pytest
import torch

from benchmarks.zoo.plan import Run
from benchmarks.zoo.runs import execute, mean_loss
from benchmarks.zoo.task import Setting

TASK = "linear-layers-full-batch"


def fixed(rate=0.1, schedule="onecycle", optimizer="sgd", seed=0):
    return Run(TASK, optimizer, "fixed", rate, schedule, seed)


@pytest.mark.parametrize("schedule", ["onecycle", "wsd"])
def test_a_fixed_rate_tells_the_end_and_the_choice(schedule):
    row = execute(fixed(schedule=schedule), steps=60)
    assert "error" not in row
    assert row["test"] < row["start"]
    assert row["test_chosen"] <= 1.1 * row["test"]
    assert row["reached"] == pytest.approx(0.1)
    assert (row["taken"], row["diverged"]) == (60, False)
    json.dumps(row, allow_nan=False)


def test_the_same_run_gives_the_same_row_and_another_seed_another():
    one, again, other = (execute(fixed(seed=seed), steps=50) for seed in (0, 0, 1))
    assert one["test"] == again["test"] != other["test"]


def test_autolr_is_given_no_rate():
    row = execute(Run(TASK, "adamw", "autolr", None, "own", 0), steps=60)
    assert "error" not in row
    assert row["test_chosen"] < row["start"]
    assert row["taken"] <= 60
    assert row["found"] > 0


def test_muon_and_lion_run_too():
    for optimizer, task in (("lion", "teacher-one-pass"), ("muon", "sums-full-batch")):
        if optimizer == "muon" and not hasattr(torch.optim, "Muon"):
            continue
        row = execute(Run(task, optimizer, "fixed", 1e-3, "wsd", 0), steps=50)
        assert row["test"] is not None


def test_a_run_that_diverges_ends_early_and_says_so():
    row = execute(fixed(rate=1e4), steps=200)
    assert row["diverged"]
    assert row["test"] is None
    assert row["taken"] < 200


def test_an_error_is_a_row():
    row = execute(Run("nobody", "sgd", "fixed", 0.1, "wsd", 0))
    assert row["error"] == "KeyError: 'nobody'"


def test_a_mean_counts_rows_and_leaves_modes_alone():
    model = torch.nn.Dropout(0.5)
    batches = [(torch.ones(3, 1),), (torch.zeros(1, 1),)]
    setting = Setting(model, lambda: batches[0], lambda batch: model(batch[0]).mean(), batches, batches)
    assert mean_loss(setting, batches) == 0.75
    assert model.training
