"""What the runs showed, drawn: the points of every window, the rate with its reasons, the weights kept.

Nothing is drawn behind the lines, and every colour is legible on white and on near-black: a page that shows
the file as an image hands down no colour of its own. The same data give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

__all__ = ["FIGURES", "digest", "draw", "write"]

Run = Mapping[str, Any]
Window = Mapping[str, Any]

_TEXT, _FAINT = "#768390", "#76839055"
_MEAN, _END, _KEPT, _RATE = "#3b8edb", "#e8590c", "#2c9c6a", "#9a6dd7"
#: A mark for each thing that a window can lead to.
_ACTIONS = {"scale": ("o", _TEXT), "up": ("^", _KEPT), "down": ("v", _END), "hold": ("|", _TEXT)}
#: The window of the text whose points are drawn large.
SHOWN = 253
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "text.color": _TEXT,
    "axes.edgecolor": _FAINT,
    "axes.labelcolor": _TEXT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": _TEXT,
    "ytick.color": _TEXT,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "lines.solid_capstyle": "round",
    # Text as text, to be searched and read aloud; ids that are the same each time.
    "svg.fonttype": "none",
    "svg.hashsalt": "hdet",
}


def draw(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the figures of AutoLR's decisions; the paths."""
    return write(FIGURES, result, folder)


def write(
    figures: Mapping[str, Callable[[Mapping[str, Run]], Figure]], result: Mapping[str, Any], folder: Path
) -> list[Path]:
    """Write every figure; the paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    with _styled():
        for name, make in figures.items():
            paths.append(folder / f"{name}.svg")
            paths[-1].write_bytes(_saved(make(result["runs"]), digest(result)))
    return paths


def digest(result: Mapping[str, Any]) -> str:
    """Of the runs; each figure says which it was drawn from."""
    return hashlib.sha256(json.dumps(result["runs"]).encode()).hexdigest()[:16]


@contextmanager
def _styled() -> Iterator[None]:
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        yield


def _saved(figure: Figure, of: str) -> bytes:
    file = BytesIO()
    # Neither the time nor the version: a figure changes when its data do.
    about = {"Date": None, "Creator": None, "Description": f"drawn from runs {of}"}
    figure.savefig(file, format="svg", transparent=True, metadata=about)
    return file.getvalue()


# ---------------------------------------------------------------------- the points of a window


def _points(runs: Mapping[str, Run]) -> Figure:
    """One window large, and the losses of all."""
    windows = runs["text"]["windows"]
    figure = Figure(figsize=(8.4, 3.1), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.5))
    _one_window(left, windows)
    judged = [window for window in windows if window["loss_end"] is not None]
    _curve(right, [(_middle(w), w["loss_mean"]) for w in windows], _MEAN, "L(m): the mean of each window")
    ends = [(window["step"], window["loss_end"]) for window in judged]
    right.plot(*zip(*ends, strict=True), "o", color=_END, markersize=3.5, label="L(e): its last iterate")
    right.set_xlabel("step")
    right.set_title("all windows", fontsize=9, loc="left")
    right.legend(loc="upper right")
    return figure


def _one_window(axes: Axes, windows: Sequence[Window]) -> None:
    at = next(i for i, window in enumerate(windows) if window["step"] == SHOWN)
    before, window = windows[at - 1], windows[at]
    p, m, e = window["loss_previous"], window["loss_mean"], window["loss_end"]
    x = _middle(before), _middle(window), window["step"]
    for place, loss, name, colour in zip(x, (p, m, e), "pme", (_MEAN, _MEAN, _END), strict=True):
        axes.plot(place, loss, "o", color=colour, markersize=6)
        below = -16 if name == "m" else 8
        axes.annotate(f"L({name})", (place, loss), (0, below), textcoords="offset points", ha="center")
    _bracket(axes, x[1] - 4, p, m, f"progress\n{p - m:.3f}", "right")
    axes.plot([x[0], x[1] - 4], [p, p], ":", color=_FAINT)
    _bracket(axes, x[2], e, m, f"gap\n{e - m:.3f}", "right")
    axes.plot([x[1], x[2]], [m, m], ":", color=_FAINT)
    margin = 0.25 * (e - m)
    axes.set_ylim(m - 1.3 * margin, max(p, e) + 1.6 * margin)
    axes.set_xlim(x[0] - 12, x[2] + 8)
    axes.set_xlabel("step")
    axes.set_ylabel("held-out loss")
    axes.set_title(f"the window of steps {window['began'] + 1} to {window['step']}", fontsize=9, loc="left")


def _bracket(axes: Axes, x: float, top: float, bottom: float, text: str, side: str) -> None:
    axes.annotate("", (x, bottom), (x, top), arrowprops={"arrowstyle": "<->", "color": _TEXT, "lw": 0.8})
    axes.annotate(
        text, (x, (top + bottom) / 2), (-5, 0), textcoords="offset points", ha=side, va="center", fontsize=8
    )


# ---------------------------------------------------------------------- the rate, and why


def _rate(runs: Mapping[str, Run]) -> Figure:
    """Lag beside what is tolerated, and what became of the rate."""
    run = runs["text"]
    figure = Figure(figsize=(8.4, 4.4), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1.1))
    judged = [window for window in run["windows"] if window["tolerated"] is not None]
    _curve(above, [(w["step"], w["tolerated"]) for w in judged], _KEPT, "tolerated")
    _curve(above, [(w["step"], w["lag"]) for w in judged], _END, "lag = gap / progress")
    above.axhline(0, color=_FAINT, linewidth=0.8)
    above.set_ylabel("windows")
    above.legend(loc="upper right")
    _rates(below, run)
    below.axhline(run["usual_rate"], color=_TEXT, linewidth=0.9, linestyle="--", label="usual")
    for action, name in (("scale", "to speed"), ("up", "up"), ("down", "down"), ("hold", "stays")):
        mark, colour = _ACTIONS[action]
        below.plot([], [], mark, color=colour, markersize=6, linestyle="none", label=name)
    below.legend(loc="lower right", ncols=2)
    for step, y, text, offset, side in _reasons(run):
        below.annotate(text, (step, y), offset, textcoords="offset points", ha=side, va="center", fontsize=8)
    below.set_ylim(5e-6, 3 * run["highest_rate"])
    return figure


def _reasons(run: Run) -> list[tuple[float, float, str, tuple[float, float], str]]:
    """Beside a window of each phase, what moves the rate in it, how far from it, and at which side."""
    windows, usual = run["windows"], run["usual_rate"]
    grown = [w for w in windows if w["action"] == "up" and w["rate"] < usual]
    down = [w for w in windows if w["action"] == "down"]
    told = [(windows[:1], "brings the weights to speed", (10.0, -3.0), "left")]
    told += [(grown[5:6], "no noise: as fast as allowed", (8.0, -14.0), "left")]
    told += [(down[:1], "little speaks for it: toward the usual", (0.0, 14.0), "center")]
    return [(w["step"], w["rate_after"], *how) for of, *how in told for w in of]


def _rates(axes: Axes, run: Run) -> None:
    """The rate of every step, with a mark where a window moved it, or did not."""
    rates = [(step, rate) for step, rate in enumerate(run["rates"], 1) if rate]
    axes.plot(*zip(*rates, strict=True), color=_RATE, linewidth=1.4, drawstyle="steps-mid")
    axes.set_yscale("log")
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlabel("step")
    axes.set_ylabel("learning rate")
    for window in run["windows"]:
        mark, colour = ("x", _END) if window["event"] else _ACTIONS[window["action"]]
        height = window["rate"] if window["event"] else window["rate_after"]
        if height:
            axes.plot(window["step"], height, mark, color=colour, markersize=5)


# ---------------------------------------------------------------------- what was kept


def _kept(runs: Mapping[str, Run]) -> Figure:
    """The means of all windows on the few digits, those that were the best so far, and the rollbacks."""
    run = runs["digits"]
    windows = run["windows"]
    figure = Figure(figsize=(8.4, 4.6), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.3, 1))
    began = 0
    searches = [i + 1 for i, window in enumerate(windows) if "from the beginning" in window["event"]]
    for end in [*searches, len(windows)]:
        part = windows[began:end]
        label = "L(m), search by search" if not began else None
        _curve(above, [(w["step"], w["loss_mean"]) for w in part], _MEAN, label)
        began = end
    best = [w for w in windows if w["kept"] == f"mean of step {w['step']}"]
    dots = [(window["step"], window["loss_mean"]) for window in best]
    above.plot(
        *zip(*dots, strict=True), "o", color=_KEPT, markersize=5, label="kept: as good as the best so far"
    )
    handed = run["handed"]
    above.plot(
        handed["step"], handed["loss"], "o", color=_KEPT, markersize=11, fillstyle="none", label="returned"
    )
    above.set_ylabel("held-out loss")
    above.set_ylim(top=above.get_ylim()[1] + 0.45)  # room for the labels of rollbacks
    _rates(below, run)
    for window in windows:
        if window["event"]:
            for axes in (above, below):
                axes.axvline(window["step"], color=_END, linewidth=0.9, linestyle=":")
            where = {"from the beginning": "restart", "back": "to the best"}
            what = next((text for key, text in where.items() if key in window["event"]), "decays")
            above.annotate(
                f"step {window['step']}:\n{what}",
                *((window["step"], above.get_ylim()[1]), (4, 0)),
                textcoords="offset points",
                va="top",
                color=_END,
                fontsize=8,
            )
    figure.legend(loc="outside upper center", ncols=3)
    return figure


def _curve(axes: Axes, at: Sequence[tuple[float, float]], colour: str, label: str | None) -> None:
    axes.plot(*zip(*at, strict=True), ".-", color=colour, linewidth=1.2, markersize=4, label=label)


def _middle(window: Window) -> float:
    return float(window["began"] + 1 + window["step"]) / 2


#: The names of the files, and who draws them.
FIGURES: dict[str, Callable[[Mapping[str, Run]], Figure]] = {
    "decides-points": _points,
    "decides-rate": _rate,
    "decides-kept": _kept,
}
