"""What a run tells: log lines, a history, events to whoever asked for them, and a warning at the exit."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hdet
from hdet import history
from hdet.history import HyperparameterRecord, SyncRecord, read_history
from hdet.loop import announce
from hdet.loop.announce import Announcer, Event, command, events_of
from hdet.loop.policy import Decided
from hdet.published.softmax import SoftmaxController
from tests import ROOT
from tests.fakes import Alike, Faster
from tests.unit.training import Training, batch, loss_of

pytestmark = pytest.mark.usefixtures("same_seed")


def made(**options: Any) -> tuple[torch.optim.Optimizer, hdet.Ensemble]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(4))], lr=0.1)
    return optimizer, hdet.Ensemble(optimizer, **{"sync_every": 1, **options})


def steps(optimizer: torch.optim.Optimizer, ensemble: hdet.Ensemble, count: int) -> None:
    (weight,) = optimizer.param_groups[0]["params"]
    for _ in range(count):
        weight.grad = torch.rand(4)
        optimizer.step()
        ensemble.step(1.0)


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---------------------------------------------------------------------- log lines


def test_a_warning_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    optimizer, ensemble = made(process_group=Alike(rank=0))
    steps(optimizer, ensemble, 6)
    for record in ensemble.history:
        assert any("undoes the fan-out" in event for event in record.events)
    assert sum("undoes the fan-out" in r.getMessage() for r in caplog.records) == 1


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.INFO]


def test_a_run_begins_and_ends_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hdet")
    steps(*made(sync_every=2, total_steps=6, process_group=Alike(rank=0)), 6)
    model = nn.Linear(3, 1)
    stacked = hdet.StackedReplicas(model, torch.optim.SGD(model.parameters(), lr=0.1), 4)
    hdet.Ensemble(stacked.optimizer, sync_every=5)
    assert said(caplog) == [
        "Ensemble: 2 replicas, one a process; 6 steps; explores learning rates within 11 % of the base; a "
        "sync every 2 steps",
        "Ensemble: all 6 steps were counted, with 3 syncs; lr/0 is 0.1",
        "Ensemble: 4 replicas in this process; an open number of steps; explores learning rates within 11 % "
        "of the base; a sync every 5 steps",
    ]


def test_a_search_says_what_it_found_and_what_it_takes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hdet")
    run = Training()
    first, more = said(caplog)
    assert first == "; ".join(
        [
            "AutoLR: 1 replica",
            "200 steps",
            "finds the learning rate",
            "the probe looks at 4 batches a sync",
            "the first 10 steps have next to no rate on purpose, to measure how far one carries",
        ]
    )
    assert more == "; ".join(
        [
            "AutoLR: windows of 10 steps and more, the search until step 150",
            "memory beyond training: 516 bytes on the device, 516 bytes with the host, and on the device if "
            "it has room, else with the host 1.0 kB and a copy of the optimizer's state",
        ]
    )
    run.run(200)
    last = said(caplog)[-1]
    assert last.startswith("AutoLR: 200 of 200 steps: the learning rate found is ")
    assert re.search(
        r"finish_\(\) loads the \w+ of step \d+, .*; probing 1,024 samples took [\d.]+ % of the time", last
    )


# ---------------------------------------------------------------------- without any logging set up


def trained(door: str) -> None:
    """A whole run, with its end."""
    if door == "OneCycleAutoLR":
        weight = nn.Parameter(torch.ones(4))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        scheduler = hdet.OneCycleAutoLR(optimizer, 0.1, 8, model_sync_interval=4)
        for _ in range(8):
            weight.grad = torch.rand(4)
            optimizer.step()
            scheduler.step(1.0)
        return
    run = Training(auto=False)
    probe = hdet.Probe(lambda x: loss_of(run.model, x), [batch(k) for k in range(500, 508)], model=run.model)
    explore: Any = {"explore": [hdet.WeightDecay()]} if door == "AutoTune" else {}
    run.auto = getattr(hdet, door)(run.optimizer, probe=probe, total_steps=100, **explore)
    run.run(100).auto.finish_()


@pytest.fixture
def aloud(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that no command and no benchmark has silenced."""
    monkeypatch.delenv("HDET_QUIET", raising=False)


@pytest.mark.usefixtures("aloud")
@pytest.mark.parametrize("door", ["AutoLR", "AutoTune", "OneCycleAutoLR"])
def test_it_speaks_once_at_the_start_and_once_at_the_end(
    door: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(door)
    out, err = capsys.readouterr()
    assert out == ""
    first, last = err.splitlines()
    assert first.startswith(f"{door}: 1 replica; ")
    assert " steps; " in first
    if door != "OneCycleAutoLR":
        assert "finds the learning rate; the probe looks at 4 batches" in first
        assert "the learning rate found is" in last
    assert ("explores weight_decay from 0.01" in first) == (door == "AutoTune")
    assert (", weight_decay 0.01; " in last) == (door == "AutoTune")
    assert last.startswith(f"{door}: ")


@pytest.mark.usefixtures("aloud")
@pytest.mark.parametrize("how", ["variable", "level", "disabled", "another rank"])
def test_it_is_silenced(
    how: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if how == "variable":
        monkeypatch.setenv("HDET_QUIET", "1")
    elif how == "level":
        monkeypatch.setattr(logging.getLogger("hdet"), "level", logging.WARNING)
    elif how == "disabled":
        monkeypatch.setattr(logging.root.manager, "disable", logging.CRITICAL)
    Announcer("Caller", writes=how != "another rank").say("begins")
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("aloud")
@pytest.mark.parametrize(
    ("name", "level"), [("hdet", logging.INFO), (None, logging.INFO), (None, logging.DEBUG)]
)
def test_where_logging_is_set_up_it_goes_there_and_not_twice(
    name: str | None, level: int, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(level, name)
    Announcer("Caller", writes=True).say("begins")
    assert caplog.messages == ["Caller: begins"]
    assert capsys.readouterr().err == ""


# ---------------------------------------------------------------------- the history


def test_a_history_opens_with_the_run_and_closes_with_its_end(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    training = Training(history=path, total_steps=60).run(60)
    training.auto.finish_()
    first, *syncs, end, handed = lines_of(path)
    assert first["kind"] == "run"
    assert (first["caller"], first["replicas"], first["total_steps"]) == ("AutoLR", 1, 60)
    assert first["versions"]["hdet"] == hdet.__version__
    assert "horizon controller" in first["configuration"]
    assert end == {"kind": "end", "step": 60}
    assert handed["kind"] == "handed"
    assert handed["weights"]["kind"] in ("mean", "end")
    assert all("kind" not in sync for sync in syncs)
    assert [sync["seconds"] for sync in syncs] == sorted(sync["seconds"] for sync in syncs)
    assert all(0 < sync["sync_seconds"] < sync["seconds"] for sync in syncs)
    # What a controller made of the schedule is the difference between the two.
    assert syncs[0]["plain"]["lr/0"] == 1
    assert syncs[-1]["plain"]["lr/0"] < 0.1


def test_what_is_no_history_is_refused_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="history must be a file that can be written"):
        made(history=tmp_path / "file" / "history.jsonl")
    with pytest.raises(TypeError, match=r"got a object, which is neither.*Tracker\(run\)"):
        made(history=[object()])


def test_a_listener_that_fails_is_said_once_and_the_others_are_told_what_the_file_holds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(line: Any) -> None:
        raise RuntimeError("no network")

    path, told = tmp_path / "history.jsonl", []
    steps(*made(history=[fails, path, told.append]), 3)
    lines = lines_of(path)
    assert [line.get("kind") for line in lines] == ["run", None, None, None]
    assert json.loads(json.dumps(told)) == lines
    (once,) = (r.getMessage() for r in caplog.records if "history" in r.getMessage())
    assert "RuntimeError: no network" in once


def test_a_disk_that_is_full_for_a_while_is_told_with_the_lines_it_cost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The half of a line that fitted is cut, and the file says how many are missing."""
    path = tmp_path / "history.jsonl"
    run = made(history=path)
    steps(*run, 2)

    def half(path: Any, line: Any) -> None:
        with open(path, "a") as file:
            file.write(json.dumps(line)[:30])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(history, "write", half)
        steps(*run, 3)
    steps(*run, 2)
    assert [record.step for record in read_history(path)] == [1, 2, 6, 7]
    notes = [line for line in lines_of(path) if "kind" in line]
    assert [note["kind"] for note in notes] == ["run", "lost"]
    assert notes[1]["lines"] == 3
    messages = [r.getMessage() for r in caplog.records]
    assert sum("No space left" in line for line in messages) == 1
    assert sum("3 lines of the history" in line for line in messages) == 1


def test_a_run_that_goes_on_says_from_which_step(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    optimizer, ensemble = made(history=path)
    steps(optimizer, ensemble, 3)
    saved = ensemble.state_dict()
    steps(optimizer, ensemble, 4)
    optimizer, ensemble = made(history=path)
    ensemble.load_state_dict(saved)
    steps(optimizer, ensemble, 2)
    runs = [line for line in lines_of(path) if line.get("kind") == "run"]
    assert [run.get("resumed_at") for run in runs] == [None, 3]
    assert runs[0]["id"] != runs[1]["id"]
    assert [record.step for record in read_history(path)] == [1, 2, 3, 4, 5]


def test_a_command_names_no_folder_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for given, shown in (
        ("/elsewhere/bin/train.py", "train.py"),
        (str(tmp_path / "here" / "train.py"), "here/train.py"),
        ("train.py", "train.py"),
        ("/elsewhere/package/__main__.py", "python -m package"),
    ):
        monkeypatch.setattr(sys, "argv", [given, "--steps", "3"])
        assert command() == f"{shown} --steps 3"


# ---------------------------------------------------------------------- events


def kinds(events: list[Event]) -> set[str]:
    return {event.kind for event in events}


def test_a_search_tells_of_moves_of_the_best_and_of_its_end() -> None:
    events: list[Event] = []
    run = Training(on_event=events.append).run(200)
    assert kinds(events) == {"moved", "best", "end"}
    moved = [event for event in events if event.kind == "moved"]
    assert [e.step for e in moved] == [
        r.step for r in run.records if r.hyperparameters[0].base_after != r.hyperparameters[0].base_before
    ]
    assert all(event.record in run.records for event in events)
    assert moved[0].sentence.startswith("lr/0 from 1e-05 to ")
    best = [event for event in events if event.kind == "best"]
    assert all("the best so far" in event.sentence for event in best)
    assert 0 < len(best) < len(run.records)
    assert (events[-1].kind, events[-1].step) == ("end", 200)


def test_weights_that_go_back_are_told_when_they_are_back() -> None:
    """When it is called weights, optimizer and learning rate are those that training goes on from."""
    seen: list[tuple[Event, float, float]] = []

    def look(event: Event) -> None:
        if event.kind == "back":
            norm = max(float(p.detach().abs().max()) for p in run.model.parameters())
            seen.append((event, norm, run.auto.get_last_lr()[0]))

    run = Training(on_event=look)
    run.poisoned = 60
    run.run(100)
    ((event, norm, lr),) = seen
    assert event.record in run.records
    assert "back to the weights of step" in event.sentence
    assert norm < 100
    assert lr == run.lrs[event.step][0], "the next step's"


@pytest.mark.parametrize("door", ["Ensemble", "OneCycleAutoLR"])
def test_the_other_doors_have_the_same_words(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a rank that does not speak."""
    events: list[Event] = []
    run: Any
    if door == "Ensemble":
        controller = SoftmaxController(temperature="auto")
        options: Any = {"process_group": Faster(), "total_steps": 10, "on_event": events.append}
        optimizer, run = made(controller=controller, sync_every=4, **options)
    else:
        monkeypatch.setattr("hdet.published.one_cycle.replicas_of", lambda *_, **__: Faster())
        options = {"enable_auto_lr": True, "auto_lr_warmup_steps": 0, "on_event": events.append}
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(4))], lr=0.1, momentum=0.9)
        run = hdet.OneCycleAutoLR(
            optimizer, 0.1, 10, ensemble_lr_spread_ratio=0.2, model_sync_interval=4, **options
        )
    steps(optimizer, run, 10)
    assert kinds(events) == {"moved", "end"}
    assert [event.step for event in events if event.kind == "moved"][:2] == [4, 8]
    assert events[-1].record == run.history[-1]


def test_what_a_sync_has_brought_is_told_in_order() -> None:
    one = HyperparameterRecord("lr/0", (1.0,), (0.1,), 0.1, 0.2, 0.0, 0.0)
    record = SyncRecord(4, 0, (1.0,), (), (one,), (), (), 1.0, held_out_mean=0.5)
    lost = "replica 1 left out of the mean: its loss is nan"
    decided = Decided((one,), events=("back to the weights of step 2",), best=True, went_back=True)
    assert events_of(record, decided, [lost]) == [
        Event("lost", 4, lost, record),
        Event("best", 4, "the probe's loss is 0.5, the best so far", record),
        Event("back", 4, "back to the weights of step 2", record),
        Event("moved", 4, "lr/0 from 0.1 to 0.2", record),
    ]


def test_one_that_raises_is_logged_once_and_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []

    def fail(event: Event) -> None:
        calls.append(event.kind)
        raise KeyError("mine")

    plain = Training().run(60)
    run = Training(on_event=fail).run(60)
    assert len(calls) > 2
    assert torch.equal(run.flat(), plain.flat())
    (once,) = [r for r in caplog.records if "on_event raised" in r.getMessage()]
    assert once.levelno == logging.ERROR
    assert once.exc_info is not None
    assert "KeyError" in str(once.exc_info[0])


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"Ensemble: on_event must be a function of one hdet.loop.announce.Event, got list"
    ):
        made(on_event=[])


# ---------------------------------------------------------------------- a run that stops before its last step


def test_a_run_that_stopped_early_is_told_at_the_end_of_the_process() -> None:
    """Of the run that stepped last, which is long gone."""
    script = """
import torch, hdet
for count in (8, 3):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    ensemble = hdet.Ensemble(optimizer, sync_every=2, total_steps=8)
    for _ in range(count):
        optimizer.step()
        ensemble.step(1.0)
    del optimizer, ensemble
"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    environment |= {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    (line,) = done.stderr.splitlines()
    assert line.startswith("Ensemble: 3 of 8 steps were counted: the schedule has not come to its end")


def test_where_it_is_no_news_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def heard() -> int:
        announce._warn_unfinished()
        return sum("steps were counted" in r.getMessage() for r in caplog.records)

    monkeypatch.setattr(Announcer, "last", Announcer.last)
    monkeypatch.delenv("PYTEST_VERSION", raising=False)
    monkeypatch.setattr(sys, "last_value", None, raising=False)
    steps(*made(total_steps=8), 8)
    assert heard() == 0, "all steps were taken"
    steps(*made(total_steps=None), 3)
    assert heard() == 0, "nobody knows how many there are"
    optimizer, ensemble = made(total_steps=8)
    steps(optimizer, ensemble, 3)
    ensemble.detach()
    assert heard() == 0
    steps(*made(total_steps=8, process_group=Alike(rank=1)), 3)
    assert heard() == 0, "another rank speaks"
    steps(*made(total_steps=8), 3)
    monkeypatch.setattr(sys, "last_value", KeyError())
    assert heard() == 0, "a traceback says it"
    monkeypatch.setattr(sys, "last_value", None)
    assert heard() == 1
