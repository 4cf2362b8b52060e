"""The page as an object, for notebooks."""

from __future__ import annotations

import html
from pathlib import Path

import pytest

import hdet
from hdet.report import Report
from hdet.report.page import sources, write
from tests.browser.histories import HOSTILE, hostile, save, whole


def test_it_is_the_page_that_the_command_writes(tmp_path: Path) -> None:
    path = save(tmp_path / "a.jsonl", whole())
    write([source.read() for source in sources([path])], tmp_path / "command.html")
    report = Report(path)
    report.write(tmp_path / "object.html")
    written = (tmp_path / "command.html").read_text(encoding="utf-8")
    assert (tmp_path / "object.html").read_text(encoding="utf-8") == written
    shown = report._repr_html_()
    assert html.unescape(shown.split('srcdoc="')[1].split('" width=')[0]) == written


def test_nothing_that_a_history_holds_leaves_the_frame(tmp_path: Path) -> None:
    shown = Report(save(tmp_path / "a.jsonl", hostile()))._repr_html_()
    assert shown.count("<") == 2, "the frame's own tags alone"
    assert all(bad not in shown for bad in HOSTILE)


def test_it_says_the_verdict_of_each_run(tmp_path: Path) -> None:
    paths = [save(tmp_path / f"{name}.jsonl", whole()) for name in "ab"]
    report = hdet.report.Report(*map(str, paths))
    assert [name.rpartition("/")[2] for name in report.verdicts] == ["a", "b"]
    assert repr(report).splitlines() == [f"{name}: {said}" for name, said in report.verdicts.items()]


def test_what_is_no_history_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="Report: runs must be one history or more, got none"):
        Report()
    with pytest.raises(FileNotFoundError, match=r"Report: a run must be a history file, got '.*gone.jsonl'"):
        Report(tmp_path / "gone.jsonl")
