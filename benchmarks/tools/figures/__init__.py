"""The figures of the docs, and the real runs behind them.

``python -m benchmarks.tools.figures`` draws docs/figures/*.svg from docs/figures/decisions.json, and
docs/fan-out.svg from docs/figures/fan-out.json; ``--train`` makes those files first, by training: a minute on
two cores. ``--train decisions`` and ``--train fan-out`` make one.
"""

from __future__ import annotations

from benchmarks.tools.figures.draw import FIGURES, draw
from benchmarks.tools.figures.fan_out import draw_fan_out, train_fan_out
from benchmarks.tools.figures.runs import train

__all__ = ["FIGURES", "draw", "draw_fan_out", "train", "train_fan_out"]
