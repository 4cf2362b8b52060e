"""Rates that nobody gave beside tuned ones, as tables."""

from __future__ import annotations

from typing import Any

from benchmarks.tools.quote.tables.grid import markdown

__all__ = ["zoo", "zoo_finders"]


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


def zoo_finders(result: dict[str, Any]) -> str:
    """How far off a rate found before training is."""
    headings = [
        "rate by",
        "off by, median",
        "nine in ten within",
        "within 3.2 ×",
        "10 ×",
        "nothing found",
        "above",
    ]

    def factor(value: float | None) -> str:
        return "∞" if value is None else f"{value:.1f} ×"

    rows = [
        [
            name,
            factor(told["median_factor"]),
            factor(told["nine_in_ten"]),
            f"{told['within_3.2']} of {told['cells']}",
            f"{told['within_10']}",
            f"{told['nothing_found']}",
            f"{100 * told['mean_above']:.0f}",
        ]
        for name, told in result["finders"].items()
    ]
    note = (
        "Factor between the rate and the best of the cell's sweep. *Above*: what the sweep's rate next to it "
        "ends above the best, in %, mean over cells of which none counts for more than 100 %."
    )
    return f"{markdown(headings, rows)}\n\n{note}"
