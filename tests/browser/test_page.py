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
from tests.browser import histories
from tests.browser.chromium import FOUND, Browser, Tab, browser

pytestmark = pytest.mark.skipif(
    FOUND is None,
    reason="no Chromium on this machine: the page was NOT tried in a browser (apt install chromium)",
)
CHARTS = {"Held-out loss", "Learning rate", "Lag", "Weight decay", "Replicas' losses: a"}
DRAWN = (
    "[...document.querySelectorAll('figure')].filter(f => f.querySelector('path.series')?.getAttribute('d'))"
    ".map(f => f.querySelector('h3').textContent)"
)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as made:
        yield made


def page_of(folder: Path, *paths: Path) -> Path:
    made = folder / "report.html"
    Report(*paths).write(made)
    return made


def opened(chromium: Browser, page: Path, **look: Any) -> Tab:
    tab = chromium.open(page.as_uri(), **look)
    tab.wait_for("document.body.dataset.drawn", 60)
    return tab


def text_of(tab: Tab) -> str:
    return str(tab.run("document.body.textContent"))


HISTORIES = {
    "a whole run": (histories.whole, False, CHARTS),
    "replicas that fan out": (
        histories.fanned_out,
        False,
        CHARTS - {"Lag", "Weight decay"} | {"Replicas' learning rates: a"},
    ),
    "not a number": (histories.nothing_finite, False, CHARTS),
    "one record": (lambda: [histories.sync(0)], False, CHARTS),
    "an opening alone": (lambda: [histories.opening()], False, set()),
    "strings of HTML and script": (
        histories.hostile,
        False,
        CHARTS - {"Weight decay"} | {histories.HOSTILE[1]},
    ),
    "torn in mid-line": (histories.whole, True, CHARTS),
}


@pytest.mark.parametrize("kind", HISTORIES)
def test_every_chart_is_drawn_beside_what_python_says(chromium: Browser, tmp_path: Path, kind: str) -> None:
    made, torn, charts = HISTORIES[kind]
    path = histories.save(tmp_path / "a.jsonl", made(), torn=torn)
    tab = opened(chromium, page_of(tmp_path, path))
    assert set(tab.run(DRAWN)) == charts
    assert tab.errors == []
    assert tab.run("window.hacked") is None
    assert tab.run("document.querySelectorAll('main img, main b').length") == 0
    said = " ".join(text_of(tab).split())
    assert Report(path).verdicts["a"] in said
    assert ("1 line cut short" in said) == torn
    if kind.startswith("strings"):
        assert all(" ".join(text.split()) in said for text in histories.HOSTILE)
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
    assert page.stat().st_size < 1.5e6
    tab = chromium.open("about:blank")
    tab.call("Page.navigate", url=page.as_uri())
    tab.wait_for("document.body.dataset.drawn", 60)
    busy = _busy_seconds(tab)
    assert busy < 2, f"{busy:.1f} s of processor time"
    assert set(tab.run(DRAWN)) == CHARTS - {"Replicas' losses: a"} | {"Replicas' losses: long"}
    assert "It rolled a window back twice (steps 7,780, 555,560)" in text_of(tab)
    assert "100,001 records" in text_of(tab)
    assert tab.errors == []
    tab.close()


def _busy_seconds(tab: Tab) -> float:
    tab.call("Performance.enable", timeDomain="threadTicks")
    told = {one["name"]: one["value"] for one in tab.call("Performance.getMetrics")["metrics"]}
    return float(told["TaskDuration"])


COLOURS = """Object.fromEntries([...document.querySelectorAll('figure:first-child path.series')].map(
    (path) => [path.getAttribute('class').trim(), getComputedStyle(path).stroke]))"""


def test_no_run_changes_its_colour_when_others_are_hidden(chromium: Browser, tmp_path: Path) -> None:
    paths = [
        histories.save(tmp_path / f"{name}.jsonl", histories.whole()) for name in ("one", "two", "three")
    ]
    tab = opened(chromium, page_of(tmp_path, *paths))
    every = tab.run(COLOURS)
    assert len(set(every.values())) == 3
    swatches = "[...document.querySelectorAll('label .swatch')]"
    assert set(tab.run(f"{swatches}.map(s => getComputedStyle(s).backgroundColor)")) == set(every.values())
    for i in (0, 1):
        tab.run(f"document.querySelectorAll('input[data-run]')[{i}].click()")
        left = tab.run(COLOURS)
        assert left == {name: colour for name, colour in every.items() if int(name.split("run-")[1][0]) > i}
    tab.run("document.querySelectorAll('input[data-run]')[0].click()")
    assert tab.run(COLOURS) == {name: colour for name, colour in every.items() if "run-1" not in name}
    assert tab.errors == []
    tab.close()


def test_a_pointer_over_a_chart_reads_formatted_numbers_and_reasons(
    chromium: Browser, tmp_path: Path
) -> None:
    path = histories.save(tmp_path / "a.jsonl", histories.whole())
    tab = opened(chromium, page_of(tmp_path, path))
    tab.run("document.querySelectorAll('figure')[1].scrollIntoView()")
    over = """(() => {
        const svg = document.querySelectorAll('figure svg')[1], box = svg.getBoundingClientRect();
        const at = { clientX: box.left + 52 + (box.width - 66) * 0.1, clientY: box.top + 80, bubbles: true };
        svg.dispatchEvent(new PointerEvent('pointermove', at));
        return document.getElementById('tip').innerText;
    })()"""
    step, rate, why = tab.run(over).splitlines()
    assert step == "step 200"
    assert rate == "a: 0.00837"
    assert why.startswith("The rate rises, from 0.006 to 0.0084: the lag is 0.9 and 2.5 is tolerated")
    assert tab.run("document.querySelector('.cross') !== null")
    tab.close()


def test_a_chart_is_saved_with_its_style(chromium: Browser, tmp_path: Path) -> None:
    tab = opened(chromium, page_of(tmp_path, histories.save(tmp_path / "a.jsonl", histories.whole())))
    drawing = tab.run("savedSvg(document.querySelector('figure')).text()")
    assert drawing.startswith("<svg")
    assert "var(" not in drawing
    assert 'stroke="rgb(0, 114, 178)"' in drawing
    assert tab.errors == []
    tab.close()


@pytest.mark.parametrize(("width", "phone", "dark"), [(1280, False, False), (390, True, True)])
def test_nothing_is_wider_than_the_screen(
    chromium: Browser, tmp_path: Path, width: int, phone: bool, dark: bool
) -> None:
    page = page_of(tmp_path, histories.save(tmp_path / "a.jsonl", histories.whole()))
    tab = opened(chromium, page, width=width, phone=phone, dark=dark)
    assert tab.run("document.documentElement.scrollWidth") <= width
    back = tab.run("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")
    fits = "s => s.clientWidth <= s.closest('figure').clientWidth"
    assert tab.run(f"[...document.querySelectorAll('figure svg')].every({fits})")
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


def shows(text: str) -> str:
    return f"document.querySelector('.verdict')?.textContent.includes({json.dumps(text)})"


def test_watch_waits_follows_and_reconnects(chromium: Browser, tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    watching = Watching(path)
    try:
        tab = chromium.open(watching.url)
        tab.wait_for("document.querySelector('main').textContent.includes('Waiting for')", 30)
        append(path, histories.opening())
        took = []
        for i in range(6):
            append(path, histories.sync(i))
            took.append(tab.wait_for(shows(f"Searching: step {10 * (i + 1)} of"), 30))
        # The quickest: what else the machine does is no affair of the watcher.
        assert min(took) < 2, f"a sync is shown within two seconds, not after {took}"
        port = int(watching.url.rstrip("/").rsplit(":", 1)[1])
    finally:
        watching.stop()
    tab.wait_for("!document.getElementById('lost').hidden", 30)
    append(path, histories.sync(6))
    again = Watching(path, port)
    try:
        tab.wait_for(shows("step 70 of"), 30)
        assert tab.run("document.getElementById('lost').hidden")
        # The run is started again, in the same file: nothing of the old one stays.
        path.unlink()
        histories.save(path, [histories.opening(), histories.sync(0)])
        tab.wait_for(shows("step 10 of"), 30)
        append(path, {"kind": "end", "step": 10})
        tab.wait_for(shows("Ended at step 10 of"), 30)
        # Lost connections are what a browser complains of.
        assert [
            error for error in tab.errors if "ERR_CONNECTION" not in error and "ERR_EMPTY" not in error
        ] == []
    finally:
        again.stop()
    tab.close()


def test_the_page_is_drawn_within_a_notebook(chromium: Browser, tmp_path: Path) -> None:
    """In a frame whose document is an attribute: the page's own policy lets its scripts run there, too."""
    shown = Report(histories.save(tmp_path / "a.jsonl", histories.whole()))._repr_html_()
    page = tmp_path / "notebook.html"
    page.write_text(f"<!doctype html><body>{shown}", encoding="utf-8")
    tab = chromium.open(page.as_uri())
    tab.wait_for("document.querySelector('iframe').contentDocument?.body?.dataset.drawn", 60)
    within = DRAWN.replace("document", "document.querySelector('iframe').contentDocument")
    assert set(tab.run(within)) == CHARTS
    assert not tab.errors
    tab.close()
