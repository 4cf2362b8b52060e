"""The zoo as a picture: for most methods the excess of every cell that nobody fitted to, sorted, as a line.

SVG written by hand. Nothing is drawn behind it, and every colour is legible on white and on near-black, since
a page that shows the file as an image hands down no colour of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["HEIGHT", "LEFT", "RIGHT", "WIDTH", "axis", "chart", "document", "height"]

WIDTH, HEIGHT, LEFT, RIGHT, _TOP, _BOTTOM = 800, 400, 60, 150, 30, 48
_TEXT, _FAINT = "#768390", "#76839055"
#: Per cent; below it the axis is about linear, above it logarithmic.
_LINEAR = 3.0
_TICKS = (-30, -10, 0, 10, 30, 100, 300, 1000)
_LINES = {
    "autolr": ("AutoLR", "#e8590c", 3.0),
    "one rate": ("one rate, from fit", "#2c9c6a", 1.4),
    "prior": ("the usual rate", "#3b8edb", 1.4),
    "random 8": ("best of 8 rates", "#9a6dd7", 1.4),
    "random 4": ("best of 4 rates", "#c9559e", 1.4),
    "default": ("default rate", "#8c959f", 1.4),
    "prodigy": ("Prodigy (AdamW)", "#c08a1e", 1.4),
    "schedule-free": ("Schedule-Free", "#1d9fae", 1.4),
}


def chart(result: Mapping[str, Any]) -> str:
    """An SVG document: the test families where they were measured, else all."""
    cells = [line for line in result["cells"] if line["part"] == "test"] or result["cells"]
    parts = [*axis()]
    ends: list[tuple[float, str]] = []
    for method, (name, colour, width) in _LINES.items():
        values = sorted(line[method]["excess_test_chosen"] for line in cells if line.get(method))
        if not values:
            continue
        step = (WIDTH - LEFT - RIGHT) / max(len(values) - 1, 1)
        points = [(LEFT + step * place, height(100 * value)) for place, value in enumerate(values)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
        ends.append((points[-1][1], f'fill="{colour[:7]}">{name}'))
    last = -math.inf
    for y, text in sorted(ends):
        last = max(y + 4, last + 16)
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{last:.1f}" {text}</text>')
    title = (
        f"Excess over the tuned sweep with the same choice of weights, per cent, {len(cells)} cells sorted"
    )
    return document(title, title, parts)


def document(title: str, below: str, parts: Sequence[str]) -> str:
    """The whole file: what is drawn, and a line below it."""
    x = (LEFT + WIDTH - RIGHT) / 2
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" font-family="sans-serif" font-size="13" '
        f'fill="{_TEXT}">\n<title>{title}</title>\n'
        + "\n".join(parts)
        + f'\n<text x="{x}" y="{HEIGHT - 14}" text-anchor="middle">{below}</text>\n</svg>\n'
    )


def axis() -> list[str]:
    """Lines at round per cents."""
    parts = []
    for tick in _TICKS:
        y, colour = height(tick), _TEXT if tick == 0 else _FAINT
        parts.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="{colour}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{tick:+d}</text>')
    return parts


def height(value: float) -> float:
    """Of so many per cent."""
    low, high = _symlog(_TICKS[0]), _symlog(_TICKS[-1])
    share = (_symlog(min(max(value, _TICKS[0]), _TICKS[-1])) - low) / (high - low)
    return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)


def _symlog(value: float) -> float:
    return math.copysign(math.log1p(abs(value) / _LINEAR), value)
