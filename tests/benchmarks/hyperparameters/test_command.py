"""The command: what it remembers, what it shows, and a tiny run."""

from __future__ import annotations

import json
import math
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.cli import app
from benchmarks.hyperparameters import command as hyperparameters
from benchmarks.hyperparameters.analysis import grid, together
from benchmarks.hyperparameters.plan import Plan, Rows, Run
from benchmarks.rows import Row
from tests.benchmarks.hyperparameters.rows import SINGLES, row_of, text_of

# ---------------------------------------------------------------------- memory

SMALL = Plan(("label smoothing",), seeds=1)


def complete(plan: Plan, path: Path, *, cores: int = 8, deadline: float = math.inf) -> list[Run]:
    asked: list[Run] = []
    busy, most, lock = 0, 0, threading.Lock()

    def work(run: Run) -> Row:
        nonlocal busy, most
        with lock:
            asked.append(run)
            busy += run.replicas
            most = max(most, busy)
        time.sleep(0.002)
        with lock:
            busy -= run.replicas
        return row_of(run)

    hyperparameters.complete(plan, Rows(path), work, cores=cores, deadline=deadline, say=lambda _: None)
    assert most <= max(cores, max((run.replicas for run in asked), default=0))
    return asked


def test_what_is_in_the_rows_file_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows.jsonl"
    assert len(complete(SMALL, path)) == 9
    assert complete(SMALL, path) == []
    kept = path.read_text()
    assert len(complete(replace(SMALL, seeds=2), path)) == 9
    assert path.read_text().startswith(kept)
    assert len(complete(replace(SMALL, steps=6), path)) == 9
    path.write_text(path.read_text()[:-20])
    assert len(complete(replace(SMALL, steps=6), path)) == 1


# ---------------------------------------------------------------------- what is shown


def test_the_table_shows_every_start_and_the_goals(result: dict[str, Any]) -> None:
    text = text_of(result)
    for task in SINGLES:
        assert text.count(f"│ {task} ") >= 2
    assert "all at once" in text
    assert "goal: at least: three of the four recover 50 %: met" in text
    assert "Mind it." in text
    headings, lines = grid(result)
    assert all(len(line) == len(headings) for line in lines)
    headings, lines = together(result)
    assert [line[0] for line in lines] == [
        *("all wrong, fixed", "one after the other", "all at once"),
        "each at the best of its own grid, fixed",
    ]


# ---------------------------------------------------------------------- runs


def test_a_quick_run_from_end_to_end(tmp_path: Path) -> None:
    out = tmp_path / "hyperparameters.json"
    options = ["--rows", str(tmp_path / "rows.jsonl"), "--processes", "2", "--output", str(out)]
    shown = CliRunner(env={"COLUMNS": "170"}).invoke(app, ["hyperparameters", "--quick", *options])
    assert shown.exit_code == 0, shown.output
    found = json.loads(out.read_text())
    assert found["command"] == "python -m benchmarks hyperparameters --quick"
    assert (found["missing_runs"], found["failed"]) == (0, [])
    (task,) = found["tasks"]
    assert all(0 < point["loss"] < 5 for point in task["grid"])
    assert [len(path["values"]) for path in found["paths"]] == [5, 5]


def test_bench_refuses_what_is_not_for_it() -> None:
    refused = CliRunner().invoke(app, ["hyperparameters", "--scale", "gpu"])
    assert refused.exit_code == 2
    with pytest.raises(ValueError, match="device must be 'cpu', got 'cuda'"):
        hyperparameters.run(quick=True, device="cuda")
