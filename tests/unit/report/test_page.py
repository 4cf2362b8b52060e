"""What is in the page's file, and the page in a notebook; tests/browser opens it."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest

import hdet
from hdet.report import Report
from hdet.report.page import content, open_histories
from tests.browser.histories import HOSTILE, hostile, opening, save, sync, whole


def test_the_page_loads_nothing_and_a_notebook_shows_it_whole(tmp_path: Path) -> None:
    page = tmp_path / "deep" / "report.html"
    report = hdet.report.Report(str(save(tmp_path / "a.jsonl", whole())))
    report.write(page)
    text = page.read_text(encoding="utf-8")
    head, tail = text.rsplit("<script>", 1)
    assert not any(bad in head for bad in ("http://", "https://", " src="))
    assert "fetch(`content?" in tail, "the only request goes to the page's own server"
    assert page.stat().st_size < 1.5e6
    assert html.unescape(report._repr_html_().split('srcdoc="')[1].split('" width=')[0]) == text


def test_what_a_history_holds_cannot_end_the_script_it_stands_in(tmp_path: Path) -> None:
    report = Report(save(tmp_path / "a.jsonl", hostile()))
    report.write(tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert all(bad not in text for bad in HOSTILE)
    assert "\\u003cimg src=x" in text, "in a chart"
    assert "&lt;/script&gt;" in text, "in a table"
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
    assert kinds == {"rollback", "early end", "steps not counted"}
    with pytest.raises(ValueError, match="Report: give one history or more, got none"):
        Report()
    with pytest.raises(FileNotFoundError, match=r"Report: a run must be a history file, got '.*gone.jsonl'"):
        Report(tmp_path / "gone.jsonl")


def test_runs_of_different_models_never_share_a_chart(tmp_path: Path) -> None:
    small = [opening(parameters=10), *(sync(i) for i in range(5))]
    paths = [
        save(tmp_path / f"{name}.jsonl", lines)
        for name, lines in (("a", whole()), ("b", whole()), ("c", small))
    ]
    shown = content([file.read() for file in open_histories(paths)])
    charts = [json.loads(part.split("</script>")[0]) for part in shown.split('application/json">')[1:]]
    runs = [
        {series["run"] for series in chart["series"]} for chart in charts if chart["title"] == "Held-out loss"
    ]
    assert runs == [{0, 1}, {2}]
    assert shown.count('<section class="task">') == 2


def test_a_run_is_seen_searching_decaying_and_ended(tmp_path: Path) -> None:
    decays = sync(20)
    decays["horizon"][0]["why"] = "the schedule decays"
    lines = [opening(), *(sync(i) for i in range(20)), decays, {"kind": "end", "step": 210}]
    for count, state in ((1, "waiting"), (21, "searching"), (22, "decaying"), (23, "ended")):
        (file,) = open_histories([save(tmp_path / f"{state}.jsonl", lines[:count])])
        assert f'<span class="chip {state}">{state}</span>' in content([file.read()])
