"""Hyperparameters other than the learning rate, and several at once, as tables."""

from __future__ import annotations

from typing import Any

from benchmarks.autotune import tables as autotune_tables
from benchmarks.autotune.plan import AUTOTUNE
from benchmarks.hyperparameters import analysis
from benchmarks.tools.quote.tables.grid import markdown

__all__ = ["autotune", "hyperparameters", "zoo_parts", "zoo_replicas", "zoo_sizes"]


def autotune(result: dict[str, Any]) -> str:
    """How far every arm ends above the truth, task by task and on average."""
    arms = [line["arm"] for line in result["tasks"][0]["arms"]]
    named = [f"**{arm}**" if arm == AUTOTUNE else arm for arm in arms]
    rows = []
    for task in result["tasks"]:
        by_arm = {line["arm"]: f"{line['excess']:+.1f}" for line in task["arms"]}
        rows.append([task["task"], f"{task['truth']['test']:.4g}", *(by_arm[arm] for arm in arms)])
    near = result["verdicts"]["near_the_truth"]
    rows.append(["*mean*", "", *(f"{near[arm]['excess']:+.1f}" for arm in arms)])
    said = " ".join(autotune_tables.said(result["verdicts"]))
    return f"{markdown(['over the truth, %', 'truth', *named], rows)}\n\n{said}"


def hyperparameters(result: dict[str, Any]) -> str:
    """What is recovered from a wrong start, one at a time and four at once."""
    parts = [markdown(*analysis.grid(result))]
    notes = [
        "`recovered` is (wrong − HDET)/(wrong − best) of the final held-out loss, seed by seed: 0 is to stay "
        "at the start, 100 the best value of the grid from the first step on."
    ]
    if result["four"]:
        parts.append(markdown(*analysis.together(result)))
        notes.append("The values beside four at once are those that the first seed ended with.")
    if result["missing_runs"]:
        notes.append(f"{result['missing_runs']} runs are still missing.")
    return "\n\n".join([*parts, " ".join([*notes, *result["caveats"]])])


def zoo_replicas(result: dict[str, Any]) -> str:
    """Replicas against one large batch, where that overfits and where it does not."""
    kinds = {"overfits": "overfits", "does not": "does not", "all": "*all tasks*"}
    headings = ["the large batch", "tasks", "averaged alone, %", "ahead in", "AutoTune, %", "ahead in"]
    rows = []
    for kind, name in kinds.items():
        told = result["summary"][kind]
        cells = [
            text
            for arm in ("averaged", "tuned")
            for text in (
                f"{100 * told[arm]['mean']:+.1f} ± {100 * told[arm]['interval']:.1f}",
                str(told[arm]["ahead"]),
            )
        ]
        rows.append([name, str(told["tuned"]["cells"]), *cells])
    note = (
        "Loss on test samples above that of one large batch of the same samples, in the same number of "
        "steps, as a share of it; below zero replicas are better, and no task counts for more than 100 %. "
        "*Overfits*: its best weights were seen before nine tenths of the run."
    )
    return f"{markdown(headings, rows)}\n\n{note}"


_PARTS = {
    "large": "one large batch, AutoLR",
    "alone": "one process, a quarter of the samples",
    "alone, N times as long": "one process, the same samples in four times the steps",
    "tuned": "AutoTune, gradients shared first",
    "tuned apart": "AutoTune, gradients of their own throughout",
    "shared, then own": "gradients shared first, nothing explored",
    "own, then shared": "gradients shared in the decay, nothing explored",
    "rates": "a fan-out of learning rates, judged by the probe",
}


def zoo_parts(result: dict[str, Any]) -> str:
    """What each part comes to, against replicas that are only averaged."""
    return _by_kind(
        "against averaging alone", {_PARTS.get(arm, arm): t for arm, t in result["parts"].items()}
    )


def zoo_sizes(result: dict[str, Any]) -> str:
    """AutoTune against the large batch at other numbers of replicas than four."""
    four = {kind: told["tuned"] for kind, told in result["summary"].items()}
    sizes = {int(size): told for size, told in result["sizes"].items()} | {4: four}
    return _by_kind("replicas", {str(size): sizes[size] for size in sorted(sizes)})


def _by_kind(heading: str, lines: dict[str, Any]) -> str:
    kinds = ("overfits", "does not", "all")
    rows = []
    for name, told in lines.items():
        cells = [
            f"{100 * told[kind]['mean']:+.1f} ± {100 * told[kind]['interval']:.1f}"
            if told.get(kind, {}).get("interval") is not None
            else "–"
            for kind in kinds
        ]
        rows.append([name, str(told["all"]["cells"]), *cells])
    headings = [heading, "tasks", "where the large batch overfits, %", "where not, %", "all, %"]
    return markdown(headings, rows)
