"""What is in the page's file, and the page in a notebook; tests/browser opens it."""

from __future__ import annotations

import html
from pathlib import Path

import pytest

import hdet
from hdet.report import Report
from hdet.report.page import open_histories
from tests.browser.histories import HOSTILE, hostile, save, whole


def test_the_page_loads_nothing_and_a_notebook_shows_it_whole(tmp_path: Path) -> None:
    page = tmp_path / "deep" / "report.html"
    report = hdet.report.Report(str(save(tmp_path / "a.jsonl", whole())))
    report.write(page)
    text = page.read_text(encoding="utf-8")
    head, tail = text.split("<script>", 1)[0], text.rsplit("<script>", 1)[1]
    assert not any(bad in head for bad in ("http://", "https://", " src="))
    assert "fetch(`records?" in tail, "the only request goes to the page's own server"
    assert page.stat().st_size < 8e6
    assert html.unescape(report._repr_html_().split('srcdoc="')[1].split('" width=')[0]) == text


def test_what_a_history_holds_cannot_end_the_script_it_stands_in(tmp_path: Path) -> None:
    report = Report(save(tmp_path / "a.jsonl", hostile()))
    report.write(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert all(bad not in text for bad in HOSTILE)
    assert "\\u003c/script\\u003e" in text
    shown = report._repr_html_()
    assert shown.count("<") == 2, "only the frame's own tags"
    assert all(bad not in shown for bad in HOSTILE)


def test_many_runs_share_what_a_page_may_hold(tmp_path: Path) -> None:
    paths = [save(tmp_path / f"{i}.jsonl", whole() * 2) for i in range(12)]
    assert sum(len(line) for file in open_histories(paths) for line in file.read().lines()) < 2.2e6


def test_a_report_has_verdicts_and_names_what_is_no_history(tmp_path: Path) -> None:
    report = Report(*(save(tmp_path / f"{name}.jsonl", whole()) for name in "ab"))
    assert list(report.verdicts) == ["a", "b"]
    assert repr(report).splitlines() == [f"{name}: {verdict}" for name, verdict in report.verdicts.items()]
    kinds = {alert["kind"] for alert in report.summaries()[0]["alerts"]}
    assert kinds == {"rollback", "overfitting", "steps not counted"}
    with pytest.raises(ValueError, match="Report: give one history or more, got none"):
        Report()
    with pytest.raises(FileNotFoundError, match=r"Report: a run must be a history file, got '.*gone.jsonl'"):
        Report(tmp_path / "gone.jsonl")
