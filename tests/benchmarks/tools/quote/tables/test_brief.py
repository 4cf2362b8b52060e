"""The short table says of every method what the long one says, and where AutoLR loses."""

from __future__ import annotations

import copy
import json
import re
import statistics
from typing import Any

import pytest

from benchmarks.tools.quote.tables.brief import brief
from tests import ROOT


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        (ROOT / "docs" / "evidence" / "excess.json").read_text(encoding="utf-8")
    )
    return found


def cells(text: str) -> dict[str, list[str]]:
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {row[0].strip("*"): row[1:] for row in rows[2:]}


def test_it_is_small_enough_to_be_read_at_once(result: dict[str, Any]) -> None:
    rows = cells(brief(result))
    assert next(iter(rows)) == "AutoLR"
    assert len(rows) <= 8
    assert {len(row) for row in rows.values()} == {4}


def test_its_numbers_are_those_of_the_pairs(result: dict[str, Any]) -> None:
    excess = [pair["arms"]["autolr"]["chosen"]["excess"] for pair in result["excess"]["pairs"]]
    mean, worst, best, lost = cells(brief(result))["AutoLR"]
    assert mean == f"{statistics.fmean(excess):.2f} ({statistics.median(excess):.2f})"
    assert float(worst.split(", ")[0]) == pytest.approx(max(excess), rel=5e-3)
    others = [
        min(
            arm["chosen"]["excess"]
            for name, arm in pair["arms"].items()
            if arm["chosen"]["excess"] is not None
        )
        for pair in result["excess"]["pairs"]
    ]
    assert best == f"{sum(ours == first for ours, first in zip(excess, others, strict=True))} of 20"
    assert lost == "0 of 20"


def test_every_line_that_auto_lr_loses_is_named(result: dict[str, Any]) -> None:
    changed = copy.deepcopy(result)
    pair = next(pair for pair in changed["excess"]["pairs"] if pair["workload"] == "vae")
    pair["arms"]["autolr"]["chosen"]["excess"] = 77.0
    losses = [re.search(r"\*\*AutoLR loses\*\* on (.*?)\.\s", brief(one)) for one in (result, changed)]
    assert losses[0] is not None
    assert losses[1] is not None
    assert "autoencoder, AdamW (77.0 against 1.51 by Schedule-Free, and 4 more ahead)" in losses[1][0]
    assert "autoencoder" not in losses[0][0]
    assert "77.0, autoencoder" in cells(brief(changed))["AutoLR"][1]
