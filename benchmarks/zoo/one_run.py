"""The chart of the first page: a sweep's test loss against its rate on four tasks, and AutoLR's one run.

``python -m benchmarks.zoo.one_run`` draws docs/evidence/one-run.svg from the committed runs. Which tasks are
shown is a rule, not a choice: of the test families' tasks with AdamW, sorted by AutoLR's excess over the
tuned sweep, the one a quarter of the way, the median, the one at three quarters, and the worst; between two
of them the worse.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.rows import KeptRows, Row
from benchmarks.zoo.analysis import excess, excess_loss
from benchmarks.zoo.catalogue import TASKS
from benchmarks.zoo.plan import Run, run_of

__all__ = ["Panel", "chosen", "draw", "panels"]

ROWS = Path(__file__).with_name("rows-cuda.jsonl")
RESULT = Path("docs/evidence/zoo.json")
DRAWING = Path("docs/evidence/one-run.svg")
_OPTIMIZER = "adamw"
#: A task is shown at each of these places of the sorted list, and called so.
_PLACES = {
    "a quarter of the tasks do better": 0.25,
    "the median task": 0.5,
    "a quarter do worse": 0.75,
    "the worst of {}": 1.0,
}
#: The tasks in words; one that is not here is shown by its name.
_WORDS = {
    "surnames-recurrent": "Surnames, recurrent",
    "clothes-vision-transformer": "Clothes, transformer",
    "clothes-fine-tuned": "Clothes, fine-tuned",
    "speakers-recurrent": "Speakers, recurrent",
}
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM, _GAP, _RIGHT = 800, 300, 66, 62, 66, 16, 12
_TEXT, _FAINT, _OURS, _SWEEP = "#768390", "#76839055", "#e8590c", "#4f86c6"
#: Excess in per cent.
_TICKS = (0, 50, 200, 500, 1000, 2000)
_RATES = {1e-5: "1e−5", 1e-4: "1e−4", 1e-3: "1e−3", 1e-2: "0.01", 1e-1: "0.1", 1.0: "1"}


@dataclass(frozen=True)
class Panel:
    """One task: every loss is an excess, the share by which it is above the tuned sweep's."""

    task: str
    place: str
    excess: float
    #: Rate and excess at each point of the sweep, under its better schedule.
    sweep: tuple[tuple[float, float], ...]
    #: The rate of the tuned sweep.
    tuned: float


def chosen(result: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """What each place is called, and the cell that stands there."""
    cells = [c for c in result["cells"] if (c["part"], c["optimizer"]) == ("test", _OPTIMIZER)]
    cells.sort(key=lambda cell: cell["autolr"]["excess_test_chosen"])
    last = len(cells) - 1
    return [(name.format(len(cells)), cells[math.ceil(share * last)]) for name, share in _PLACES.items()]


def panels(result: Mapping[str, Any], finished: Mapping[Run, Row]) -> list[Panel]:
    """The four tasks with every point of their sweeps, each a mean over the seeds that were run there."""
    return [_panel(place, cell, finished) for place, cell in chosen(result)]


def _panel(place: str, cell: Mapping[str, Any], finished: Mapping[Run, Row]) -> Panel:
    runs: dict[tuple[float, str], list[float]] = {}
    for run, row in finished.items():
        if (run.task, run.optimizer, run.method) == (cell["task"], _OPTIMIZER, "fixed"):
            runs.setdefault((run.rate or 0.0, run.schedule), []).append(excess_loss(row, "test_chosen"))
    tuned, floor = cell["sweep"]["test_chosen"], TASKS[cell["task"]].floor
    found: dict[float, float] = {}
    for (rate, _), losses in sorted(runs.items()):
        mean = excess(statistics.fmean(losses), tuned["loss"], floor)
        found[rate] = min(mean, found.get(rate, math.inf))
    ours = cell["autolr"]["excess_test_chosen"]
    return Panel(cell["task"], place, ours, tuple(found.items()), tuned["rate"])


# ---------------------------------------------------------------------- the picture


def draw(shown: Sequence[Panel]) -> str:
    """An SVG document, legible on white and on near-black: nothing is drawn behind it."""
    width = (_WIDTH - _LEFT - _RIGHT - _GAP * (len(shown) - 1)) / len(shown)
    everything = [value for one in shown for _, value in one.sweep] + [one.excess for one in shown]
    scale = _Scale(0.9 * (1 + min(everything)), 1.1 * (1 + max(everything)))
    rates = [rate for one in shown for rate, _ in one.sweep]
    title = "Test loss of every rate of a sweep, and of one AutoLR run that is given no rate, on four tasks"
    parts: list[str] = []
    for tick in _TICKS:
        parts.append(_said(_LEFT - 8, scale.at(tick / 100) + 4, f"{tick:+,} %" if tick else "0", "end"))
    for place, one in enumerate(shown):
        parts += _drawn(one, _LEFT + place * (width + _GAP), width, scale, (min(rates), max(rates)))
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        _said(
            middle,
            _HEIGHT - 28,
            "across: learning rate (AdamW) · up: test loss above the tuned sweep's",
            "middle",
        )
    )
    parts += _legend(middle)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" font-family="sans-serif" font-size="12" '
        f'fill="{_TEXT}">\n<title>{title}</title>\n' + "\n".join(parts) + "\n</svg>\n"
    )


@dataclass(frozen=True)
class _Scale:
    """Heights of an excess, logarithmic in the loss over the tuned one."""

    low: float
    high: float

    def at(self, above: float) -> float:
        share = math.log((1 + above) / self.low) / math.log(self.high / self.low)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def _drawn(one: Panel, left: float, width: float, scale: _Scale, ends: tuple[float, float]) -> list[str]:
    low, high = map(math.log, ends)

    def across(rate: float) -> float:
        return left + 8 + (width - 16) * (math.log(rate) - low) / (high - low)

    right, middle = left + width, left + width / 2
    parts = [
        _said(middle, 16, one.place, "middle"),
        _said(middle, 34, _WORDS.get(one.task, one.task), "middle", ' font-size="14" font-weight="bold"'),
        _said(
            middle, 52, _percent(one.excess), "middle", f' font-weight="bold" font-size="14" fill="{_OURS}"'
        ),
    ]
    for tick in _TICKS:
        y = scale.at(tick / 100)
        parts.append(_line(left, y, right, y, _FAINT if tick else _TEXT))
    for rate, label in _RATES.items():
        if ends[0] <= rate <= ends[1]:
            parts.append(_said(across(rate), _HEIGHT - _BOTTOM + 16, label, "middle"))
    points = [(across(rate), scale.at(above)) for rate, above in one.sweep]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts.append(f'<polyline points="{path}" fill="none" stroke="{_SWEEP}" stroke-width="1.6"/>')
    for (x, y), (rate, above) in zip(points, one.sweep, strict=True):
        tip = f"<title>{escape(f'rate {rate:g}: {_percent(above)}')}</title>"
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{_SWEEP}">{tip}</circle>')
    x, y = across(one.tuned), scale.at(0)
    parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" fill="none" stroke="{_TEXT}" stroke-width="1.5"/>')
    y = scale.at(one.excess)
    tip = f"<title>{escape(f'AutoLR: {_percent(one.excess)}')}</title>"
    parts.append(
        f'<line x1="{left:.1f}" y1="{y:.1f}" x2="{right:.1f}" y2="{y:.1f}" stroke="{_OURS}" '
        f'stroke-width="2.6">{tip}</line>'
    )
    return parts


def _percent(share: float) -> str:
    return f"{100 * share:+.1f} %".replace("-", "−")


def _legend(middle: float) -> list[str]:
    y = _HEIGHT - 8
    left = middle - 300
    return [
        _line(left, y - 4, left + 24, y - 4, _OURS, 2.6),
        _said(left + 30, y, "AutoLR: one run, no rate given", "start", f' fill="{_OURS}"'),
        f'<circle cx="{left + 232}" cy="{y - 4}" r="3" fill="{_SWEEP}"/>',
        _said(left + 241, y, "the sweep, a run at each rate", "start", f' fill="{_SWEEP}"'),
        f'<circle cx="{left + 452}" cy="{y - 4}" r="6" fill="none" stroke="{_TEXT}" stroke-width="1.5"/>',
        _said(left + 464, y, "the tuned sweep's loss", "start"),
    ]


def _said(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'


def main() -> None:
    """Write the file."""
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    DRAWING.write_text(draw(panels(result, KeptRows(ROWS, run_of).finished)), encoding="utf-8")
    print(f"Drawn in {DRAWING}")


if __name__ == "__main__":
    main()
