"""Several hyperparameters at once, and replicas, as tables."""

from __future__ import annotations

from typing import Any

from benchmarks.autotune.plan import AUTOTUNE
from benchmarks.tools.quote.tables.grid import markdown, signed

__all__ = ["autotune", "zoo_parts", "zoo_replicas", "zoo_sizes"]


def autotune(result: dict[str, Any]) -> str:
    """How far every arm ends above the truth on average, and on how many tasks AutoTune is ahead of it."""
    verdicts = result["verdicts"]
    rows = []
    for arm, near in verdicts["near_the_truth"].items():
        ahead = verdicts["autotune_ahead_of"].get(arm)
        cells = (
            ["–", "–"]
            if ahead is None
            else [f"{ahead['ahead']} of {ahead['of']}", signed(ahead["by"], ".1f")]
        )
        rows.append([f"**{arm}**" if arm == AUTOTUNE else arm, signed(near["excess"], ".1f"), *cells])
    headings = ["arm", "over the truth, %", "AutoTune is ahead on", "by, %"]
    return markdown(headings, rows)


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
    "rates": "a fan-out of learning rates, judged by the probe",
}


def zoo_parts(result: dict[str, Any]) -> str:
    """What each part comes to, against replicas that are only averaged."""
    parts = result["parts"]
    return _by_kind("against averaging alone", {name: parts[arm] for arm, name in _PARTS.items()})


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
