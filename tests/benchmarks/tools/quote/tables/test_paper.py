"""The tables of docs/evidence/paper.json."""

from __future__ import annotations

import json

from benchmarks.tools.quote.tables import paper
from tests import ROOT

RESULT = json.loads((ROOT / "docs" / "evidence" / "paper.json").read_text(encoding="utf-8"))


def test_the_edge_has_a_line_for_each_arm_of_each_course() -> None:
    lines = paper.edge(RESULT).splitlines()
    arms = sum(len(told["shifts"]) for name, told in RESULT["edge"].items() if name != "cells")
    assert sum(line.startswith(("| digits |", "| KuaiRand |")) for line in lines) == arms
    found = RESULT["edge"]["digits"]["shifts"]["σ = 0.1, T = 10"]
    line = next(line for line in lines if line.startswith("| digits | σ = 0.1, T = 10 |"))
    assert f"{found['crashed']} of {found['runs']} | {100 * found['shift']:+.1f} | " in line


def test_the_large_run_says_its_size_and_every_arm() -> None:
    table = paper.large(RESULT)
    assert "51,316,099 weights, 20,000 steps, 2 seeds" in table
    for arm in RESULT["large"]["auc"]:
        assert f"| {arm} |" in table
