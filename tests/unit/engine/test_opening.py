"""A history explains itself: it opens with what the run is, and closes with how it ended."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import hdet
from hdet.engine.opening import command, memory_bytes
from tests.unit.training import Training


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


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


def test_memory_is_what_this_process_holds() -> None:
    if not Path("/proc/self/statm").exists():
        assert memory_bytes()["process"] is None
    else:
        assert (memory_bytes()["process"] or 0) > 1e7


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
