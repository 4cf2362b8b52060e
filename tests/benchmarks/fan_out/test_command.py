"""The command: what is run, what is remembered, what is shown."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fan_out import command as fan_out
from benchmarks.fan_out.plan import SWEEP, Run
from benchmarks.rows import Row
from tests.benchmarks.screen import shown


def made_up(run: Run) -> Row:
    loss = (1.0 if run.arm == SWEEP else 1.2) + abs((run.lr or 0.01) - 0.01)
    noise = {"windows": 5, "progress_error": 0.1 / run.replicas, "decision_error": 0.2}
    result = {"init": 3.0, "held_out": loss, "chosen": loss, "chosen_step": 100, "diverged": False}
    return {**asdict(run), **result, "taken": 120, "reached": 0.01, "seconds": 0.1, **noise}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    """The runs that were done; the third one fails, once."""
    runs: list[Run] = []

    def work(run: Run) -> Row:
        runs.append(run)
        return {**asdict(run), "error": "it [broke]"} if len(runs) == 3 else made_up(run)

    @contextmanager
    def here(*_: object) -> Iterator[Callable[[Run], Row]]:
        yield work

    monkeypatch.setattr("benchmarks.cores.kept_processes", here)
    return runs


def test_stopped_and_started_again_only_what_failed_is_run_again(asked: list[Run], tmp_path: Path) -> None:
    def start() -> dict[str, Any]:
        return fan_out.run(quick=True, processes=1, rows=tmp_path / "kept" / "rows.jsonl")

    first = start()
    assert (first["missing_runs"], len(first["failed"]), len(asked)) == (1, 1, 5)
    second = start()
    assert (second["missing_runs"], second["failed"], len(asked)) == (0, [], 6)
    assert start()["lines"] == second["lines"]
    assert len(asked) == 6


def test_table_and_json_say_the_same(asked: list[Run]) -> None:
    result = fan_out.run(quick=True, processes=1)
    assert result["command"] == "python -m benchmarks fan-out --quick"
    assert fan_out.recomputed(result) == result
    json.dumps(result, allow_nan=False)
    printed = shown(fan_out.table(result))
    for line in result["lines"]:
        assert all(cell in printed for cell in fan_out.cells(line))
    assert all(said in printed for said in result["follows"])
    text = fan_out.markdown(result)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1
    assert [line.strip("| ").split(" | ") for line in lines[2:]] == list(map(fan_out.cells, result["lines"]))
    assert all(f"- {said}" in text for said in result["follows"])
    assert "1 runs are still missing" in printed
    assert "failed: quadratic adamw sweep" in printed
    assert "it [broke]" in printed
