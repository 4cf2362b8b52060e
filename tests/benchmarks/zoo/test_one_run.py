"""The chart of the first page shows what the committed runs hold, and tasks that a rule has chosen."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from benchmarks.rows import KeptRows
from benchmarks.zoo.one_run import DRAWING, RESULT, ROWS, Panel, chosen, draw, panels
from benchmarks.zoo.plan import run_of
from tests import ROOT


@cache
def result() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / RESULT).read_text(encoding="utf-8"))
    return found


@cache
def shown() -> list[Panel]:
    return panels(result(), KeptRows(ROWS, run_of).finished)


def test_the_drawing_is_that_of_the_runs() -> None:
    kept = (ROOT / DRAWING).read_text(encoding="utf-8")
    assert kept == draw(shown()), "run: python -m benchmarks.zoo.one_run"


def test_every_excess_and_every_point_is_in_the_drawing() -> None:
    drawn = draw(shown()).replace("−", "-")
    for one in shown():
        assert drawn.count(f">AutoLR: {100 * one.excess:+.1f} %<") == 1
        assert one.tuned in dict(one.sweep)
    assert len(re.findall("<title>rate ", drawn)) == sum(len(one.sweep) for one in shown())


def test_the_sweep_is_lowest_where_it_is_tuned() -> None:
    for one in shown():
        assert dict(one.sweep)[one.tuned] == pytest.approx(0, abs=1e-4), one.task
        assert min(above for _, above in one.sweep) > -0.1, one.task  # other rates have one seed


def test_tasks_are_chosen_by_the_rule_and_the_worst_is_one() -> None:
    cells = [c for c in result()["cells"] if c["part"] == "test" and c["optimizer"] == "adamw"]
    excess = sorted(cell["autolr"]["excess_test_chosen"] for cell in cells)
    ours = [cell["autolr"]["excess_test_chosen"] for _, cell in chosen(result())]
    assert ours == sorted(ours)
    assert ours[-1] == excess[-1]
    better = [sum(other < one for other in excess) / len(excess) for one in ours[:3]]
    assert better == pytest.approx([0.25, 0.5, 0.75], abs=0.05)


def test_another_loss_is_another_drawing() -> None:
    first, *others = shown()
    assert draw([replace(first, excess=0.3), *others]) != draw(shown())
