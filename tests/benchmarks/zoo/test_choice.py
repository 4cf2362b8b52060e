"""Which weights to return: every rule on the same candidates."""

import json
from itertools import islice

import pytest
import torch
from torch import nn

from benchmarks.tools.quote.tables.rates import zoo_choice
from benchmarks.zoo import choice, runs
from benchmarks.zoo.catalogue import TASKS
from benchmarks.zoo.choice import ROWS, RULES, compare, execute_measured, seen_in
from benchmarks.zoo.plan import Plan, run_of
from benchmarks.zoo.runs import execute, mean_loss
from benchmarks.zoo.task import Parts, task
from hdet.autolr.best import BestWeights

TASK = "linear-layers-full-batch"
RUN = Plan([]).run("autolr", (TASK, "adamw"), 0)


def row_of(*candidates, means=None, **more):
    """Of each candidate the losses and the test loss; the last one is the end."""
    kinds = ["start", *["mean"] * (len(candidates) - 2), "end"]
    seen = [[10 * at, kind, *one] for at, (kind, one) in enumerate(zip(kinds, candidates, strict=True))]
    return {"steps": 100, "start": 2.0, "candidates": seen, "means": means or {}, **more}


def chosen(rule, row, batches=(0, 1)):
    return RULES[rule](*seen_in(row, batches)).candidate.step


# The gain is 1; above the lowest, at 10, are 0.0015, 0.008, 0.015, all ± 0.01, and the end, 0.025 ± 0.02.
GAIN = row_of(
    ([2.0, 2.0], 2.0),
    ([1.0, 1.0], 0.9),
    ([0.9915, 1.0115], 0.8),
    ([0.998, 1.018], 0.7),
    ([1.005, 1.025], 0.6),
    ([1.005, 1.045], 0.95),
    means={"ema0.1": [[0.9, 1.0], 0.5], "descent": None},
)


@pytest.mark.parametrize(
    ("rule", "step"),
    [
        ("the end", 50),
        ("the lowest", 10),
        ("the latest within 0.1 %", 10),
        ("the latest within 0.2 %", 20),
        ("the latest within 0.5 %", 20),
        ("the latest within 1 %", 30),
        ("the latest within 2 %", 40),
        ("as it is", 20),
        ("as in 0.2.0", 50),
        ("the lowest, ema0.1 too", 100),
        ("the lowest, descent too", 10),
        ("the best by the test loss", 40),
    ],
)
def test_a_rule_chooses(rule, step):
    assert chosen(rule, GAIN) == step


def test_errors_and_the_gain_bound_the_rule_of_0_2_0():
    worse_end = row_of(*(one[2:] for one in GAIN["candidates"][:-1]), ([1.02, 1.06], 0.9))
    assert chosen("as in 0.2.0", worse_end) == 30  # at 40 it is 0.015 above, and the error is 0.01
    little_gained = row_of(([1.1, 1.1], 1.0), *(one[2:] for one in worse_end["candidates"][1:]))
    assert chosen("as in 0.2.0", little_gained) == 20  # of 0.1 a fiftieth is 0.002


def test_a_loss_is_moved_toward_its_neighbours_where_noise_explains_the_difference():
    def row(low):
        return row_of(([2.0, 2.0], 2.0), (low, 1.0), ([2.0, 2.0], 1.0), ([1.2, 1.2], 1.0))

    # 1 ± 1 below its neighbours: it moves halfway to them, to 1.5, and the end stays at 1.2.
    assert chosen("shrunk toward neighbours", row([0.0, 2.0])) == 30
    # 1 ± 0.5: a quarter of halfway, 1.125.
    assert chosen("shrunk toward neighbours", row([0.5, 1.5])) == 10
    assert chosen("the lowest", row([0.0, 2.0])) == 10


def test_what_is_not_finite_is_not_chosen():
    row = row_of(([2.0, 2.0], 2.0), ([1.0, 1.0], None), ([None, 0.1], 0.1))
    assert chosen("the end", row) == 10
    assert chosen("the best by the test loss", row) == 0


def test_fewer_batches_choose_from_the_same_candidates():
    row = row_of(([2.0, 2.0], 2.0), ([0.5, 1.0], 1.0), ([1.0, 0.1], 1.0))
    assert [chosen("the lowest", row, batches) for batches in ((0,), (1,), (0, 1))] == [10, 20, 20]


def test_no_run_counts_for_more_than_one():
    given = {"task": "letter-mlp", "optimizer": "adamw"}
    rows = [row_of(([3.0] * 4, 2.0), ([1.0] * 4, test), **given) for test in (1.1, 1.3, 9.0, None)]
    found = compare(rows, {("letter-mlp", "adamw"): 1.0})
    told = found["rules"]["as it is"]
    assert told["4"]["fit"] == pytest.approx({"mean_to_one": (0.1 + 0.3 + 1 + 1) / 4, "median": 0.65})
    assert told["1"] == told["4"]
    table = zoo_choice({"rules": {"as it is": {by: {**told[by], "dev": told[by]["fit"]} for by in told}}})
    assert "| as it is | 60.00 | 60.00 | 60.00 | 60.00 |" in table


def test_as_it_is_is_the_latest_within_a_five_hundredth():
    with ROWS.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in islice(lines, 20)]
    for row in rows:
        for batches in ((0, 1, 2, 3), (0, 1), (3,)):
            given = seen_in(row, batches)
            assert RULES["as it is"](*given) is RULES["the latest within 0.2 %"](*given)


def noisy_task():
    """With batch norm, whose statistics a mean has not, and dropout, which draws from the random state."""

    def data():
        x = torch.randn(384, 4, generator=torch.Generator().manual_seed(0))
        return Parts(*((some, some.sum(1, keepdim=True)) for some in x.split(128)))

    def model():
        return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 1))

    def loss(model, batch):
        return (model(batch[0]) - batch[1]).square().mean()

    return task("noisy", "letter-shapes", 60, data=data, model=model, loss=loss, batch=16)


# The first returns the end, the others the mean of a window; the second goes back on its way.
@pytest.mark.parametrize(
    ("name", "optimizer", "steps"),
    [(TASK, "adamw", 60), (TASK, "sgd", 120), ("noisy", "adamw", 40), ("noisy", "sgd", 40)],
)
def test_a_measured_run_is_the_same_run(name, optimizer, steps, monkeypatch):
    monkeypatch.setitem(TASKS, "noisy", noisy_task())
    run = Plan([]).run("autolr", (name, optimizer), 0)
    plain, offer, settings = execute(run, steps), BestWeights.offer, []
    autolr = runs._autolr
    monkeypatch.setattr(runs, "_autolr", lambda *given: settings.append(given[1]) or autolr(*given))
    row = execute_measured(run, steps)
    assert BestWeights.offer is offer
    assert run_of(row) == run
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert [one[1] for one in row["candidates"]][:: len(row["candidates"]) - 1] == ["start", "end"]
    assert row["candidates"][-1][3] == pytest.approx(plain["test"], rel=1e-5)
    kept = RULES["as it is"](*seen_in(row))
    assert (kept.candidate.step, kept.candidate.kind) == (plain["chosen_step"], plain["chosen_kind"])
    (setting,) = settings
    assert kept.test == pytest.approx(mean_loss(setting, setting.test), rel=1e-5)
    assert set(row["means"]) == {"ema0.1", "descent"}
    assert all(test < row["start"] for _, test in row["means"].values())


def test_running_means_are_reset_where_the_weights_are_put_back():
    model = torch.nn.Linear(1, 1, bias=False)
    means = choice._Means(model, steps=8)
    for weight in (5.0, 9.0):
        model.weight.data.fill_(weight)
        means.add(reset=False)
    assert 5 < means.weights["ema0.1"][0].item() < 9
    assert "descent" not in means.weights
    for weight in (float("nan"), 1.0, 1.0, 1.0, 1.0, 3.0):
        model.weight.data.fill_(weight)
        means.add(reset=weight != weight)
    assert means.weights["descent"][0].item() == 2  # of the last two of eight steps
    assert 1 < means.weights["ema0.1"][0].item() < 3


def test_a_run_that_fails_says_so(monkeypatch):
    monkeypatch.setattr(runs, "mean_loss", lambda *given: 1 / 0)
    assert execute_measured(RUN, steps=20)["error"].startswith("ZeroDivisionError")


def test_what_is_kept_is_compared_and_not_run_again(tmp_path, monkeypatch):
    output, kept = tmp_path / "found.json", tmp_path / "rows.jsonl"
    lines = ROWS.read_text(encoding="utf-8").splitlines(keepends=True)[:1]
    kept.write_text("".join(lines))
    one = run_of(json.loads(lines[0]))
    monkeypatch.setattr(choice, "cells", lambda part: [(one.task, one.optimizer)] * (part == "fit"))
    monkeypatch.setattr("sys.argv", ["choice", "--rows", str(kept), "--output", str(output)])
    choice.main()
    found = json.loads(output.read_text())
    assert (found["experiment"], found["missing_runs"], found["errors"]) == ("zoo-choice", 1, [])
    assert found["command"] == "python -m benchmarks.zoo.choice --device cuda"
    assert list(found["rules"]) == list(RULES)
    assert found["rules"]["as it is"] == found["rules"]["the latest within 0.2 %"]
