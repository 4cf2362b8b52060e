"""The search as a picture: above, where runs start and end beside the grid of fixed values; below, the way.

SVG written by hand. Nothing is drawn behind it, and every colour is legible on white and on near-black, since
a page that shows the file as an image hands down no colour of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.hyperparameters.plan import HDET, read_start

__all__ = ["chart"]

_WIDTH, _LEFT, _RIGHT = 1000, 52, 14
_TOP, _HEIGHT, _BETWEEN, _BOTTOM, _GAP = 78, 190, 64, 48, 46
_TEXT, _FAINT, _CURVE = "#768390", "#76839055", "#8c959f"
#: From too low a start, and from too high a one.
_COLOURS = ("#3b8edb", "#e8590c")
_STARTS = ("HDET, started too low", "HDET, started too high")
_MARGIN = 0.06


def chart(result: Mapping[str, Any]) -> str:
    """An SVG document: a column for each hyperparameter."""
    tasks = [task for task in result["tasks"] if task["grid"]]
    columns = max(1, len(tasks))
    each = (_WIDTH - _LEFT - _RIGHT - _GAP * (columns - 1)) / columns
    parts = list(_legend())
    for column, task in enumerate(tasks):
        left = _LEFT + column * (each + _GAP)
        parts += _heading(task, left + each / 2)
        parts += _losses(task, (left, _TOP, each))
        ways = [p for p in result["paths"] if (p["task"], p["arm"]) == (task["task"], HDET)]
        if ways:
            parts += _ways(task, ways, (left, _TOP + _HEIGHT + _BETWEEN, each), result["sync_every"])
    middle = _TOP + _HEIGHT / 2
    parts += [_aside("held-out loss", middle), _aside("value", middle + _HEIGHT + _BETWEEN)]
    height = _TOP + 2 * _HEIGHT + _BETWEEN + _BOTTOM
    title = "Held-out loss against fixed values, and where HDET went from the two wrong ends"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" role="img" font-family="sans-serif" font-size="12" '
        f'fill="{_TEXT}">\n<title>{title}</title>\n' + "\n".join(parts) + "\n</svg>\n"
    )


class _Axis:
    """Logarithmic: from values to pixels. What lies beyond the values it is made for is drawn at its edge."""

    def __init__(self, values: Iterable[float], begin: float, end: float) -> None:
        known = [value for value in values if value > 0]
        low, high = math.log(min(known)), math.log(max(known))
        margin = _MARGIN * ((high - low) or 1.0)
        self.low, self.high, self._begin, self._end = low - margin, high + margin, begin, end

    def __call__(self, value: float) -> float:
        place = math.log(value) if value > 0 else -math.inf
        share = (min(self.high, max(self.low, place)) - self.low) / (self.high - self.low)
        return self._begin + share * (self._end - self._begin)

    def ticks(self, candidates: Iterable[float], distance: float) -> list[float]:
        """Those within, the first of them and whatever lies far enough from the last one taken."""
        taken: list[float] = []
        for tick in candidates:
            within = self.low <= math.log(tick) <= self.high
            if within and (not taken or abs(self(tick) - self(taken[-1])) >= distance):
                taken.append(tick)
        return taken


Box = tuple[float, float, float]


def _decades() -> list[float]:
    return [10.0**exponent for exponent in range(-6, 7)]


def _levels(losses: Sequence[float]) -> list[float]:
    """About five round numbers.

    >>> [round(level, 2) for level in _levels([1.28, 1.51])]
    [1.25, 1.3, 1.35, 1.4, 1.45, 1.5]
    """
    low, high = min(losses), max(losses)
    rough = (high - low) / 4 or 0.1 * abs(low)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(nice for nice in (1, 2, 5, 10) if nice * unit >= rough * 0.8)
    return [step * k for k in range(math.floor(low / step), math.floor(high / step) + 1) if k > 0]


def _losses(task: Mapping[str, Any], box: Box) -> list[str]:
    """The grid of fixed values with the range of its seeds, and an arrow for every start of HDET."""
    left, top, width = box
    grid = [point for point in task["grid"] if point["loss"] is not None]
    runs = [(start, _end(start)) for start in task["starts"] if start["wrong"] and _end(start)]
    losses = [loss for point in grid for loss in point["losses"] if loss is not None]
    losses += [start["hdet"]["loss"] for start, _ in runs]
    values = [point["value"] for point in grid] + [end for _, end in runs if end]
    if not losses:
        return []
    x, y = _Axis(values, left, left + width), _Axis(losses, top + _HEIGHT, top)
    parts = _frame(box, x, y, _levels(losses), distance=24)
    parts.append(_curve([(x(point["value"]), y(point["loss"])) for point in grid], _CURVE, 1.2))
    for point in grid:
        known = [loss for loss in point["losses"] if loss is not None]
        parts.append(_line(x(point["value"]), y(min(known)), x(point["value"]), y(max(known)), _CURVE, 2.5))
        parts.append(_dot(x(point["value"]), y(point["loss"]), _CURVE))
    for start, end in runs:
        colour = _colour(task, start["start"])
        begin = start["wrong"]["loss"] or max(losses)
        parts += _arrow((x(start["start"]), y(begin)), (x(end or 0), y(start["hdet"]["loss"])), colour)
    return parts


def _ways(task: Mapping[str, Any], ways: Sequence[Mapping[str, Any]], box: Box, every: int) -> list[str]:
    """The value after every sync, the first seed drawn strongest; the best fixed one is dashed."""
    left, top, width = box
    values = [point["value"] for point in task["grid"]]
    longest = max(len(way["values"]) for way in ways) - 1
    y = _Axis(values, top + _HEIGHT, top)

    def x(sync: float) -> float:
        return left + width * sync / max(1, longest)

    parts = _frame(box, None, y, _decades(), distance=20)
    for share in (0, 0.5, 1):
        steps = f"{share * longest * every:.0f}" + (" steps" if share == 1 else "")
        anchor = ("start", "middle", "end")[int(2 * share)]
        parts.append(_label(x(share * longest), top + _HEIGHT + 17, steps, anchor))
    if task["best"] is not None:
        best = y(task["best"]["value"])
        parts.append(_line(left, best, left + width, best, _CURVE, 1.5, dashes="5 4"))
    for way in sorted(ways, key=lambda way: -int(way["seed"])):
        colour = _colour(task, read_start(way["start"])[0])
        first = way["seed"] == min(other["seed"] for other in ways)
        points = [(x(sync), y(value)) for sync, value in enumerate(way["values"])]
        parts.append(_curve(points, colour, 2.2 if first else 1.0, 1.0 if first else 0.55))
    return parts


def _end(start: Mapping[str, Any]) -> float | None:
    """Where the seeds ended, in the geometric mean."""
    found = [value for value in start["found"] if value > 0]
    known = found and start["hdet"]["loss"] is not None
    return math.exp(sum(map(math.log, found)) / len(found)) if known else None


def _colour(task: Mapping[str, Any], start: float) -> str:
    return _COLOURS[int(start > task["best"]["value"])] if task["best"] is not None else _COLOURS[0]


def _heading(task: Mapping[str, Any], middle: float) -> list[str]:
    """The name, and the shares recovered from both starts in their colours."""
    shares = []
    for start in task["starts"]:
        mean = start["recovered"]["mean"]
        if mean is not None:
            shares.append(f'<tspan fill="{_colour(task, start["start"])}">{mean:.0f} %</tspan>')
    told = f"recovered {' and '.join(shares)}" if shares else ""
    return [
        f'<text x="{middle:.1f}" y="{_TOP - 26}" text-anchor="middle" font-size="14" '
        f'font-weight="bold">{escape(task["task"])}</text>',
        f'<text x="{middle:.1f}" y="{_TOP - 9}" text-anchor="middle">{told}</text>',
    ]


def _legend() -> Iterable[str]:
    x, y = _LEFT, 20.0
    yield _line(x, y - 4, x + 22, y - 4, _CURVE, 1.2) + _dot(x + 11, y - 4, _CURVE)
    yield _label(x + 28, y, "fixed value, seeds from lowest to highest", "start")
    x += 310
    for colour, text in zip(_COLOURS, _STARTS, strict=True):
        yield from _arrow((x, y - 4), (x + 24, y - 4), colour)
        yield _label(x + 34, y, text, "start")
        x += 200
    yield _line(x, y - 4, x + 24, y - 4, _CURVE, 1.5, dashes="5 4")
    yield _label(x + 30, y, "best fixed value", "start")


def _frame(box: Box, x: _Axis | None, y: _Axis, levels: Iterable[float], distance: float) -> list[str]:
    left, top, width = box
    parts = [_line(left, top + _HEIGHT, left + width, top + _HEIGHT, _TEXT)]
    for tick in y.ticks(levels, distance):
        parts.append(_line(left, y(tick), left + width, y(tick), _FAINT))
        parts.append(_label(left - 5, y(tick) + 4, f"{tick:g}", "end"))
    for tick in x.ticks(_decades(), 20) if x is not None else ():
        parts.append(_line(x(tick), top, x(tick), top + _HEIGHT, _FAINT))  # type: ignore[misc]
        parts.append(_label(x(tick), top + _HEIGHT + 17, f"{tick:g}", "middle"))  # type: ignore[misc]
    return parts


# ---------------------------------------------------------------------- shapes


def _arrow(begin: tuple[float, float], end: tuple[float, float], colour: str) -> list[str]:
    """From a ring to a head."""
    (x1, y1), (x2, y2) = begin, end
    angle = math.atan2(y2 - y1, x2 - x1)
    corners = [(0.0, 0.0), (-11.0, 4.5), (-11.0, -4.5)]
    turned = (
        (x2 + a * math.cos(angle) - b * math.sin(angle), y2 + a * math.sin(angle) + b * math.cos(angle))
        for a, b in corners
    )
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in turned)
    back = (x2 - 9 * math.cos(angle), y2 - 9 * math.sin(angle))
    return [
        _line(x1, y1, *back, colour, 2),
        f'<circle cx="{x1:.1f}" cy="{y1:.1f}" r="4.5" fill="none" stroke="{colour}" stroke-width="2"/>',
        f'<polygon points="{points}" fill="{colour}"/>',
    ]


def _curve(points: Sequence[tuple[float, float]], colour: str, width: float, opacity: float = 1.0) -> str:
    ends = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    shown = f' stroke-opacity="{opacity}"' if opacity < 1 else ""
    return (
        f'<polyline points="{ends}" fill="none" stroke="{colour}" stroke-width="{width}" '
        f'stroke-linejoin="round"{shown}/>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1, dashes: str = "") -> str:
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return f'<line {ends} stroke="{colour}" stroke-width="{width}"{dashed}/>'


def _dot(x: float, y: float, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" fill="{colour}"/>'


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _aside(text: str, middle: float) -> str:
    return f'<text transform="translate(13 {middle:.1f}) rotate(-90)" text-anchor="middle">{text}</text>'
