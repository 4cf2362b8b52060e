"""Rates that nobody gave beside tuned ones, as tables."""

from __future__ import annotations

from typing import Any

from benchmarks.tools.quote.tables.grid import markdown

__all__ = ["zoo"]


#: Methods of the zoo, in the order of its table.
_METHODS = {
    "autolr": "**AutoLR**",
    "one rate": "one rate for each optimizer, chosen on fit",
    "prior": "the usual rate, which the first steps tell",
    "random 4": "best by the probe of 4 rates",
    "random 8": "best by the probe of 8 rates",
    "default": "the default rate",
}


def zoo(result: dict[str, Any]) -> str:
    """What every method costs on the families that nothing was fitted to."""
    headings = [
        "method",
        "mean",
        "to 1 at most",
        "median",
        "nine of ten",
        "worst",
        "lost",
        "ahead of default",
    ]
    rows = []
    for method, name in _METHODS.items():
        told = result["summary"]["test"].get(method)
        if not told or not told["cells"]:
            continue
        chosen = told["test_chosen"]
        numbers = [chosen[of] for of in ("mean", "mean_to_one", "median", "nine_of_ten", "worst")]
        ahead = f"{chosen['ahead_of_default']} of {told['cells']}" if method != "default" else "–"
        lost = f"{told['lost']} of {told['runs']}"
        rows.append([name, *(f"{100 * value:.1f}" for value in numbers), lost, ahead])
    note = (
        "Excess over the tuned sweep in %, both with the choice of weights by the probe, over cells. "
        "*To 100 % at most*: the mean where no cell counts for more than 100 %. *Lost*: runs that end 25 % "
        "above the sweep or within a tenth of where they began. *Ahead of default*: in how many cells. "
        "AutoLR and the default rate have three seeds, the others one and OneCycle."
    )
    return f"{markdown(headings, rows)}\n\n{note}"
