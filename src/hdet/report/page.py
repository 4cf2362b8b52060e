"""One page that needs nothing else: the verdicts, charts and tables of runs, and the script that draws the
charts, in one file. Runs of models with equally many parameters are compared; others never share an axis."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from hdet.report.alerts import Alert, summary
from hdet.report.charts import Run, charts, decisions
from hdet.report.records import HistoryFile
from hdet.report.verdict import capital, facts_of, number, plural, sentence, share

__all__ = ["Report", "content", "open_histories", "page"]

_ASSETS = Path(__file__).parent / "assets"
#: What is read into a page, of all histories together.
_MOST_BYTES, _MOST_LINES = 2_000_000, 1000
#: Rows of a table; of longer ones the last.
_MOST_ROWS = 400


class Report:
    """Histories as one page. As the last line of a notebook's cell it is drawn there; it needs no network.

    Args:
        runs: histories (``AutoLR(…, history="run.jsonl")``). They are read when the report is made.
        height: of the page in a notebook, in pixels.

    >>> import tempfile
    >>> empty = Path(tempfile.mkdtemp()) / "run.jsonl"
    >>> empty.touch()
    >>> list(Report(empty).verdicts.values())
    ['Nothing has been measured yet.']
    """

    def __init__(self, *runs: str | PathLike[str], height: int = 800) -> None:
        if not runs:
            raise ValueError("Report: give one history or more, got none")
        paths = [Path(run) for run in runs]
        for path in paths:
            if not path.is_file():
                raise FileNotFoundError(f"Report: a run must be a history file, got {str(path)!r}")
        self.height = height
        self._files = [file.read() for file in open_histories(paths)]

    @property
    def verdicts(self) -> dict[str, str]:
        """How each run went, in a few sentences."""
        return {found["run"]: found["verdict"] for found in self.summaries()}

    def summaries(self) -> list[dict[str, Any]]:
        """Of each run its name, its verdict and its alerts."""
        return [summary(file.name, file.records()) for file in self._files]

    def write(self, path: str | PathLike[str]) -> None:
        """The page as a file that opens without a network."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(page(self._files), encoding="utf-8")

    def __repr__(self) -> str:
        return "\n".join(f"{name}: {verdict}" for name, verdict in self.verdicts.items())

    def _repr_html_(self) -> str:
        """What notebooks show: a frame, which separates the page's style and scripts from theirs."""
        return (
            f'<iframe srcdoc="{html.escape(page(self._files))}" width="100%" height="{self.height}" '
            'style="border: 0" title="hdet report"></iframe>'
        )


def open_histories(paths: Sequence[Path], *, lines: int = _MOST_LINES) -> list[HistoryFile]:
    """Files that share what a page may hold, in so many ``lines`` and as many that are marked."""
    each = max(1, len(paths))
    limit, bytes_ = max(50, 2 * lines // (each + 1)), _MOST_BYTES // (2 * each)
    return [HistoryFile(path, limit=limit, bytes_=bytes_) for path in paths]


def page(files: Sequence[HistoryFile], *, live: bool = False) -> str:
    """The whole page; one that is live asks its server for what is new."""
    text = (_ASSETS / "page.html").read_text(encoding="utf-8")
    parts = {name: (_ASSETS / f"page.{name}").read_text(encoding="utf-8") for name in ("css", "js")}
    parts |= {"content": "" if live else content(files), "live": "live" if live else ""}
    for name, part in parts.items():
        before, after = text.split(f"/*{name}*/")
        text = before + part + after
    return text


def content(files: Sequence[HistoryFile]) -> str:
    """What the page shows of its runs: a section for each task."""
    tasks: dict[Any, list[tuple[HistoryFile, Run]]] = {}
    for index, file in enumerate(files):
        lines = file.records()
        run = Run(index, file.name, facts_of(lines), lines)
        tasks.setdefault(str(_opening(run).get("parameters")), []).append((file, run))
    return "".join(_task(members, headed=len(tasks) > 1) for members in tasks.values())


def _task(members: Sequence[tuple[HistoryFile, Run]], *, headed: bool) -> _Html:
    runs = [run for _, run in members]
    folders = {file.path.resolve().parent.name for file, _ in members}
    title = folders.pop().replace("-", " ").replace("_", " ") if len(folders) == 1 else "Runs of one model"
    sections = [_tag("h2", capital(title))] if headed else []
    sections += [_verdict(file, run) for file, run in members if run.facts.caller or len(runs) == 1]
    if len(runs) > 1:
        sections.append(_comparison(runs))
    drawn = charts(runs)
    figures = [_figure(chart) for chart in drawn]
    sections.append(_Html(f'<div class="charts">{"".join(figures)}</div>'))
    sections += [details for file, run in members for details in _details(file, run)]
    return _tag("section", *sections, cls="task")


def _verdict(file: HistoryFile, run: Run) -> _Html:
    about, facts = file.about(), run.facts
    notices = []
    if not about["exists"]:
        notices.append(f"Waiting for {about['path']}")
    if torn := about["torn"]:
        notices.append(f"{plural(torn, 'line')} cut short, as by a crash, left out.")
    if about["total"] > len(run.lines):
        notices.append(
            f"{about['total']:,} records, {len(run.lines):,} drawn: evenly spaced, and those with events."
        )
    alerts = [alert for alert in run.alerts if alert.level != "info"]
    shown = [
        _tag(
            "li",
            _tag("strong", f"{alert.level}: {alert.kind}"),
            f"{_at(alert.step)}: {alert.text}",
            cls=_level(alert),
        )
        for alert in alerts[:3]
    ]
    more = [_tag("li", f"and {len(alerts) - 3} more, below")] if len(alerts) > 3 else []
    state = "waiting" if not facts.steps else facts.state
    return _tag(
        "section",
        _tag("h3", _swatch(run), run.name, _tag("span", state, cls=f"chip {state}")),
        _tag("p", sentence(facts)),
        *(_tag("p", notice, cls="soft") for notice in notices),
        *([_tag("ul", *shown, *more, cls="alerts")] if shown else []),
        cls="verdict",
    )


def _comparison(runs: Sequence[Run]) -> _Html:
    heads = ("run", "learning rate", "first loss", "last loss", "lowest loss", "at step", "steps", "probing")
    rows = []
    for run in runs:
        facts = run.facts
        box = _Html(f'<input type="checkbox" data-run="{run.index}" checked>')
        rate = f"×{number(facts.factor)}" if math.isfinite(facts.factor) else number(facts.rate, 2)
        cells = (
            rate,
            number(facts.first_loss),
            number(facts.last_loss),
            number(facts.best_loss),
            "–" if facts.best_step is None else f"{facts.best_step:,}",
            f"{facts.steps:,}",
            share(facts.cost) if facts.cost > 0 else "–",
        )
        label = _tag("label", box, _swatch(run), run.name)
        rows.append(_tag("tr", _tag("th", label, scope="row"), *(_tag("td", cell) for cell in cells)))
    return _table(heads, rows)


def _figure(chart: dict[str, Any]) -> _Html:
    data = _Html(json.dumps(chart).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))
    return _tag(
        "figure",
        _tag("header", _tag("h3", chart["title"]), _tag("button", "SVG", type="button", title="Save as SVG")),
        _tag("div", cls="plot"),
        _tag("figcaption", chart["caption"]),
        _tag("script", data, type="application/json"),
    )


def _details(file: HistoryFile, run: Run) -> Iterator[_Html]:
    decided = list(decisions(run))
    if decided:
        rows = [
            _tag("tr", _tag("th", f"{step:,}", scope="row"), _tag("td", number(loss, 4)), _words(text))
            for step, loss, text in decided[-_MOST_ROWS:]
        ]
        yield _folded(
            f"{run.name}: {plural(len(decided), 'decision')}, and why", ("step", "loss", "decision"), rows
        )
    if run.alerts:
        rows = [
            _tag(
                "tr",
                _tag("th", "–" if one.step is None else f"{one.step:,}", scope="row"),
                _tag("td", one.level),
                _words(f"{one.kind}: {one.text}"),
                cls=_level(one),
            )
            for one in run.alerts[-_MOST_ROWS:]
        ]
        yield _folded(
            f"{run.name}: {plural(len(run.alerts), 'event')}", ("step", "level", "what happened"), rows
        )
    opening = _opening(run)
    starts = sum(line.get("kind") == "run" for line in run.lines)
    versions = opening.get("versions")
    explored = opening.get("explored")
    facts = {
        "file": file.path,
        "run": ", ".join(filter(None, map(str, (opening.get("caller") or "", opening.get("id") or "")))),
        "started": f"{starts} times" if starts > 1 else "",
        "began": opening.get("began"),
        "command": opening.get("command"),
        "optimizer": opening.get("optimizer"),
        "parameters": opening.get("parameters"),
        "replicas": opening.get("replicas"),
        "explored": ", ".join(map(str, ["learning rate", *explored])) if isinstance(explored, dict) else "",
        "device": opening.get("device"),
        "versions": ", ".join(f"{k} {v}" for k, v in versions.items()) if isinstance(versions, dict) else "",
        "platform": opening.get("platform"),
    }
    rows = [
        _tag(
            "tr",
            _tag("th", name, scope="row"),
            _words(f"{value:,}" if isinstance(value, int) else str(value)),
        )
        for name, value in facts.items()
        if value not in (None, "")
    ]
    yield _folded(f"{run.name}: how it was run", (), rows)


def _folded(title: str, heads: Sequence[str], rows: Sequence[str]) -> _Html:
    return _tag("details", _tag("summary", title), _table(heads, rows))


def _table(heads: Sequence[str], rows: Sequence[str]) -> _Html:
    head = [_tag("thead", _tag("tr", *(_tag("th", head, scope="col") for head in heads)))] if heads else []
    return _tag("div", _tag("table", *head, _tag("tbody", *rows)), cls="wide")


def _words(text: str) -> _Html:
    return _tag("td", text, cls="words")


def _swatch(run: Run) -> _Html:
    return _Html(f'<span class="swatch run-{run.index % 8}"></span>')


def _at(step: int | None) -> str:
    return "" if step is None else f" at step {step:,}"


def _level(alert: Alert) -> str:
    return alert.level if alert.level in ("warning", "error") else "info"


def _opening(run: Run) -> dict[str, Any]:
    """The last opening: a file holds one for every time the run was started."""
    return next((line for line in reversed(run.lines) if line.get("kind") == "run"), {})


class _Html(str):
    """Text that is HTML already."""


def _tag(name: str, *inner: str, cls: str = "", **attributes: str) -> _Html:
    """An element; what is no HTML yet is text, whatever a history holds."""
    given = {"class": cls, **attributes} if cls else attributes
    head = "".join(f' {key}="{html.escape(value)}"' for key, value in given.items())
    body = "".join(one if isinstance(one, _Html) else html.escape(str(one)) for one in inner)
    return _Html(f"<{name}{head}>{body}</{name}>")
