"""Replicas on data of their own, against one large batch."""

import json
from xml.etree import ElementTree

import pytest
import torch

from benchmarks.tools.quote.tables.several import zoo_replicas
from benchmarks.zoo import replicas
from benchmarks.zoo.replicas import ARMS, MAIN, ROWS, Run, chart, compare, execute, fits
from hdet.replicas.launch import LocalProcesses

TASK = "teacher-one-pass"  # made by a generator: no file is needed
_EXPLORED = {"auto": {"weight_decay"}, "rate": {"rate"}}


def row_of(run, loss, at=1.0):
    return {
        **{name: getattr(run, name) for name in ("task", "optimizer", "arm", "replicas", "seed", "device")},
        **{"test_chosen": loss, "start": 2.0, "chosen_step": 100 * at, "steps": 100, "batch": 8, "rows": 160},
    }


def rows_of(task, losses, at, seeds=(0, 1)):
    return [
        row_of(Run(task, "adamw", arm, 4, seed), loss, at)
        for seed in seeds
        for arm, loss in zip(MAIN, losses, strict=True)
    ]


def test_a_task_overfits_where_the_large_batch_is_best_before_the_end():
    rows = [*rows_of(TASK, (1.0, 0.9, 0.8), 0.5), *rows_of("adding-recurrent", (1.0, 1.1, None), 1.0)]
    lonely = row_of(Run("poker-mlp", "adamw", "large", 4, 0), 1.0)
    found = compare([*rows, lonely])
    first, second = found["cells"]
    assert (second["task"], second["seeds"], second["best_at"], second["epochs"]) == (TASK, 2, 0.5, 20.0)
    assert (second["averaged"], second["tuned"]) == pytest.approx((-0.1, -0.2))
    assert first["tuned"] == 1.0, "nothing finite is left: it stayed where it began"
    told = found["summary"]
    assert {kind: some["tuned"]["cells"] for kind, some in told.items()} == {
        "overfits": 1,
        "does not": 1,
        "all": 2,
    }
    assert told["all"]["averaged"] == pytest.approx(
        {"cells": 2, "ahead": 1, "mean": 0.0, "interval": 0.2, "median": 0.0}
    )
    for kind in told.values():
        for arm in kind.values():
            arm["interval"] = 0.2
    table = zoo_replicas(found)
    assert "| overfits | 1 | -10.0 ± 20.0 | 1 | -20.0 ± 20.0 | 1 |" in table
    picture = ElementTree.fromstring(chart(found))
    assert len(list(picture.iter("{http://www.w3.org/2000/svg}circle"))) == 2


def test_the_rows_that_are_kept_make_the_file():
    found = compare([json.loads(line) for line in ROWS.read_text().splitlines()])
    written = json.loads((replicas.Path("docs/evidence") / "zoo-replicas.json").read_text())
    assert (written["cells"], written["summary"]) == (found["cells"], found["summary"])


def test_a_large_batch_is_what_the_replicas_have_together():
    (task,) = [replicas.TASKS[TASK]]
    apart = [task.build(seed, "cpu").batches() for seed in (0, 1000)]
    joined = replicas._joined(Run(TASK, "adamw", "large", 2, 0), task.build(0, "cpu"))()
    assert all(torch.equal(whole, torch.cat(own)) for whole, *own in zip(joined, *apart, strict=True))


def test_only_means_over_rows_can_be_joined():
    assert fits(TASK, 4)
    assert not fits("linear-layers-full-batch", 2), "all rows are a batch already"


def test_every_arm_runs():
    with LocalProcesses(2) as ranks:
        for arm in ARMS:
            run = Run(TASK, "adamw", arm, 2, 0)
            row, *others = ranks.run(execute, run, 24, size=run.processes, timeout=120)
            assert others == [None] * (run.processes - 1)
            assert row["batch"] == (128 if arm == "large" else 64)
            assert row["test_chosen"] < row["start"]
            assert set(row["values"]) == _EXPLORED.get(replicas.ARMS[arm].explore, set())
