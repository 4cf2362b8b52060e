"""The whole of it, tiny."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.autotune import command
from benchmarks.autotune.command import recomputed, run, table
from benchmarks.autotune.plan import ARMS, DEFAULT, LARGE_TUNED, RANDOM, RATES, TWICE
from tests.benchmarks.screen import shown


def test_quick_runs_from_end_to_end(tmp_path: Path) -> None:
    result = run(quick=True, rows=tmp_path / "rows.jsonl")
    assert result["command"] == "python -m benchmarks autotune --quick"
    assert result["missing_runs"] == 0
    assert result["failed"] == []
    (task,) = result["tasks"]
    assert {line["arm"] for line in task["arms"]} == set(ARMS) - set(result["left_out"])
    assert {DEFAULT, RANDOM} <= {line["arm"] for line in task["arms"]}
    spent = {line["arm"]: line["runs_spent"] for line in task["arms"]}
    others = {DEFAULT: 1, LARGE_TUNED: 4 * len(RATES), TWICE: 8}
    assert {arm: spent.pop(arm) for arm in others} == others
    assert set(spent.values()) == {4}
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert recomputed(result) == result
    view = shown(table(result))
    assert "digits: the truth is" in view
    for arm in task["arms"]:
        assert arm["arm"] in view


def test_arms_that_cannot_be_run_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "unavailable", lambda arm: "" if arm == RANDOM else "it is not here")
    told: list[str] = []
    result = run(quick=True, minutes=0, on_progress=told.append)
    assert result["left_out"].keys() == set(ARMS) - {RANDOM}
    assert "without PBT: it is not here" in told
    assert "without PBT: it is not here" in shown(table(result))
    assert result["missing_runs"] == 4 + 4
