"""How HDET's replicas fan out in learning rate, round by round: a run of the demo's, and its picture."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from benchmarks import machine
from benchmarks.tools.figures.draw import _END, _FAINT, _KEPT, _MEAN, _RATE, _TEXT, write
from hdet.cli.demo_runs import REPLICAS, train_hdet
from hdet.history import read_history
from hdet.replicas.launch import LocalProcesses

__all__ = ["draw_fan_out", "train_fan_out"]

Round = Mapping[str, Any]

_STEPS, _SEED = 600, 0
#: Rounds in the right panel.
_SHOWN = 8


def train_fan_out(steps: int = _STEPS) -> dict[str, Any]:
    """Four processes; what every round used."""
    about = machine.about("fan-out", quick=False, device="cpu")
    about["command"] = "python -m benchmarks.tools.figures --train fan-out"
    with tempfile.TemporaryDirectory() as folder, LocalProcesses(REPLICAS) as ranks:
        path = Path(folder) / "hdet.jsonl"
        outcome, *_ = ranks.run(train_hdet, steps, _SEED, str(path), timeout=300)
        rates = [(record.step, record.hyperparameters[0]) for record in read_history(path)]
    rounds = [
        {"step": step, "values": rate.values, "base": rate.base_before, "base_after": rate.base_after}
        for step, rate in rates
    ]
    return {**about, "runs": {"hdet": {"seed": _SEED, "test_loss": outcome.test_loss, "rounds": rounds}}}


def draw_fan_out(result: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write the figure; its path."""
    return write({"fan-out": _fan_out}, result, folder)


def _fan_out(runs: Mapping[str, Any]) -> Figure:
    """All rounds, and a few of them over the base rate."""
    rounds = runs["hdet"]["rounds"]
    figure = Figure(figsize=(8.4, 3.1), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.2, 1))
    for replica, colour in enumerate((_MEAN, _END, _KEPT, _RATE)):
        steps, rates, ratios = zip(*_path(rounds, replica), strict=True)
        left.plot(steps, rates, color=colour, linewidth=0.8)
        end = 4 * _SHOWN
        right.plot(steps[:end], ratios[:end], color=colour, linewidth=1.4, label=f"replica {replica}")
    bases = [(0, rounds[0]["base"]), *((one["step"], one["base"]) for one in rounds)]
    left.plot(*zip(*bases, strict=True), color=_TEXT, linewidth=1.2, label="base rate")
    left.set_title("The replicas' learning rates, around the base rate", fontsize=9, loc="left")
    left.set_ylabel("learning rate")
    left.legend(loc="upper right")
    right.set_title(f"The first {_SHOWN} rounds, over the base rate", fontsize=9, loc="left")
    right.yaxis.set_major_formatter(
        FuncFormatter(lambda ratio, _: f"{ratio - 1:+.0%}".replace("+0%", "base"))
    )
    right.set_ylim(0.87, 1.15)
    right.set_yticks([8 / 9, 26 / 27, 1, 28 / 27, 10 / 9])
    _syncs(right, rounds[:_SHOWN])
    for axes in (left, right):
        axes.set_xlabel("step")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return figure


def _path(rounds: Sequence[Round], replica: int) -> Iterator[tuple[float, float, float]]:
    """Step, rate and rate over the base: from the base to its own rate and back in every round."""
    step, base = 0, rounds[0]["base"]
    for one in rounds:
        ratio = one["values"][replica] / one["base"]
        for part, factor in ((0.0, 1.0), (0.1, ratio), (0.9, ratio), (1.0, 1.0)):
            rate = base + part * (one["base"] - base)
            yield step + part * (one["step"] - step), factor * rate, factor
        step, base = one["step"], one["base_after"]


def _syncs(axes: Axes, rounds: Sequence[Round]) -> None:
    for one in rounds:
        axes.axvline(one["step"], color=_FAINT, linewidth=0.9, linestyle=":")
    axes.annotate(
        "the replicas are averaged",
        *((rounds[0]["step"], 1.0), (rounds[0]["step"], 1.135)),
        arrowprops={"arrowstyle": "->", "color": _TEXT, "lw": 0.8, "relpos": (0.0, 0.0)},
        fontsize=8,
    )
