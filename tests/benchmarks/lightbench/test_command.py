"""LightBench: the plan, what is told, and that nothing is run twice."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from benchmarks.lightbench import command
from benchmarks.lightbench.command import table
from benchmarks.lightbench.runs import Run
from benchmarks.rows import Row
from tests.benchmarks.screen import shown

NAMES = ("beale-trivial", "saddle_point-extreme", "xor_digit-easy")


def made_up(run: Run) -> Row:
    """AutoLR solves all but one, for which its time is up; the default solves none, and fails on one."""
    if run.arm == "default" and run.problem == "beale-trivial":
        return {**asdict(run), "error": "RuntimeError: [no]"}
    solved = run.arm == "autolr" and run.problem != "saddle_point-extreme"
    outcome = "solved" if solved else "time" if run.arm == "autolr" else "steps"
    numbers = {"taken": 512, "lowest": 1e-3, "last": None, "reached": 0.1, "seconds": 1.0}
    return {**asdict(run), "solved": solved, "outcome": outcome, **numbers}


def test_everything_is_told_and_nothing_is_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Run] = []

    def execute(run: Run) -> Row:
        asked.append(run)
        return made_up(run)

    monkeypatch.setattr(command, "execute", execute)
    rows = tmp_path / "rows.jsonl"
    for _ in range(2):
        result = command.run(problems=NAMES, rows=rows, processes=2)
    assert len(asked) == 6 + 1, "only what failed is tried again"
    json.dumps(result, allow_nan=False)
    assert result["counts"] == {"autolr": {"solved": 2, "run": 3}, "default": {"solved": 0, "run": 3}}
    assert result["adamw_solved_within_trials"] == {"10": 1, "30": 2, "1000": 2}
    assert result["missing_runs"] == 0
    assert result["command"].endswith("--problems beale-trivial,saddle_point-extreme,xor_digit-easy")
    seen = shown(table(result))
    for said in ("solved after 512", "out of time", "error: RuntimeError: [no]", "never", "2 of 3 solved"):
        assert said in seen
    none = command.run(problems=NAMES, rows=tmp_path / "none.jsonl", minutes=0, steps=100_000)
    assert none["missing_runs"] == 6
    assert none["settings"] == {"steps": 100_000, "limit_seconds": 560.0, "problems": 3}
    assert "6 runs are still missing" in shown(table(none))
