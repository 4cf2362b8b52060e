"""What stands in the page's file; tests/browser opens it."""

from __future__ import annotations

from pathlib import Path

from hdet.report.page import pieces, sources, write
from tests.browser.histories import HOSTILE, hostile, save, whole


def test_the_page_loads_nothing(tmp_path: Path) -> None:
    page = tmp_path / "deep" / "report.html"
    write([source.read() for source in sources([save(tmp_path / "a.jsonl", whole())])], page)
    text = page.read_text(encoding="utf-8")
    head, tail = text.split("<script>", 1)[0], text.rsplit("<script>", 1)[1]
    assert "http://" not in head
    assert "https://" not in head
    assert " src=" not in head
    assert "fetch(`records?" in tail, "the one request there is goes to the page's own server"
    assert text.count("Plotly.toImage") >= 1
    assert page.stat().st_size < 8e6


def test_what_a_history_holds_cannot_end_the_script_it_stands_in(tmp_path: Path) -> None:
    source = sources([save(tmp_path / "a.jsonl", hostile())])[0].read()
    text = "".join(pieces({"live": False, "runs": [{**source.about(), "lines": source.lines()}]}))
    assert all(bad not in text for bad in HOSTILE)
    assert "\\u003c/script\\u003e" in text


def test_many_runs_share_what_a_page_may_hold(tmp_path: Path) -> None:
    lines = whole() * 30
    paths = [save(tmp_path / f"{i}.jsonl", lines) for i in range(12)]
    page = tmp_path / "report.html"
    write([source.read() for source in sources(paths)], page)
    assert page.stat().st_size < 8e6
