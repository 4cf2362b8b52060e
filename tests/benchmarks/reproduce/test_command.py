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
from tests.benchmarks.reproduce.rows import PLAN, all_done, with_head

command = CliRunner(env={"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}).invoke


def test_the_command_hands_its_options_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def run(name: str, **given: Any) -> dict[str, Any]:
        seen.update(given, name=name)
        return with_head(name, table(PLAN, all_done(PLAN)))

    monkeypatch.setattr(reproduce, "run", run)
    monkeypatch.setattr(reproduce, "_drawn", lambda result, folder: [folder / "reproduce.html"])
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
        "quick": False,
    }
    text = (tmp_path / "there" / "table1.txt").read_text()
    assert text in done.output
    assert json.loads((tmp_path / "there" / "table1.json").read_text())["name"] == "table1"
    assert (tmp_path / "there" / "table1.csv").exists()

    assert command(app, ["reproduce", "figure3"]).exit_code == 0
    assert (seen["scale"], seen["device"], seen["data"], seen["seeds"]) == ("cpu", None, None, 3)
    assert (tmp_path / "runs" / "reproduce" / "figure3.json").exists()
    (tmp_path / "docs" / "evidence").mkdir(parents=True)
    assert command(app, ["reproduce", "figure3"]).exit_code == 0
    assert command(app, ["reproduce", "table1", "--quick"]).exit_code == 0
    # What is committed as evidence is written over only where that is asked for.
    assert not list((tmp_path / "docs" / "evidence").glob("*"))


def test_what_cannot_be_run_is_refused_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for given, said in [
        (["table2"], "table1"),
        (["table1", "--scale", "huge"], "gpu"),
        (["table1", "--data", "nowhere.tsv"], "got nowhere.tsv: there is no such file"),
        (["table1", "--data", "."], "the folder of kuairand_feed.tsv, got ."),
        (["pretraining", "--data", "feed.tsv"], "reads no feed"),
        (["table1", "--seeds", "0"], "seeds"),
    ]:
        monkeypatch.chdir(tmp_path)
        done = command(app, ["reproduce", *given])
        assert done.exit_code == 2
        assert said in " ".join(done.output.replace("│", " ").split())


def test_a_figure_is_drawn_beside_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def draw(result: dict[str, Any], path: Path) -> list[Path]:
        drawn.append((result["name"], path))
        return [path.with_suffix(".svg")]

    fake = types.SimpleNamespace(figure2=draw, figure3=draw)
    page = types.SimpleNamespace(page=lambda folder: folder / "reproduce.html")
    monkeypatch.setitem(sys.modules, "benchmarks.reproduce.figures", fake)
    monkeypatch.setitem(sys.modules, "benchmarks.reproduce.page", page)
    made = {**with_head("figure2", curves(PLAN, all_done(PLAN))), "task": "kuairand"}
    files = reproduce.write(made, tmp_path, "{}")
    assert drawn == [("figure2", tmp_path / "figure2-kuairand")]
    assert [file.name for file in files] == [
        "figure2-kuairand.json",
        "figure2-kuairand.svg",
        "reproduce.html",
    ]
