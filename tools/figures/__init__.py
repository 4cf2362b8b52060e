"""The figures of docs/how-autolr-decides.md, and the two real runs behind them.

``python -m tools.figures`` draws docs/figures/*.svg from docs/figures/decisions.json;
``python -m tools.figures --train`` makes that file first, by training: half a minute on one core.
"""

from __future__ import annotations

from tools.figures.draw import FIGURES, draw
from tools.figures.runs import train

__all__ = ["FIGURES", "draw", "train"]
