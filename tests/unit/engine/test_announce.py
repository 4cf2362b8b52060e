"""What is said once, and a history that cannot be written."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import torch
from torch import nn

import hdet
from tests.fakes import Alike, Faster
from tests.unit.training import Training


def test_a_doubt_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    class Alike(Faster):
        rank = 0

        def gather(self, row: Any) -> list[list[float]]:
            return [list(row), list(row)]

    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    ensemble = hdet.Ensemble(optimizer, sync_every=1, replicas=Alike())
    for _ in range(6):
        weight.grad = torch.rand(4)
        optimizer.step()
        record = ensemble.step(1.0)
        assert record is not None
        assert any("undoes the fan-out" in event for event in record.events)
    assert sum("undoes the fan-out" in r.getMessage() for r in caplog.records) == 1


def test_an_unwritable_history_is_refused_at_once(tmp_path: Any) -> None:
    (tmp_path / "file").write_text("")
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(OSError, match="history must be a file that can be written"):
        hdet.Ensemble(optimizer, history=tmp_path / "file" / "history.jsonl")


def test_a_history_that_cannot_be_written_later_does_not_stop_training(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "history.jsonl"
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    ensemble = hdet.Ensemble(optimizer, sync_every=1, history=path)
    path.unlink()
    path.mkdir()
    for _ in range(3):
        optimizer.step()
        assert ensemble.step() is not None
    assert sum("history could not be written" in r.getMessage() for r in caplog.records) == 1


def steps(ensemble: hdet.Ensemble, optimizer: torch.optim.Optimizer, count: int) -> None:
    for _ in range(count):
        optimizer.step()
        ensemble.step()


def test_who_listens_is_told_what_the_file_holds(tmp_path: Any) -> None:
    path, told = tmp_path / "history.jsonl", []
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    steps(hdet.Ensemble(optimizer, sync_every=2, history=[path, told.append]), optimizer, 4)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.get("kind") for line in lines][:2] == ["run", None]
    assert json.loads(json.dumps(told)) == lines


def test_a_listener_that_fails_is_said_once_and_the_others_are_told(
    tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(line: Any) -> None:
        raise RuntimeError("no network")

    path = tmp_path / "history.jsonl"
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    steps(hdet.Ensemble(optimizer, sync_every=1, history=[fails, path]), optimizer, 3)
    assert len(hdet.history.read(path)) == 3
    (said,) = (r.getMessage() for r in caplog.records if "history" in r.getMessage())
    assert "RuntimeError: no network" in said


def test_a_tracker_that_is_not_wrapped_is_refused() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(TypeError, match=r"got a object, which is neither.*Tracker\(run\)"):
        hdet.Ensemble(optimizer, history=[object()])


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.INFO]


def test_a_run_begins_and_ends_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hdet")
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    ensemble = hdet.Ensemble(optimizer, sync_every=2, total_steps=6, replicas=Alike(rank=0))
    (first,) = lines(caplog)
    assert first == "Ensemble: 2 replicas, one a process; 6 steps; a sync every 2 steps"
    for _ in range(6):
        optimizer.step()
        ensemble.step()
    _, last = lines(caplog)
    assert last == "Ensemble: all 6 steps were counted, with 3 syncs; lr/0 is 0.1"


def test_a_search_says_what_it_found_and_what_it_takes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hdet")
    run = Training()
    (first,) = lines(caplog)
    assert first == "; ".join(
        [
            "AutoLR: 1 replica",
            "200 steps",
            "windows of 10 steps and more, the search until step 150",
            "the probe looks at 4 batches a sync",
            "memory beyond training: 516 bytes on the device, 1.5 kB with the host, and the optimizer's "
            "state as often as it is kept",
        ]
    )
    run.run(200)
    _, last = lines(caplog)
    assert last.startswith("AutoLR: 200 of 200 steps: the probe's loss went from")
