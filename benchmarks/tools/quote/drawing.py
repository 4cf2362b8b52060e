"""What is drawn from the evidence alone; here excess-brief.svg, the short table with a dot for every line.

SVG written by hand. Nothing is drawn behind it, and every colour is legible on white and on near-black.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.paper.chart import chart
from benchmarks.regret.analysis import COLUMNS
from benchmarks.tools.quote.tables.brief import called, known, methods

__all__ = ["draw", "drawings"]

_WIDTH, _LEFT, _RIGHT = 800, 182, 40
_TOP, _ROW, _BOTTOM = 40, 46, 52
#: Below the dots of the first row, the name of a line that is lost.
_NAME = 15
_TEXT, _FAINT, _OURS, _OTHERS = "#768390", "#76839055", "#e8590c", "#4f86c6"
#: Per cent; below it the axis is about linear, above it logarithmic.
_LINEAR = 1.0
_TICKS = (-3, -1, 0, 1, 3, 10, 30, 100, 300, 1000, 3000)
_LOWEST, _HIGHEST = -4.0, 6000.0
_RADIUS = 3.8
_TITLE = "Held-out loss above a tuned sweep's, per cent: a dot for each kind of training and optimizer"


def drawings(evidence: Path) -> dict[str, str]:
    """The charts that are drawn from the evidence alone, by the names of their files."""
    drawn = {"excess-brief.svg": ("excess", draw), "paper-edge.svg": ("paper", chart)}
    return {
        drawing: drawer(json.loads((evidence / f"{name}.json").read_text(encoding="utf-8")))
        for drawing, (name, drawer) in drawn.items()
    }


def draw(result: Mapping[str, Any]) -> str:
    """An SVG document of the excess, chosen over chosen."""
    pairs = result["excess"]["pairs"]
    arms = methods(pairs)
    first = _ROW + 6 + _NAME * len(_losses(pairs))
    bottom = _TOP + first + _ROW * (len(arms) - 1)
    parts = _axis(bottom)
    top = _TOP
    for arm in arms:
        height = first if arm == "autolr" else _ROW
        parts += _row(arm, pairs, top)
        if top > _TOP:
            parts.append(_line(14, top, _WIDTH - 14, top, _FAINT))
        top += height
    parts += _legend()
    parts.append(_said((_LEFT + _WIDTH - _RIGHT) / 2, bottom + 40, _TITLE, "middle"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{bottom + _BOTTOM}" '
        f'viewBox="0 0 {_WIDTH} {bottom + _BOTTOM}" role="img" font-family="sans-serif" font-size="13" '
        f'fill="{_TEXT}">\n<title>{_TITLE}</title>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _row(arm: str, pairs: Sequence[Mapping[str, Any]], top: float) -> list[str]:
    ours, middle = arm == "autolr", top + _ROW / 2
    colour = _OURS if ours else _OTHERS
    weight = ' font-weight="bold"' if ours else ""
    parts = [_said(_LEFT - 16, middle + 4, COLUMNS[arm], "end", weight)]
    mine = sorted((known(pair)[arm], called(pair)) for pair in pairs if arm in known(pair))
    parts.append(_median([value for value, _ in mine], middle, colour))
    placed: list[tuple[float, float]] = []
    losses = _losses(pairs) if ours else {}
    lost = 0
    for value, name in mine:
        if math.isinf(value):
            lost += 1
            continue
        x, y = _free(_at(value), middle, placed)
        placed.append((x, y))
        tip = f"<title>{escape(f'{name}: {value:.2f} %')}</title>"
        where = f'cx="{x:.1f}" cy="{y:.1f}"'
        parts.append(f'<circle {where} r="{_RADIUS}" fill="{colour}">{tip}</circle>')
        if name in losses:
            label = top + _ROW + 10 + _NAME * list(losses).index(name)
            parts.append(f'<circle {where} r="6.8" fill="none" stroke="{_TEXT}" stroke-width="1.5"/>')
            parts.append(_line(x, y + 7, x, label - 4, _TEXT))
            parts.append(_line(x, label - 4, x + 7, label - 4, _TEXT))
            parts.append(_said(x + 10, label, losses[name], "start", ' font-size="12"'))
    if lost:
        parts.append(
            _said(
                _WIDTH - _RIGHT + 4, middle + 5, f"×{lost if lost > 1 else ''}", "start", f' fill="{colour}"'
            )
        )
    return parts


def _losses(pairs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The lines on which another is better, the nearest of them last, and by how much."""
    found = {}
    for pair in pairs:
        values = known(pair)
        first = min(values, key=lambda arm: values[arm])
        if first != "autolr" and "autolr" in values:
            text = f"{called(pair)}: {values['autolr']:.1f} % ({COLUMNS[first]} {values[first]:.1f} %)"
            found[called(pair)] = (values["autolr"], text)
    ordered = sorted(found.items(), key=lambda item: -item[1][0])
    return {name: text for name, (_, text) in ordered}


def _free(x: float, middle: float, placed: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """As near to the middle of the row as dots that are there already allow."""
    step = 2 * _RADIUS
    for offset in (0, step, -step, 2 * step, -2 * step):
        if all(math.hypot(x - other, middle + offset - y) >= step - 0.2 for other, y in placed):
            return x, middle + offset
    return x, middle


def _median(values: Sequence[float], middle: float, colour: str) -> str:
    x = _at(min(statistics.median(values), _HIGHEST))
    return _line(x, middle - 19, x, middle + 19, colour, 1.5)


def _axis(bottom: float) -> list[str]:
    parts = []
    for tick in _TICKS:
        x = _at(tick)
        parts.append(_line(x, _TOP, x, bottom, _TEXT if tick == 0 else _FAINT))
        parts.append(_said(x, bottom + 18, f"{tick:,}".replace("-", "−"), "middle"))
    return parts


def _legend() -> list[str]:
    notes = "| median   ○ AutoLR is not the best   × no finite loss"
    return [
        _said(_at(0), _TOP - 8, "as good as the sweep", "middle", ' font-size="12"'),
        _said(_WIDTH - 14, _TOP - 8, notes, "end", ' font-size="12" xml:space="preserve"'),
    ]


def _at(value: float) -> float:
    low, high = _symlog(_LOWEST), _symlog(_HIGHEST)
    share = (_symlog(min(_HIGHEST, max(_LOWEST, value))) - low) / (high - low)
    return _LEFT + share * (_WIDTH - _RIGHT - _LEFT)


def _symlog(value: float) -> float:
    return math.copysign(math.log1p(abs(value) / _LINEAR), value)


def _said(x: float, y: float, text: str, anchor: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{more}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'
