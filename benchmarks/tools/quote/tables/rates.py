"""Rates that nobody gave beside tuned ones, as tables."""

from __future__ import annotations

from typing import Any

from benchmarks.regret.tables import matrix, unpaired_note
from benchmarks.tools.quote.tables.grid import markdown

__all__ = ["excess", "lightbench", "zoo"]


def excess(result: dict[str, Any]) -> str:
    """The excess of every method."""
    found = result["excess"]
    notes = [
        "Excess L/L_tuned − 1 in %, each seed over the tuned run of the same seed, both with weights chosen "
        "by the probe; in brackets both as they end. **Bold**: the best of those that ask for no rate."
    ]
    if note := unpaired_note(found):
        notes.append(note)
    return "\n\n".join([markdown(*matrix(found, lambda text: f"**{text}**")), " ".join(notes)])


def lightbench(result: dict[str, Any]) -> str:
    """How many were solved, and which of those that ten trials solve were not."""
    counts, published = result["counts"]["autolr"], result["adamw_solved_within_trials"]
    lines = [
        "| one run of AutoLR each | AdamW within 10 trials | within 30 | within 1,000 |",
        "|---|---|---|---|",
        f"| {counts['solved']} of {counts['run']} | " + " | ".join(map(str, published.values())) + " |",
    ]
    return "\n".join(lines)


#: Methods of the zoo, in the order of its table.
_METHODS = {
    "autolr": "**AutoLR**",
    "before": "AutoLR of 0.2.0",
    "one rate": "one rate for each optimizer, chosen on fit",
    "prior": "the prior's rate",
    "random 4": "best by the probe of 4 rates",
    "random 8": "best by the probe of 8 rates",
    "default": "the default rate",
    "prodigy": "Prodigy",
    "schedule-free": "Schedule-Free",
    "greedy": "GreedyLR",
    "greedy-bounds": "GreedyLR from 1e-7 to 1e-4",
}


def zoo(result: dict[str, Any]) -> str:
    """What every method costs on the families that nothing was fitted to, and AutoLR on the others."""
    headings = [
        "families",
        "method",
        "mean",
        "to 1 at most",
        "median",
        "nine of ten",
        "worst",
        "lost",
        "ahead",
    ]
    rows = []
    for part in ("test", "dev", "fit"):
        for method, name in _METHODS.items():
            told = result["summary"][part].get(method)
            if (
                not told
                or not told["cells"]
                or (part != "test" and method not in ("autolr", "before", "default"))
            ):
                continue
            chosen = told["test_chosen"]
            numbers = [chosen[of] for of in ("mean", "mean_to_one", "median", "nine_of_ten", "worst")]
            ahead = f"{chosen['ahead_of_default']} of {told['cells']}" if method != "default" else "–"
            if "autolr_there" in chosen:
                name += (
                    f", {told['cells']} cells (AutoLR there {100 * chosen['autolr_there']:.1f} to 1 at most)"
                )
            lost = f"{told['lost']} of {told['runs']}"
            rows.append([part, name, *(f"{100 * value:.1f}" for value in numbers), lost, ahead])
    met = [f"{name}: {'met' if goal['met'] else 'missed'}" for name, goal in result["goals"].items()]
    peers = any("autolr_there" in told.get("test_chosen", {}) for told in result["summary"]["test"].values())
    note = (
        "Excess over the tuned sweep in %, both with the choice of weights by the probe, over cells. "
        "*To 1 at most*: the mean where no cell counts for more than 100 %. *Lost*: runs that end 25 % above "
        "the sweep or within a tenth of where they began. *Ahead*: of the default rate, in cells. "
        f"AutoLR{', its peers' * peers} and the default rate have three seeds, the others one. All but AutoLR"
        f"{' and its peers' * peers} use OneCycle. {'Schedule-Free has no choice of weights. ' * peers}"
        "Goals, on the test families: "
        f"{'; '.join(met)}."
    )
    return f"{markdown(headings, rows)}\n\n{note}"
