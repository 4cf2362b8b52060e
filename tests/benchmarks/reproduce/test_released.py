"""The comparison of the authors' released scheduler with plain DDP, on a stand-in for it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.cli import app
from benchmarks.reproduce import released
from tests.benchmarks.reproduce import stand_in

command = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).invoke


def test_the_scheduler_is_plain_ddp_until_auto_lr_acts_and_then_grows(tmp_path: Path) -> None:
    options = ["--code", str(stand_in.__file__), "--output", str(tmp_path)]
    done = command(app, ["reproduce", "released", *options])
    assert done.exit_code == 0, done.output
    result = json.loads((tmp_path / "released.json").read_text())
    assert result["command"] == "python -m benchmarks reproduce released --code stand_in.py"
    assert result["off_differs_from_step"] is None
    assert result["on_differs_from_step"] == released.WARM_UP + 1
    assert result["growth"] == pytest.approx(400, rel=1e-3)
    assert result["plain_growth"] < 1e-3
    assert len(result["sentences"]) == 3
    for sentence in result["sentences"]:
        assert sentence in done.output
    assert "all 400 steps are equal bit for bit" in result["sentences"][0]
    assert "before step 201" in result["sentences"][1]
    assert "factor of 400" in result["sentences"][2]


def test_a_single_bit_of_one_rank_is_a_difference() -> None:
    rates = [1e-3] * released.STEPS
    same = [bytes([step % 256, 1]) for step in range(released.STEPS)]
    other = [*same[:6], b"\x06\x00", *same[7:]]
    found = released.compared(
        plain=[(same, rates)] * 2, off=[(same, rates), (other, rates)], on=[(same, rates)] * 2
    )
    assert (found["off_differs_from_step"], found["on_differs_from_step"]) == (7, None)
    off, on, _ = released.sentences(found)
    assert "differ from step 7 on" in off
    assert "equal bit for bit" in on


def test_a_file_that_is_not_theirs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("class Another: ...\n")
    for given, said in [
        (["released"], "released needs --code"),
        (["table1", "--code", "x.py"], "table1 takes no --code"),
        (["released", "--code", str(tmp_path / "none.py")], "no file"),
        (["released", "--code", str(tmp_path / "other.py")], "without it"),
    ]:
        done = command(app, ["reproduce", *given, "--output", str(tmp_path)])
        assert done.exit_code == 2, done.output
        assert said in " ".join(done.output.replace("│", " ").split())
