"""Rates that nobody gave beside tuned ones, as tables."""

from __future__ import annotations

from typing import Any

from benchmarks.regret.analysis import grid, misled
from benchmarks.regret.tables import detail, leading, matrix, unpaired_note
from benchmarks.tools.quote.tables.grid import markdown

__all__ = [
    "deepobs",
    "excess",
    "lightbench",
    "regret",
    "zoo",
    "zoo_ablation",
    "zoo_choice",
    "zoo_cost",
    "zoo_finders",
]


def regret(result: dict[str, Any]) -> str:
    """The normalised regret of every method."""
    headings, rows = grid(result, lambda text: f"**{text}**")
    notes = [
        "Normalised regret of the final held-out loss in %: 0 is the tuned sweep, 100 the untrained model. "
        "**Bold**: the best of those that ask for no learning rate."
    ]
    if result["looked_at"]:
        notes.append(f"The defaults were chosen while looking at {', '.join(result['looked_at'])}")
        confirmed = ", ".join(result["confirmed_on"])
        notes[-1] += f", and confirmed on {confirmed}." if confirmed else "."
    if "prodigy" in result["overall"]:
        notes.append("Prodigy has no variant of SGD.")
    if others := misled(result):
        worst = [over["worst"] for over in others.values()]
        notes.append(
            f"With its optimizer built at {', '.join(others)} instead (one seed), AutoLR's worst regret is "
            f"{'∞' if None in worst else f'{max(worst):.2f}'} %."
        )
    if result["missing_runs"]:
        notes.append(f"{result['missing_runs']} runs are still missing.")
    return "\n".join([markdown(headings, rows), "", " ".join([*notes, *result["caveats"]])])


def excess(result: dict[str, Any]) -> str:
    """The excess of every method, and AutoLR's in detail."""
    found = result["excess"]
    chosen = leading(found) == "chosen"
    notes = [
        "Excess L/L_tuned − 1 in %, each seed over the tuned run of the same seed, "
        + ("chosen over chosen; in brackets both as they end." if chosen else "both as they end.")
        + " **Bold**: the best of those that ask for no learning rate.",
        "*As a rate off by*: the smallest factor by which a hand-picked rate must miss the best of the sweep "
        "to do as badly. *Worth random rates*: of how many rates, drawn evenly in log rate over the sweep's "
        "range, the best is as good on average (all: none is).",
    ]
    if note := unpaired_note(found):
        notes.append(note)
    met = [f"{name}: {'met' if goal['met'] else 'missed'}" for name, goal in found["goals"].items()]
    if chosen:
        notes.append(f"Goals: {'; '.join(met)}.")
    else:
        notes.append("These runs were made before chosen losses were kept, which the goals are about.")
    tables = (matrix(found, lambda text: f"**{text}**"), detail(found))
    return "\n\n".join([*(markdown(*one) for one in tables), " ".join(notes)])


def lightbench(result: dict[str, Any]) -> str:
    """How many were solved, and which of those that ten trials solve were not."""
    counts, published = result["counts"]["autolr"], result["adamw_solved_within_trials"]
    lines = [
        "| one run of AutoLR each | AdamW within 10 trials | within 30 | within 1,000 |",
        "|---|---|---|---|",
        f"| {counts['solved']} of {counts['run']} | " + " | ".join(map(str, published.values())) + " |",
    ]
    return "\n".join(lines)


def deepobs(result: dict[str, Any]) -> str:
    """Beside the published runs."""
    arms = ("AutoLR", "swept, with decay", "default")
    lines = ["| optimizer | published, tuned | AutoLR | swept here, with decay | at 1e-3 |", "|---" * 5 + "|"]
    for row in result["rows"]:
        cells = [row["published"], *(row["arms"][arm] for arm in arms)]
        said = [
            "–" if not c or c["mean"] is None else f"{c['mean']:.3f} ± {c['deviation']:.3f}" for c in cells
        ]
        lines.append(f"| {row['optimizer']} | {' | '.join(said)} |")
    note = f"Test loss after {result['settings']['steps']} steps, mean ± deviation of ten seeds."
    return "\n".join([*lines, "", note])


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


def zoo_ablation(result: dict[str, Any]) -> str:
    """What each constant of AutoLR is worth."""
    headings = ["instead", "to 1 at most", "difference", "lost", "lost as it is", "pays"]
    rows = []
    for name, told in result["variants"].items():
        error = "" if told["error"] is None else f" ± {100 * told['error']:.1f}"
        rows.append(
            [
                name,
                f"{100 * told['mean_to_one']:.1f}",
                f"{100 * told['difference']:+.1f}{error}" if name != "as it is" else "–",
                f"{told['lost']} of {told['runs']}",
                f"{told['lost_as_it_is']}",
                "yes" if told["pays"] else "–",
            ]
        )
    note = (
        "Excess over the tuned sweep in %, both with the choice of weights, the mean over cells of which "
        "none counts for more than 100 %. *Difference*: from AutoLR as it is, on the same cells and seeds, "
        "± its standard error over families. *Pays*: AutoLR as it is is better by 0.3 % or loses fewer runs."
    )
    return f"{markdown(headings, rows)}\n\n{note}"


def zoo_cost(result: dict[str, Any]) -> str:
    """What AutoLR loses by costing less."""
    headings = ["instead", "excess", "difference", "lost, and by the first", "runs", "above", "below"]
    rows = [
        [
            name,
            f"{100 * told['mean_to_one']:.1f}",
            f"{100 * told['difference']:+.1f} ± {100 * told['error']:.1f}" if told["error"] else "–",
            f"{told['lost']}, {told['lost_as_it_is']}",
            str(told["runs"]),
            *map(str, result["moved"][name]),
        ]
        for name, told in result["variants"].items()
    ]
    note = (
        "The first is AutoLR as it was. Excess over the tuned sweep in %, the mean over cells of which none "
        "counts for more than 100 %; *difference* from the first, on the same cells and seeds, ± its "
        "standard error over families. *Above*, *below*: runs beyond the interval of 95 % that three "
        "committed seeds of AutoLR give a fourth. By chance that is one in twenty, if nothing but the seed "
        "were another; the first has those seeds."
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


def zoo_choice(result: dict[str, Any]) -> str:
    """What each rule by which weights are chosen costs."""
    columns = {
        "fit": ("4", "fit"),
        "dev": ("4", "dev"),
        "dev, by two batches": ("2", "dev"),
        "dev, by one": ("1", "dev"),
    }
    rows = [
        [name, *(f"{100 * told[by][part]['mean_to_one']:.2f}" for by, part in columns.values())]
        for name, told in result["rules"].items()
    ]
    note = (
        "Excess over the tuned sweep with the choice of weights in %, the mean over runs of which none "
        "counts for more than 100 %; by four batches, or by fewer of the same. All rules choose among the "
        "same candidates, and the one that AutoLR has was chosen on these runs. *The latest within*: of "
        "those that give back so much of the gain at most. *As in 0.2.0*: the latest within one standard "
        "error of the lowest and 2 % of the gain, and the end within one and a half errors. *Ema0.1*, "
        "*descent*: the running mean of the iterates, over a tenth of the run or while the rate decays, "
        "is a candidate, too. *By the test loss*: what no rule can beat."
    )
    return f"{markdown(['rule', *columns], rows)}\n\n{note}"
