"""The figures of docs/how-autolr-decides.md, and the two real runs behind them.

``python -m benchmarks.tools.figures`` draws docs/figures/*.svg from docs/figures/decisions.json;
``python -m benchmarks.tools.figures --train`` makes that file first, by training: half a minute on one core.
"""

from __future__ import annotations

from benchmarks.tools.figures.draw import FIGURES, draw
from benchmarks.tools.figures.runs import train

__all__ = ["FIGURES", "draw", "train"]
