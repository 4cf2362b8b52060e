"""What is said once, and a history that cannot be written."""

from __future__ import annotations

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


def test_who_trains_is_said_as_it_was_found(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hdet")
    model = nn.Linear(3, 1)
    stacked = hdet.StackedReplicas(model, torch.optim.SGD(model.parameters(), lr=0.1), 4)
    hdet.Ensemble(stacked.optimizer, sync_every=5)
    network = nn.Linear(3, 1)
    probe = hdet.Probe(lambda x: network(x).square().mean(), list(torch.ones(8, 2, 3)), model=network)
    hdet.AutoTune(torch.optim.AdamW(network.parameters()), [hdet.WeightDecay()], probe=probe)
    of_rows, of_tune = lines(caplog)
    assert of_rows.endswith("4 replicas in this process; an open number of steps; a sync every 5 steps")
    assert "AutoTune: 1 replica; an open number of steps; windows of 10 steps and more; the probe" in of_tune
    assert "None" not in of_tune
