"""One run of a cell."""

import json
from types import SimpleNamespace

import pytest
import torch

from benchmarks.regret import peers
from benchmarks.zoo.plan import PEERS, Plan, Run
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


@pytest.mark.parametrize("method", PEERS)
def test_a_peer_that_is_not_there_is_a_row_that_says_so(monkeypatch, method):
    def nothing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(peers, "import_module", nothing)
    row = execute(Plan([]).run(method, (TASK, "adamw"), 0), steps=2)
    assert row["method"] == method
    assert "pip install" in row["error"]


def test_schedule_free_leaves_its_average_and_no_choice(monkeypatch):
    class Averages(torch.optim.SGD):
        def __init__(self, parameters, momentum, warmup_steps):
            super().__init__(parameters, lr=0.01)
            self.param_groups[0]["scheduled_lr"] = 0.01
            self.start = [weight.detach().clone() for weight in self.param_groups[0]["params"]]

        def train(self):
            pass

        @torch.no_grad()
        def eval(self):
            for weight, first in zip(self.param_groups[0]["params"], self.start, strict=True):
                weight.copy_(first)

    monkeypatch.setattr(peers, "import_module", lambda name: SimpleNamespace(SGDScheduleFree=Averages))
    row = execute(Plan([]).run("schedule-free", (TASK, "sgd"), 0), steps=20)
    assert row["test"] == row["test_chosen"] == row["start"], "its average is here where it began"
    assert row["chosen_step"] is None
    assert row["reached"] == 0.01


@pytest.mark.parametrize(("method", "bounds"), [("greedy", (1e-5, 1.0)), ("greedy-bounds", (1e-7, 1e-4))])
def test_greedy_is_told_every_loss_and_starts_within_its_bounds(monkeypatch, method, bounds):
    made = []

    class Greedy:
        def __init__(self, optimizer, *, min_lr, max_lr, **settings):
            self.began, self.bounds, self.told = optimizer.param_groups[0]["lr"], (min_lr, max_lr), []
            made.append(self)

        def step(self, loss):
            self.told.append(loss)

    monkeypatch.setattr(peers, "import_module", lambda name: SimpleNamespace(GreedyLR=Greedy))
    row = execute(Plan([]).run(method, (TASK, "adamw"), 0), steps=40)
    assert row["test_chosen"] < row["start"]
    assert row["chosen_step"] > 0
    assert made[0].bounds == bounds
    assert made[0].began == min(1e-3, bounds[1])
    assert len(made[0].told) == 40


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
    setting = Setting(
        model, lambda: batches[0], lambda batch: model(batch[0]).mean(), batches, batches, 8, additive=True
    )
    assert mean_loss(setting, batches) == 0.75
    assert model.training
