"""docs/evidence/paper-edge.svg: at each rate the share of runs that crash, a panel for each course.

``python -m benchmarks.tools.quote`` draws it from docs/evidence/paper.json.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.zoo.chart import HEIGHT, LEFT, RIGHT, WIDTH, document

__all__ = ["chart"]

_TOP, _BOTTOM, _GAP = 52, 72, 44
_TEXT, _FAINT = "#768390", "#76839055"
_COLOURS = {"plain": _TEXT, "fan-out": "#e8590c", "σ = 0.1": "#3b8edb", "σ = 0.002": "#2c9c6a"}
_TITLES = {"digits": "digits, SGD", "kuairand": "KuaiRand, Adam"}
_TITLE = "Runs that crash, per cent of {} seeds, at each peak learning rate"


def chart(result: Mapping[str, Any]) -> str:
    """An SVG document: plain runs thick, arms thin, those of the longer interval dashed."""
    courses = {name: told for name, told in result["edge"].items() if name != "cells"}
    width = (WIDTH - LEFT - RIGHT - _GAP * (len(courses) - 1)) / len(courses)
    parts = []
    for place, (name, told) in enumerate(courses.items()):
        parts += _panel(LEFT + place * (width + _GAP), width, _TITLES[name], told)
    title = _TITLE.format(next(iter(courses.values()))["seeds"])
    return document(title, title, [*parts, *_legend(list(courses.values()))])


def _panel(left: float, width: float, title: str, told: Mapping[str, Any]) -> list[str]:
    rates = [math.log(rate) for rate in told["rates"]]
    across = [left + width * (rate - rates[0]) / (rates[-1] - rates[0]) for rate in rates]
    parts = [f'<text x="{left + width / 2:.1f}" y="{_TOP - 22}" text-anchor="middle">{title}</text>']
    for share in (0, 25, 50, 75, 100):
        y = _height(share / 100)
        parts.append(
            f'<line x1="{left:.1f}" y1="{y:.1f}" x2="{left + width:.1f}" y2="{y:.1f}" stroke="{_FAINT}"/>'
        )
        parts.append(f'<text x="{left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{share}</text>')
    for x, rate in list(zip(across, told["rates"], strict=True))[::2]:
        parts.append(f'<text x="{x:.1f}" y="{_height(0) + 20:.1f}" text-anchor="middle">{rate:.2g}</text>')
    for arm, counts in told["crashed"].items():
        points = zip(across, (_height(count / told["seeds"]) for count in counts), strict=True)
        kind, every = _parts(arm)
        parts.append(_line(points, kind, dashed=every == _intervals(told)[-1]))
    return parts


def _intervals(told: Mapping[str, Any]) -> list[int]:
    return sorted({_parts(arm)[1] for arm in told["crashed"]} - {0})


def _parts(arm: str) -> tuple[str, int]:
    """What the arm is, and its T; plain training has none."""
    kind, _, every = arm.partition(", T = ")
    return kind, int(every or 0)


def _line(points: Any, kind: str, *, dashed: bool) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    width = 3.0 if kind == "plain" else 1.4
    dashes = ' stroke-dasharray="5 3"' if dashed else ""
    return f'<polyline points="{path}" fill="none" stroke="{_COLOURS[kind]}" stroke-width="{width}"{dashes}/>'


def _legend(courses: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    short, long = (dict.fromkeys(str(_intervals(told)[end]) for told in courses) for end in (0, -1))
    x, parts = WIDTH - RIGHT + 14, []
    for place, (kind, colour) in enumerate(_COLOURS.items()):
        parts.append(f'<text x="{x}" y="{_TOP + 6 + 20 * place}" fill="{colour}">{kind}</text>')
    notes = (f"— T = {' or '.join(short)}", f"- - T = {' or '.join(long)}", "σ: with auto-LR")
    for place, note in enumerate(notes, len(_COLOURS) + 1):
        parts.append(f'<text x="{x}" y="{_TOP + 6 + 20 * place}">{note}</text>')
    return parts


def _height(share: float) -> float:
    return HEIGHT - _BOTTOM - share * (HEIGHT - _TOP - _BOTTOM)
