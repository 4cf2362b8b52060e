"""The result as a person reads it: a table for each task, and what became of the question, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from benchmarks.autotune.analysis import BEHIND, NEAR, REACHED
from benchmarks.autotune.plan import AUTOTUNE

__all__ = ["HEADINGS", "cells", "said", "title"]

HEADINGS = (
    *("arm", "test loss", "over the truth, %", f"runs to truth + {REACHED:g} %"),
    *("runs spent", "trials (pruned)", "core-seconds"),
)


def title(task: Mapping[str, Any]) -> str:
    """What stands above a task's table: the truth."""
    best = task["truth"]
    if best["test"] is None:
        return f"{task['task']}: the sweep has not begun"
    at = ", ".join(f"{name.replace('_', ' ')} {value:.3g}" for name, value in best["setting"].items())
    loss = _with_interval(best["test"], best["test_half_width"], ".4f")
    return f"{task['task']}: the truth is {loss}, best of {best['swept']} at {at}"


def cells(line: Mapping[str, Any]) -> list[str]:
    """One line of a task's table."""
    reached = line["runs_to_reach"]
    some = f" ({line['reached']} of {line['seeds']} seeds)" if 0 < line["reached"] < line["seeds"] else ""
    trials = f"{line['trials']:.3g}" + (f" ({line['pruned']:.3g})" if line["pruned"] else "")
    return [
        line["arm"],
        _with_interval(line["test"], line["test_half_width"], ".4f"),
        _with_interval(line["excess"], line["excess_half_width"], "+.1f"),
        ("never" if reached is None else f"{reached:.2g}") + some if line["excess"] is not None else "–",
        f"{line['runs_spent']:.3g}",
        trials,
        f"{line['core_seconds']:.0f}",
    ]


def said(verdicts: Mapping[str, Any]) -> Iterator[str]:
    """The verdicts, a sentence each."""
    for arm, one in verdicts["autotune_ahead_of"].items():
        clearly = f", clearly on {one['clearly']}" if one["clearly"] else ""
        behind = f"; on {one['behind']} it is clearly more than {BEHIND:g} % behind" if one["behind"] else ""
        yield (
            f"AutoTune is ahead of {arm} on {one['ahead']} of {one['of']} tasks{clearly}, on average by "
            f"{one['by']:.1f} %{behind}."
        )
    if not verdicts["autotune_ahead_of"]:
        yield "AutoTune has not been run."
    for arm, one in sorted(verdicts["near_the_truth"].items(), key=lambda item: item[0] != AUTOTUNE):
        yield (
            f"{arm} is within {NEAR:g} % of the truth on {one['near']} of {one['of']} tasks, "
            f"{one['excess']:+.1f} % on average."
        )


def _with_interval(mean: float | None, half: float | None, digits: str) -> str:
    if mean is None:
        return "–"
    return format(mean, digits) + ("" if half is None else f" ± {format(half, digits.lstrip('+'))}")
