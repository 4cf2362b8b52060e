"""Figures 2 and 3 of the paper, drawn from what ``reproduce`` wrote: loss and learning rates over steps.

The median of the seeds is a line and what all of them did is drawn behind it; names stand at the ends of the
lines. The same result gives the same bytes, and matplotlib's global state is neither read nor changed.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from typing import Any

try:
    import matplotlib as mpl
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("the figures need matplotlib: pip install matplotlib") from error

from benchmarks.reproduce.figure_layout import (
    Curve,
    across_seeds,
    apart,
    factor_ticks,
    limits_of,
    rate_text,
    sentence_case,
    trailing,
)

__all__ = ["svg"]

Result = Mapping[str, Any]

_INK, _GREY, _DASHES = "#24292f", "#6e7781", "#99a3ad"
#: Colours that the colour-blind tell apart (Okabe and Ito), darkened to be read as text on white.
_CONFIGURATIONS = {
    "Baseline-Low": "#57606a",
    "Baseline-High": "#c24a00",
    "Warm-Init": "#00805e",
    "HDET (full)": "#0064a0",
}
_GROUPS = ("#b07800", "#c2518f", "#00805e", "#0064a0")
_REFERENCES = {"base_rate_loss": "base rates", "bayes_loss": "Bayes loss"}

# Inches. A figure is 11 wide: 1100 pixels at 100 to the inch, as a browser shows it.
_WIDTH, _LEFT, _RIGHT = 11.0, 0.85, 1.5
_TITLE, _BOTTOM, _LINE, _BETWEEN = 0.28, 0.55, 0.19, 0.3
_LABEL = 0.165
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.color": _INK,
    # Titles come from a file: a dollar sign in them is a dollar sign.
    "text.parse_math": False,
    "axes.edgecolor": _GREY,
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#eaeef2",
    "xtick.color": _GREY,
    "ytick.color": _GREY,
    "xtick.labelcolor": _INK,
    "ytick.labelcolor": _INK,
    "lines.solid_capstyle": "round",
    # Text as text, to be searched and read aloud; ids that are the same each time.
    "svg.fonttype": "none",
    "svg.hashsalt": "hdet",
}


@dataclass(frozen=True)
class _Label:
    """A name at the end of a line, whose height is in the axis's unit; None if the line left by the top."""

    text: str
    y: float | None
    colour: str


def svg(result: Result) -> str:
    """The SVG document of figure2, loss against steps, or figure3, the groups' rates and their factors."""
    drawers = {"figure2": _draw2, "figure3": _draw3}
    if result["name"] not in drawers:
        raise ValueError(f"svg: the result must be one of figure2, figure3, got {result['name']!r}")
    with _styled():
        return _saved(result, drawers[result["name"]](result))


@contextmanager
def _styled() -> Iterator[None]:
    """matplotlib's own defaults with our style, whatever its user has set; that is put back after."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def _saved(result: Result, figure: Figure) -> str:
    file = BytesIO()
    # Neither the time nor the version: a figure changes when its numbers do.
    about = {"Title": str(result.get("title", "")), "Date": None, "Creator": None}
    figure.savefig(file, format="svg", dpi=72, metadata=about)
    return file.getvalue().decode()


def _draw2(result: Result) -> Figure:
    blocks = result["blocks"]
    figure, ((*panels,),) = _canvas(result, [3.4], list(map(_heading, blocks)), [])
    for axes, block in zip(panels, blocks, strict=False):
        _losses(axes, block, result.get("reference") or {})
    if not blocks:
        _nothing(panels[0])
    return figure


def _losses(axes: Axes, block: Result, reference: Mapping[str, float | None]) -> None:
    """One panel of figure 2."""
    curves = {curve["configuration"]: across_seeds(_losses_of(curve)) for curve in block["curves"]}
    levels = {name: y for key, name in _REFERENCES.items() if (y := reference.get(key)) is not None}
    inits = [run["init"] for curve in block["curves"] for run in curve["runs"] if run["init"] is not None]
    limits = limits_of(curves.values(), inits, levels.values())
    axes.set_xlabel("step")
    if limits is None:
        return _nothing(axes)
    axes.set_ylim(limits.low, limits.high)
    axes.set_ylabel(f"training loss (cut at {limits.high:.3g})" if limits.is_cut else "training loss")
    labels = []
    for name, level in levels.items():
        axes.axhline(level, color=_GREY, linewidth=0.9, linestyle=":")
        labels.append(_Label(f"{name} {level:.3f}", level, _GREY))
    for order, drawn in enumerate(block["curves"]):
        labels.append(_loss_curve(axes, drawn, curves[drawn["configuration"]], order))
    axes.set_xlim(0, max(max(curve.steps, default=1) for curve in curves.values()))
    _at_ends(axes, labels)


def _losses_of(curve: Result) -> list[tuple[Sequence[float], Sequence[float | None]]]:
    return [(run["steps"], trailing(run["loss"])) for run in curve["runs"]]


def _loss_curve(axes: Axes, drawn: Result, curve: Curve, order: int) -> _Label:
    name = drawn["configuration"]
    colour = _CONFIGURATIONS.get(name, _INK)
    low, high = axes.get_ylim()
    # A seed that left for infinity leaves by the top of the panel.
    axes.fill_between(
        curve.steps,
        [min(y, high) for y in curve.low],
        [min(y, high) for y in curve.high],
        color=colour,
        alpha=0.16,
        linewidth=0,
        zorder=2,
    )
    # Wider, for at a low learning rate HDET (full) may lie on it: then both are seen.
    width = 2.8 if name == "Warm-Init" else 1.5
    axes.plot(curve.steps, _gaps(curve.middle), color=colour, linewidth=width, zorder=3 + order)
    text = name if drawn["runs"] else f"{name}\nno run yet"
    if drawn["crashed"]:
        text += f"\ncrash, {drawn['crashed']} of {drawn['seeds']} seeds"
    if drawn["crashed"] and (at := drawn["crash_step"]) is not None:
        text += f"\n(step {at:,.0f})"
        y = min(max(curve.before(at, high), low), high)
        for ink, width in (("white", 5.0), (colour, 2.6)):
            cross: dict[str, Any] = {
                "markersize": 10,
                "markeredgewidth": width,
                "clip_on": False,
                "zorder": 20,
            }
            axes.plot([at], [y], "x", color=ink, **cross)
    last = curve.middle[-1] if curve.middle else math.inf
    return _Label(text, last if last <= high else None, colour)


def _draw3(result: Result) -> Figure:
    blocks = [block for block in result["blocks"] if block["runs"]]
    notes = [
        (f"{sentence_case(block['title'])}: " if len(blocks) > 1 else "") + block["order"]["sentence"]
        for block in blocks
        if block.get("order")
    ]
    figure, (rates, factors) = _canvas(result, [2.6, 2.6], list(map(_heading, blocks)), notes)
    for upper, lower, block in zip(rates, factors, blocks, strict=False):
        _learning_rates(upper, block, result["groups"])
        _factors(lower, block, result["groups"], result.get("settings", {}).get("decay", "schedule"))
        for axes in (upper, lower):
            axes.axvline(result["control_from"], color=_GREY, linewidth=0.8, linestyle=":")
            axes.set_xlim(0, max(step for run in (block["plain"], *block["runs"]) for step in run["steps"]))
        lower.text(
            result["control_from"],
            0.02,
            " auto-LR begins",
            color=_GREY,
            fontsize=8,
            transform=lower.get_xaxis_transform(),
            va="bottom",
        )
        lower.set_xlabel("step")
    if not blocks:
        _nothing(rates[0])
        factors[0].set_axis_off()
    return figure


def _learning_rates(axes: Axes, block: Result, groups: Sequence[str]) -> None:
    plain = block["plain"]
    axes.set_ylabel("learning rate")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: rate_text(value)))
    for colour, group in zip(_GROUPS, groups, strict=False):
        curve = across_seeds((run["steps"], run["lrs"][group]) for run in block["runs"])
        axes.plot(curve.steps, _gaps(curve.middle), color=colour, linewidth=1.5)
    # On top, and with gaps: where nothing was moved, it lies on the others and both are seen.
    axes.plot(
        plain["steps"], _gaps(plain["lr"]), color=_DASHES, linewidth=1.3, linestyle=(0, (4, 4)), zorder=9
    )
    axes.set_ylim(bottom=0)
    text = "dashed: plain\nOneCycle\nsolid: HDET (full),\ngroups coloured\nas below"
    axes.text(1.035, 0.5, text, color=_GREY, transform=axes.transAxes, va="center", fontsize=8.5)


def _factors(axes: Axes, block: Result, groups: Sequence[str], decay: str) -> None:
    axes.set_ylabel("factor on plain OneCycle" if decay == "schedule" else "factor on Eq. 8 alone")
    axes.set_yscale("log")
    axes.axhline(1, color=_INK, linewidth=0.9)
    labels, largest = [], 1e-4
    for colour, group in zip(_GROUPS, groups, strict=False):
        runs = [(run["steps"], [_positive(f) for f in run["factors"][group]]) for run in block["runs"]]
        for steps, factors in runs:
            axes.plot(steps, _gaps(factors), color=colour, linewidth=0.6, alpha=0.55)
            largest = max([largest, *(abs(math.log(f)) for f in factors if f is not None)])
        curve = across_seeds(runs)
        axes.plot(curve.steps, _gaps(curve.middle), color=colour, linewidth=2.0)
        labels += _ending(curve, group, colour)
    axes.set_ylim(math.exp(-1.1 * largest), math.exp(1.1 * largest))
    ticks = factor_ticks(largest)
    axes.yaxis.set_major_locator(FixedLocator(ticks) if ticks else LogLocator(10, (1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"×{value:.6g}"))
    _at_ends(axes, labels)


def _ending(curve: Curve, name: str, colour: str) -> list[_Label]:
    ends = [y for y in curve.middle if math.isfinite(y)]
    return [_Label(name, ends[-1], colour)] if ends else []


def _canvas(
    result: Result, heights: Sequence[float], headings: Sequence[str], notes: Sequence[str]
) -> tuple[Figure, list[list[Axes]]]:
    """Title, rows of panels under their headings, room for names right of each, and notes below."""
    columns = max(1, len(headings))
    lines = [line for note in notes for line in textwrap.wrap(note, 150)]
    if missing := result.get("missing_runs"):
        lines.append(f"{missing:,} runs are still missing.")
    below = _BOTTOM + (0.15 + _LINE * len(lines) if lines else 0)
    title = str(result.get("title", ""))
    first = 0.16 + (_TITLE if title else 0)
    above = first + 0.32 + _LINE * max((1 + heading.count("\n") for heading in headings), default=0)
    height = above + sum(heights) + _BETWEEN * (len(heights) - 1) + below
    figure = Figure(figsize=(_WIDTH, height), facecolor="white")
    figure.text(0.2 / _WIDTH, 1 - 0.16 / height, title, fontsize=12.5, weight="bold", va="top")
    figure.text(0.2 / _WIDTH, 1 - first / height, _seeds(result), color=_GREY, va="top")
    for row, line in enumerate(lines):
        figure.text(0.2 / _WIDTH, (below - _BOTTOM - 0.02 - _LINE * row) / height, line, va="top", fontsize=9)
    width = _WIDTH / columns - _LEFT - _RIGHT
    panels, top = [], height - above
    for panel in heights:
        top -= panel
        lefts = [_LEFT + column * _WIDTH / columns for column in range(columns)]
        panels.append(
            [figure.add_axes((x / _WIDTH, top / height, width / _WIDTH, panel / height)) for x in lefts]
        )
        top -= _BETWEEN
    for axes, heading in zip(panels[0], headings, strict=False):
        axes.set_title(heading, loc="left", fontsize=10)
    return figure, panels


def _seeds(result: Result) -> str:
    seeds, steps = result.get("seeds", 0), result.get("settings", {}).get("steps")
    shown = (
        "thick: median, thin: each seed"
        if result["name"] == "figure3"
        else "means over a twentieth of the run; line: median, band: range"
    )
    length = f"{steps:,} steps, " if steps else ""
    return f"{length}{seeds} seed{'s' * (seeds != 1)} ({shown})"


def _at_ends(axes: Axes, labels: Sequence[_Label]) -> None:
    """Names right of the panel, each at its line's end or as near as the others leave room."""
    panel = axes.bbox.height / axes.figure.dpi
    # The axis's own unit to a share of the panel's height, whatever the scale.
    to_share = axes.transData + axes.transAxes.inverted()
    shares = [1.0 if label.y is None else float(to_share.transform((1.0, label.y))[1]) for label in labels]
    ends = [min(1.0, max(0.0, share)) for share in shares]
    heights = [_LABEL * (1 + label.text.count("\n")) / panel for label in labels]
    beside: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False}
    for label, end, place in zip(labels, ends, apart(ends, heights), strict=True):
        if label.y is not None:
            axes.plot([1.0, 1.025], [end, place], color=label.colour, linewidth=0.8, **beside)
        style: dict[str, Any] = {"va": "center", "fontsize": 8.5, "linespacing": 1.15}
        axes.text(1.035, place, label.text, color=label.colour, **style, **beside)


def _heading(block: Result) -> str:
    rates = ", ".join(
        f"{name} {rate_text(block[name])}" for name in ("low", "high") if block.get(name) is not None
    )
    title = textwrap.fill(sentence_case(block["title"]), 58)
    return f"{title}\n{rates}" if rates else title


def _nothing(axes: Axes) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, "nothing to draw yet", transform=axes.transAxes, ha="center", color=_GREY)


def _positive(value: float | None) -> float | None:
    return value if value is not None and value > 0 else None


def _gaps(values: Iterable[float | None]) -> list[float]:
    """What is not finite ends a line."""
    return [math.nan if y is None or not math.isfinite(y) else y for y in values]
