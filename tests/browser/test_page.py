"""The report in a real browser. Where there is none these tests are skipped, and say so."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hdet.report import Report
from hdet.report.page import open_histories, pieces
from tests.browser import histories
from tests.browser.chromium import FOUND, Browser, Tab, browser

pytestmark = pytest.mark.skipif(
    FOUND is None,
    reason="no Chromium on this machine: the page was NOT tried in a browser (apt install chromium)",
)
ALL_CHARTS = {
    *("Learning rate", "Held-out loss", "Lag", "Slopes", "weight decay"),
    *("Replicas' losses", "Levels", "Distances", "Time", "Memory"),
}
DRAWN = (
    "[...document.querySelectorAll('.card')].filter(c => c.querySelector('.main-svg'))"
    ".map(c => c.dataset.chart)"
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as made:
        yield made


def page_of(folder: Path, *paths: Path) -> Path:
    made = folder / "report.html"
    runs = [{**file.read().about(), "lines": file.lines()} for file in open_histories(paths)]
    made.write_text("".join(pieces({"live": False, "runs": runs})), encoding="utf-8")
    return made


def opened(chromium: Browser, page: Path, **look: Any) -> Tab:
    tab = chromium.open(page.as_uri(), **look)
    tab.wait_for("document.body.dataset.drawn", 60)
    return tab


def text_of(tab: Tab) -> str:
    return str(tab.run("document.body.innerText"))


HISTORIES = {
    "a whole run": (histories.whole, False, ALL_CHARTS),
    "replicas that fan out": (
        histories.fanned_out,
        False,
        ALL_CHARTS - {"Lag", "Slopes", "weight decay"}
        | {"Replicas' learning rates", "Replicas' rates over the base"},
    ),
    "not a number": (histories.nothing_finite, False, ALL_CHARTS),
    "one record": (lambda: [histories.sync(0)], False, ALL_CHARTS),
    "an opening alone": (lambda: [histories.opening()], False, set()),
    "strings of HTML and script": (
        histories.hostile,
        False,
        ALL_CHARTS - {"weight decay"} | {histories.HOSTILE[1]},
    ),
    "torn in mid-line": (histories.whole, True, ALL_CHARTS),
}


@pytest.mark.parametrize("kind", HISTORIES)
def test_every_chart_is_drawn_and_says_what_python_says(chromium: Browser, tmp_path: Path, kind: str) -> None:
    """Verdicts and alerts are computed in both: for a file that is dropped there is no Python."""
    made, torn, charts = HISTORIES[kind]
    path = histories.save(tmp_path / "a.jsonl", made(), torn=torn)
    tab = opened(chromium, page_of(tmp_path, path))
    assert set(tab.run(DRAWN)) == charts
    assert tab.errors == []
    assert tab.run("window.hacked") is None
    assert tab.run("document.querySelectorAll('main img, main b').length") == 0
    if torn:
        assert "1 line cut short" in text_of(tab)
    if kind.startswith("strings"):
        said = text_of(tab)
        assert all(" ".join(text.split()) in " ".join(said.split()) for text in histories.HOSTILE)
    (told,) = Report(path).summaries()
    assert tab.run("sentence(state.runs[0].facts)") == told["verdict"]
    assert tab.run("alertsOf(state.runs[0])") == told["alerts"]
    # The same file, dropped.
    tab.run(f"takeTexts([{{name: 'b.jsonl', text: {json.dumps(path.read_text())}}}])")
    assert tab.run("sentence(state.runs[1].facts)") == tab.run("sentence(state.runs[0].facts)")
    assert tab.run("state.runs[1].torn") == tab.run("state.runs[0].torn")
    tab.close()


def test_a_history_dropped_onto_an_empty_page_is_drawn(chromium: Browser, tmp_path: Path) -> None:
    page = page_of(tmp_path)
    path = histories.save(tmp_path / "dropped.jsonl", histories.whole())
    tab = opened(chromium, page)
    assert "Drop a history" in text_of(tab)
    tab.run(
        f"""(() => {{
            const data = new DataTransfer();
            data.items.add(new File([{json.dumps(path.read_text())}], "dropped.jsonl"));
            document.dispatchEvent(new DragEvent("drop", {{dataTransfer: data, bubbles: true}}));
        }})()"""
    )
    tab.wait_for("state.runs.length === 1 && document.querySelectorAll('.main-svg').length")
    assert set(tab.run(DRAWN)) == ALL_CHARTS
    assert "because the held-out loss had stopped falling" in text_of(tab)
    assert tab.errors == []
    tab.close()


def test_a_hundred_thousand_records_are_thinned_and_usable_at_once(chromium: Browser, tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    marked = {777: json.dumps(histories.rollback(777)), 55_555: json.dumps(histories.rollback(55_555))}
    kinds = [json.dumps(histories.sync(i)) for i in range(200)]  # after which they go on alike
    with path.open("w") as file:
        file.write(json.dumps(histories.opening(total_steps=1_000_000)) + "\n")
        for i in range(100_000):
            alike = kinds[min(i, 100 + i % 100)]
            step = f'{{"step": {10 * (i + 1)}, ' + alike[alike.index('"round"') :]
            file.write(marked.get(i, step) + "\n")
    page = page_of(tmp_path, path)
    assert page.stat().st_size < 8e6
    tab = chromium.open("about:blank")
    tab.call("Page.navigate", url=page.as_uri())
    tab.wait_for("document.body.dataset.drawn", 60)
    # From the page's own clock and without the machine's other work: what its main thread was busy with.
    usable = tab.run("performance.getEntriesByName('drawn')[0].startTime") / 1e3
    busy = _busy_seconds(tab)
    assert busy < 3, f"{busy:.1f} s of processor time, {usable:.1f} s of the wall's clock"
    assert set(tab.run(DRAWN)) == ALL_CHARTS
    assert tab.run("state.runs[0].facts.rollbacks") == 2, "what tells of something is not thinned out"
    assert tab.run("state.runs[0].facts.steps") == 1_000_000
    assert "100,001 records" in text_of(tab)
    assert tab.errors == []
    tab.close()


def _busy_seconds(tab: Tab) -> float:
    tab.call("Performance.enable", timeDomain="threadTicks")
    told = {one["name"]: one["value"] for one in tab.call("Performance.getMetrics")["metrics"]}
    return float(told["TaskDuration"])


def test_runs_are_compared_and_selected_in_all_charts_at_once(chromium: Browser, tmp_path: Path) -> None:
    paths = [histories.save(tmp_path / f"{name}.jsonl", histories.whole()) for name in ("one", "two")]
    tab = opened(chromium, page_of(tmp_path, *paths))
    names = "new Set(card.chart.data.map(t => t.name.split(':')[0])).size"
    count = f"Object.fromEntries([...state.drawn].map(([key, card]) => [key, {names}]))"
    both = tab.run(count)
    assert both["search Learning rate"] == both["search Held-out loss"] == both["time Time"] == 2
    tab.run("document.querySelectorAll('#runs-body input')[1].click()")
    assert tab.run("state.runs.filter(r => r.shown).length") == 1
    # A range of steps that is chosen in one chart holds in all.
    chosen = "{'xaxis.range[0]': 100, 'xaxis.range[1]': 300}"
    tab.run(f"Plotly.relayout([...state.drawn.values()][0].plot, {chosen}).then(() => 0)")
    ranges = (
        "new Set([...state.drawn.values()].map(c => c.plot._fullLayout.xaxis.range.map(Math.round).join()))"
    )
    tab.wait_for(f"[...{ranges}].join(';') === '100,300'")
    tab.run("document.getElementById('all-steps').click()")
    tab.wait_for(f"![...{ranges}].includes('100,300')")
    assert tab.errors == []
    tab.close()


def test_every_chart_can_be_saved_as_png_svg_and_csv(chromium: Browser, tmp_path: Path) -> None:
    tab = opened(chromium, page_of(tmp_path, histories.save(tmp_path / "a.jsonl", histories.whole())))
    assert tab.run(
        "[...document.querySelectorAll('.card')].every(c => c.querySelectorAll('button').length === 3)"
    )
    save = "Promise.all([...state.drawn.values()].map(async c => (await (await c.save('{}')).{})))"
    for head in tab.run(save.format("png", "slice(1, 4).text()")):
        assert head == "PNG"
    for drawing in tab.run(save.format("svg", "text()")):
        assert drawing.startswith("<svg")
    for table in tab.run(save.format("csv", "text()")):
        first, *rows = table.splitlines()
        assert first == "series,x,y,value,standard error"
        assert rows
    assert tab.errors == []
    tab.close()


@pytest.mark.parametrize(("width", "phone", "dark"), [(1280, False, False), (390, True, True)])
def test_nothing_is_wider_than_the_screen(
    chromium: Browser, tmp_path: Path, width: int, phone: bool, dark: bool
) -> None:
    page = page_of(tmp_path, histories.save(tmp_path / "a.jsonl", histories.whole()))
    tab = opened(chromium, page, width=width, phone=phone, dark=dark)
    assert tab.run("document.documentElement.scrollWidth") <= width
    assert tab.run("document.documentElement.dataset.theme") == ("dark" if dark else "light")
    fits = "s => s.clientWidth <= s.closest('.card').clientWidth"
    assert tab.run(f"[...document.querySelectorAll('.main-svg')].every({fits})")
    tab.close()


# ---------------------------------------------------------------------- live


class Watching:
    """``hdet watch`` in a process of its own."""

    def __init__(self, path: Path, port: int = 0) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hdet", "watch", str(path), "--port", str(port)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout
        self.url = self._process.stdout.readline().split(" at ")[1].split()[0]
        self.pid = self._process.pid

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(10)
        assert self._process.stdout
        self._process.stdout.close()


def append(path: Path, line: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def test_watch_waits_follows_and_reconnects(chromium: Browser, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    watching = Watching(path)
    try:
        tab = chromium.open(watching.url)
        tab.wait_for("document.getElementById('live').textContent.includes('waiting for')", 30)
        append(path, histories.opening())
        took = []
        for i in range(6):
            append(path, histories.sync(i))
            drawn = f"state.runs[0].facts && state.runs[0].facts.steps === {10 * (i + 1)}"
            took.append(tab.wait_for(drawn, 30))
        # The quickest: what else the machine does is no affair of the watcher.
        assert min(took) < 2, f"a sync is shown within two seconds, not after {took}"
        port = int(watching.url.rstrip("/").rsplit(":", 1)[1])
    finally:
        watching.stop()
    tab.wait_for("document.getElementById('live').dataset.kind === 'lost'", 30)
    append(path, histories.sync(6))
    again = Watching(path, port)
    try:
        tab.wait_for("state.runs[0].facts.steps === 70", 30)
        # The run is started anew, in the same file: nothing of the old one stays.
        path.unlink()
        histories.save(path, [histories.opening(), histories.sync(0)])
        tab.wait_for("state.runs[0].facts.steps === 10", 30)
        append(path, {"kind": "end", "step": 10})
        tab.wait_for("document.getElementById('live').textContent.includes('has ended')", 30)
        # Lost connections are what a browser complains of.
        assert [
            error for error in tab.errors if "ERR_CONNECTION" not in error and "ERR_EMPTY" not in error
        ] == []
    finally:
        again.stop()
    tab.close()


def test_the_page_is_drawn_within_a_notebook(chromium: Browser, tmp_path: Path) -> None:
    """In a frame whose document is an attribute: the page's own policy lets its scripts run there, too."""
    shown = Report(histories.save(tmp_path / "run.jsonl", histories.whole()))._repr_html_()
    page = tmp_path / "notebook.html"
    page.write_text(f"<!doctype html><body>{shown}", encoding="utf-8")
    tab = chromium.open(page.as_uri())
    tab.wait_for("document.querySelector('iframe').contentDocument?.body?.dataset.drawn", 60)
    within = DRAWN.replace("document", "document.querySelector('iframe').contentDocument")
    assert set(tab.run(within)) == ALL_CHARTS
    assert not tab.errors
    tab.close()
