"""The whole of it, tiny; and that it goes on where it was stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hdet.bench.autotune import command
from hdet.bench.autotune.command import recomputed, run, table
from hdet.bench.autotune.plan import ARMS, DEFAULT, LONG, RANDOM
from tests.unit.bench.screen import shown


def test_quick_runs_from_end_to_end_and_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    rows, told = tmp_path / "rows.jsonl", []
    result = run(quick=True, rows=rows, on_progress=told.append)
    assert result["command"] == "hdet bench autotune --quick"
    assert result["missing_runs"] == 0
    assert result["failed"] == []
    (task,) = result["tasks"]
    assert {line["arm"] for line in task["arms"]} == set(ARMS) - set(result["left_out"])
    assert {DEFAULT, LONG, RANDOM} <= {line["arm"] for line in task["arms"]}
    spent = {line["arm"]: line["runs_spent"] for line in task["arms"]}
    assert spent.pop(DEFAULT) == 1
    assert set(spent.values()) == {4}
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert recomputed(result) == result
    view = shown(table(result))
    assert "digits: the truth is" in view
    for arm in task["arms"]:
        assert arm["arm"] in view

    lines = rows.read_text().splitlines()
    rows.write_text("\n".join(lines[:-1]) + "\n")
    again = run(quick=True, rows=rows, on_progress=told.append)
    assert len(rows.read_text().splitlines()) == len(lines)
    measured = ("seconds", "cores")
    keep = [place for place, name in enumerate(result["runs"]["header"]) if name not in measured]
    assert [[row[place] for place in keep] for row in again["runs"]["rows"]] == [
        [row[place] for place in keep] for row in result["runs"]["rows"]
    ], "a seed decides all of it"


def test_arms_that_cannot_be_run_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "unavailable", lambda arm: "" if arm == RANDOM else "it is not here")
    told: list[str] = []
    result = run(quick=True, minutes=0, on_progress=told.append)
    assert result["left_out"].keys() == set(ARMS) - {RANDOM}
    assert "without PBT: it is not here" in told
    assert "without PBT: it is not here" in shown(table(result))
    assert result["missing_runs"] == 4 + 4


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(ValueError, match=r"problems must be some of digits, .*, got chess"):
        run(problems=["chess"])


def test_the_command_repeats_what_was_asked(tmp_path: Path) -> None:
    result = run(problems=["digits"], seeds=2, scale="gpu", rows=tmp_path / "none.jsonl", minutes=0)
    assert result["command"] == "hdet bench autotune --scale gpu --problems digits --seeds 2"
    assert result["settings"]["single_run_samples"] == {"digits": 2000 * 32}
    assert result["settings"]["swept"] == 80
