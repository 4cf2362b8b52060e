"""The command of the zoo."""

import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext

import pytest
from rich.console import Console

from benchmarks.rows import failure
from benchmarks.zoo import command
from benchmarks.zoo.plan import Plan
from tests.benchmarks.zoo.rows import complete, row_of

TASK = "linear-layers-full-batch"


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_rows_that_are_there_are_not_run_again(tmp_path, monkeypatch):
    plan = Plan([(TASK, "adamw"), (TASK, "sgd")])
    rows = write(tmp_path / "rows.jsonl", complete(plan, lambda run: 1.0 + (run.rate or 0.5)).values())
    monkeypatch.setattr(command, "execute", None)
    result = command.run(tasks=[TASK], rows=rows, minutes=0)
    assert result["missing_runs"] == 0
    assert result["errors"] == []
    assert [line["task"] for line in result["cells"]] == [TASK] * 2
    screen = Console(width=200)
    with screen.capture() as shown:
        screen.print(command.table(result))
    assert TASK in shown.get()
    assert "nine of ten" in shown.get()


def test_nothing_done_is_an_empty_table(tmp_path):
    result = command.run(tasks=[TASK], rows=tmp_path / "rows.jsonl", minutes=0, methods=["autolr"], seeds=1)
    assert result["missing_runs"] == 2
    assert result["cells"] == []
    command.table(result)


def test_what_cannot_run_here_is_left_out(tmp_path, monkeypatch):
    said = []
    monkeypatch.setenv("HDET_ZOO", str(tmp_path))
    monkeypatch.setattr(command, "workers", lambda *given: nullcontext())
    monkeypatch.setattr(command, "complete", lambda planned, *given, **more: said.append(planned()))
    monkeypatch.delattr("torch.optim.Muon", raising=False)
    command.run(on_progress=said.append, rows=tmp_path / "rows.jsonl", methods=["autolr"], seeds=1)
    *lacks, runs = said
    assert any("tab_letter.npz" in lack for lack in lacks)
    assert {run.optimizer for run in runs} == {"adamw", "sgd", "lion"}
    assert TASK in {run.task for run in runs}
    assert "letter-mlp" not in {run.task for run in runs}


def test_wrong_names_are_refused(tmp_path):
    for wrong, said in (({"part": "all"}, "part must be"), ({"methods": ["x"]}, "methods must be")):
        with pytest.raises(ValueError, match=said):
            command.run(rows=tmp_path / "rows.jsonl", minutes=0, **wrong)


def test_what_is_missing_is_run_and_an_error_is_told(tmp_path, monkeypatch):
    asked, said = [], []

    @contextmanager
    def threads(device, processes, say, prepare):
        with ThreadPoolExecutor(processes) as pool:
            yield pool

    def execute(run):
        asked.append(run)
        return failure(run, ValueError("no")) if run.optimizer == "sgd" else row_of(run, 1.0)

    monkeypatch.setattr(command, "workers", threads)
    monkeypatch.setattr(command, "execute", execute)
    options = {"tasks": [TASK], "methods": ["default"], "seeds": 1, "processes": 1}
    for _ in range(2):
        result = command.run(on_progress=said.append, rows=tmp_path / "rows.jsonl", **options)
    assert [run.optimizer for run in asked] == ["adamw", "sgd", "sgd"]
    assert result["missing_runs"] == 1
    assert result["errors"] == [f"{TASK} sgd: ValueError: no"]
    said = [line for line in said if not line.startswith("left out")]  # data that are not here
    assert said[0] == f"1 of 2: {TASK} adamw fixed 0.001 onecycle seed 0: 1, 1, 1.0 s"
