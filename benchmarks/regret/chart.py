"""The regret table as a picture: a row for each workload and optimizer, a mark for each arm.

SVG written by hand. Nothing is drawn behind it, and every colour is legible on white and on near-black, since
a page that shows the file as an image hands down no colour of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.regret.analysis import COLUMNS

__all__ = ["chart"]

_WIDTH, _LEFT, _RIGHT = 800, 170, 46
_TOP, _ROW, _BOTTOM = 54, 38, 44
_TEXT, _FAINT = "#768390", "#76839055"
#: Per cent; below it the axis is about linear, above it logarithmic.
_LINEAR = 0.3
_TICKS = (-30, -10, -3, -1, 0, 0.3, 1, 3, 10, 30, 100, 300)
_LOWEST, _HIGHEST = -0.3, 100.0
#: Each arm's colour and mark; which paths they are, see ``_mark``.
_STYLES = {
    "default": ("#8c959f", "circle"),
    "default-onecycle": ("#8c959f", "triangle"),
    "published": ("#a5793b", "square"),
    "greedy": ("#b3a12c", "diamond"),
    "prodigy": ("#3b8edb", "diamond"),
    "prodigy-schedulefree": ("#3b8edb", "triangle"),
    "dadaptation": ("#9a6dd7", "triangle"),
    "schedule-free": ("#2c9c6a", "square"),
    "mechanic": ("#c9559e", "circle"),
    "autolr": ("#e8590c", "star"),
}


def chart(result: Mapping[str, Any]) -> str:
    """An SVG document of the held-out regrets with their confidence intervals."""
    pairs = result["pairs"]
    shown = [arm for arm in COLUMNS if any(arm in pair["arms"] for pair in pairs)]
    axis = _Axis(pairs)
    bottom = _TOP + _ROW * len(pairs)
    parts = [*_legend(shown), *axis.draw(bottom)]
    for row, pair in enumerate(pairs):
        middle = _TOP + _ROW * (row + 0.5)
        label = escape(f"{pair['workload']}, {pair['optimizer']}")
        parts.append(f'<text x="{_LEFT - 14}" y="{middle + 4:.1f}" text-anchor="end">{label}</text>')
        if row:
            parts.append(_line(_LEFT, _TOP + _ROW * row, _WIDTH - _RIGHT, _TOP + _ROW * row, _FAINT))
        for place, arm in enumerate(shown):
            if arm in pair["arms"]:
                # Beside one another, so that intervals that overlap can be told apart.
                y = middle + (place - (len(shown) - 1) / 2) * (_ROW - 12) / max(1, len(shown) - 1)
                parts += _arm(arm, pair["arms"][arm], axis, y)
    title = "Normalised regret of the final held-out loss, per cent (0: the tuned sweep)"
    parts.append(
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{bottom + 36}" text-anchor="middle">{title}</text>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{bottom + _BOTTOM}" '
        f'viewBox="0 0 {_WIDTH} {bottom + _BOTTOM}" role="img" font-family="sans-serif" font-size="13" '
        f'fill="{_TEXT}">\n<title>{title}</title>\n' + "\n".join(parts) + "\n</svg>\n"
    )


class _Axis:
    """From per cent to pixels."""

    def __init__(self, pairs: Any) -> None:
        values = [
            about["held_out"]["regret"]
            for pair in pairs
            for arm, about in pair["arms"].items()
            if arm in COLUMNS and about["held_out"]["regret"] is not None
        ]
        self.low = max(_TICKS[0], min([_LOWEST, *values]) * 1.1)
        self.high = min(_TICKS[-1], max([_HIGHEST, *values]) * 1.1)

    def __call__(self, value: float) -> float:
        low, high = _symlog(self.low), _symlog(self.high)
        share = (_symlog(min(self.high, max(self.low, value))) - low) / (high - low)
        return _LEFT + share * (_WIDTH - _RIGHT - _LEFT)

    def draw(self, bottom: float) -> list[str]:
        parts = []
        for tick in _TICKS:
            if self.low <= tick <= self.high:
                x = self(tick)
                parts.append(_line(x, _TOP, x, bottom, _TEXT if tick == 0 else _FAINT))
                parts.append(f'<text x="{x:.1f}" y="{bottom + 17}" text-anchor="middle">{tick:g}</text>')
        return parts


def _symlog(value: float) -> float:
    return math.copysign(math.log1p(abs(value) / _LINEAR), value)


def _legend(shown: list[str]) -> list[str]:
    parts, x, y = [], 14.0, 20.0
    for arm in shown:
        width = 30 + 7.6 * len(COLUMNS[arm])
        if x + width > _WIDTH - 10:
            x, y = 14.0, y + 22
        weight = ' font-weight="bold"' if arm == "autolr" else ""
        parts.append(_mark(arm, x + 6, y - 4))
        parts.append(f'<text x="{x + 18:.1f}" y="{y}"{weight}>{COLUMNS[arm]}</text>')
        x += width
    if x + 120 > _WIDTH:
        x, y = 14.0, y + 22
    parts.append(f'<text x="{x:.1f}" y="{y}">× diverged</text>')
    return parts


def _arm(arm: str, about: Mapping[str, Any], axis: _Axis, y: float) -> list[str]:
    colour, _ = _STYLES[arm]
    value, half = about["held_out"]["regret"], about["held_out"]["half_width"]
    if about["diverged"]:
        return [
            f'<text x="{_WIDTH - _RIGHT + 8}" y="{y + 5:.1f}" fill="{colour}" font-weight="bold">×</text>'
        ]
    if value is None:
        return []
    parts = [_mark(arm, axis(value), y)]
    if half is not None:
        width = 2.5 if arm == "autolr" else 1.2
        parts.insert(0, _line(axis(value - half), y, axis(value + half), y, colour, width))
    return parts


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1) -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"/>'


def _mark(arm: str, x: float, y: float) -> str:
    colour, shape = _STYLES[arm]
    if shape == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.6" fill="{colour}"/>'
    corners, size, turn = {
        "square": (4, 4.6, 0.125),
        "diamond": (4, 5.0, 0.0),
        "triangle": (3, 5.2, 0.75),
        "star": (10, 7.5, 0.75),
    }[shape]
    points = []
    for corner in range(corners):
        radius = size * (0.45 if shape == "star" and corner % 2 else 1)
        angle = 2 * math.pi * (corner / corners + turn)
        points.append(f"{x + radius * math.cos(angle):.1f},{y + radius * math.sin(angle):.1f}")
    return f'<polygon points="{" ".join(points)}" fill="{colour}"/>'
