"""Stacked replicas timed against processes: what is compared, what is shown, and a quick run."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

from benchmarks.rows import Row
from benchmarks.speed import stacked


def timed(way: str, replicas: int, gradients: str, per_second: float, model: str = "lm, 30 k") -> Row:
    row = {"model": model, "way": way, "replicas": replicas, "gradients": f"{gradients} gradients"}
    return {**row, "step_ms": 12.34, "step_ms_iqr": [12.1, 12.6], "samples_per_second": per_second}


TIMED = [
    timed("stacked", 2, "shared", 9000.0),
    timed("stacked", 8, "shared", 3000.0),
    timed("stacked", 8, "own", 4000.0),
    timed("processes", 8, "shared", 500.0),
    timed("processes", 8, "own", 2000.0),
    timed("processes, MPS", 8, "own", 2500.0),
    timed("stacked, measured again", 8, "shared", 5000.0),
    timed("stacked, measured again", 8, "own", 6000.0),
    timed("stacked", 8, "own", 70.0, model="lm, 800 k"),
    timed("processes", 8, "own", 100.0, model="lm, 800 k"),
]


def test_like_is_compared_with_like_and_both_measurements_count() -> None:
    assert stacked._ratios(TIMED, 8) == {
        ("lm, 30 k", "processes", "shared gradients"): 8.0,
        ("lm, 30 k", "processes", "own gradients"): 2.5,
        ("lm, 30 k", "processes, MPS", "own gradients"): 2.0,
        ("lm, 800 k", "processes", "own gradients"): 0.7,
    }
    assert stacked._ratios(TIMED, 2) == {}


def test_the_table_of_stacked_replicas_shows_every_way_and_goal() -> None:
    goals = {
        "lm, 30 k: stacked at least 3 × processes, shared gradients": {"measured": 8.0, "met": True},
        "lm, 30 k: stacked at least 3 × processes, own gradients": {"measured": 2.5, "met": False},
    }
    screen = io.StringIO()
    Console(file=screen, width=160).print(stacked.table({"goals": goals, "rows": TIMED, "searches": []}))
    lines = [re.sub(r"\s*[│┃]\s*", " | ", line).strip() for line in screen.getvalue().splitlines()]
    assert "| lm, 30 k | 8 | shared gradients | processes | 12.3 ms (12.1–12.6) | 500 |" in lines
    assert "| lm, 30 k | 2 | shared gradients | stacked | 12.3 ms (12.1–12.6) | 9,000 |" in lines
    assert any("× 8.00 | met" in line for line in lines)
    assert any("× 2.50 | missed" in line for line in lines)


def test_a_quick_measurement_of_both_ways() -> None:
    try:
        result = stacked.run(quick=True)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert result["command"] == "python -m benchmarks stacked --quick"
    ways = [(row["way"], row["gradients"]) for row in result["rows"]]
    assert len(ways) == len(set(ways)) == 3 * 2
    for row in result["rows"]:
        assert row["replicas"] == 2
        low, high = row["step_ms_iqr"]
        assert 0 < low <= row["step_ms"] <= high
        # Eight samples a replica.
        assert row["samples_per_second"] == pytest.approx(2 * 8 * 1e3 / row["step_ms"], rel=1e-3)
    assert [search["batch_norm"] for search in result["searches"]] == [False, True]
    for search in result["searches"]:
        assert search["ratio"] == pytest.approx(search["search_ms"] / search["plain_ms"], rel=2e-3)
        assert search["met"] == (search["ratio"] <= 1.5)
    assert stacked.table(result).row_count == len(result["rows"]) + len(result["goals"]) + 2
    goals = list(result["goals"].values())
    ratios = list(stacked._ratios(result["rows"], 2).values())
    assert [goal["measured"] for goal in goals] == [pytest.approx(ratio, rel=2e-3) for ratio in ratios]
    assert [goal["met"] for goal in goals] == [goal["measured"] >= 3 for goal in goals]
    json.dumps(result, allow_nan=False)
