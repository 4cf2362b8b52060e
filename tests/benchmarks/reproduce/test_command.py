"""The command: its options, what it refuses, and what it writes."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.cli import app
from benchmarks.reproduce import command as reproduce
from benchmarks.reproduce.analysis import curves, table
from benchmarks.reproduce.plan import Settings
from tests.benchmarks.reproduce.rows import PLAN, all_done, with_head

command = CliRunner(env={"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}).invoke


def test_the_command_hands_its_options_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def run(name: str, **given: Any) -> dict[str, Any]:
        seen.update(given, name=name)
        return with_head(name, table(PLAN, all_done(PLAN)))

    monkeypatch.setattr(reproduce, "run", run)
    fake = types.SimpleNamespace(svg=lambda result: "<svg/>")
    monkeypatch.setitem(sys.modules, "benchmarks.reproduce.figures", fake)
    monkeypatch.chdir(tmp_path)
    options = [
        "--scale",
        "gpu",
        "--device",
        "cpu",
        "--data",
        "feed.tsv",
        "--seeds",
        "2",
        "--rows",
        "kept.jsonl",
    ]
    more = ["--processes", "4", "--minutes", "1.5", "--output", "there"]
    more += ["--preset", "paper", "--decay", "geometric", "--sigma", "auto"]
    more += ["--sync-every", "7", "--final-div", "5"]
    done = command(app, ["reproduce", "table1", *options, *more])
    assert done.exit_code == 0, done.output
    assert seen.pop("on_progress")
    assert seen == {
        "name": "table1",
        "scale": "gpu",
        "device": "cpu",
        "data": Path("feed.tsv"),
        "seeds": 2,
        "rows": Path("kept.jsonl"),
        "processes": 4,
        "minutes": 1.5,
        "settings": Settings("geometric", "auto", 7, 5.0, "printed"),
        "quick": False,
    }
    assert "Baseline-Low" in done.output
    assert json.loads((tmp_path / "there" / "table1.json").read_text())["name"] == "table1"

    assert command(app, ["reproduce", "figure3", "--preset", "paper"]).exit_code == 0
    assert seen["settings"] == Settings("literal", 0.1, rules="printed")
    plain = command(app, ["reproduce", "figure3"])
    assert (plain.exit_code, seen["settings"]) == (0, Settings())
    assert "nothing can be concluded" not in plain.output
    assert (seen["scale"], seen["device"], seen["data"], seen["seeds"]) == ("cpu", None, None, 3)
    assert (tmp_path / "runs" / "reproduce" / "figure3.json").exists()
    (tmp_path / "docs" / "evidence").mkdir(parents=True)
    assert command(app, ["reproduce", "figure3"]).exit_code == 0
    quick = command(app, ["reproduce", "table1", "--quick"])
    assert "nothing can be concluded" in quick.output.splitlines()[0]
    # What is committed as evidence is written over only where that is asked for.
    assert not list((tmp_path / "docs" / "evidence").glob("*"))


def test_what_cannot_be_run_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for given, said in [
        (["table2"], "table1"),
        (["table1", "--scale", "huge"], "gpu"),
        (["table1", "--data", "nowhere.tsv"], "no file 'nowhere.tsv'"),
        (["table1", "--data", "."], "no file 'kuairand_feed.tsv'"),
        (["table1", "--data", "."], "set HDET_DATA to the folder that holds it"),
        (["table1", "--data", "."], "predict_explicit_negative_feedback_kuairand"),
        (["table1", "--sigma", "none"], "--sigma must be a number above 0, or auto, got none"),
        (["table1", "--sigma", "0"], "--sigma must be a number above 0, or auto, got 0"),
        (["table1", "--final-div", "0"], "--final-div must be above 0, got 0"),
        (["table1", "--sync-every", "0"], "sync-every"),
        (["table1", "--decay", "linear"], "literal"),
        (["pretraining", "--data", "feed.tsv"], "reads no feed"),
        (["table1", "--seeds", "0"], "seeds"),
    ]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("HDET_DATA", raising=False)
        done = command(app, ["reproduce", *given])
        assert done.exit_code == 2
        assert said in " ".join(done.output.replace("│", " ").split())


def test_a_figure_is_drawn_beside_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = types.SimpleNamespace(svg=lambda result: f"<svg>{result['name']}</svg>")
    monkeypatch.setitem(sys.modules, "benchmarks.reproduce.figures", fake)
    made = {**with_head("figure2", curves(PLAN, all_done(PLAN))), "task": "kuairand"}
    files = reproduce.write(made, tmp_path, "{}")
    assert reproduce.file_name({**made, "options": "--decay literal"}) == "figure2-kuairand-decay-literal"
    assert [file.name for file in files] == ["figure2-kuairand.json", "figure2-kuairand.svg"]
    assert files[1].read_text() == "<svg>figure2</svg>"
