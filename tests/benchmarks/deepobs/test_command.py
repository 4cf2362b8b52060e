"""DeepOBS's quadratic: what is told beside the published numbers."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from benchmarks.deepobs import command
from benchmarks.deepobs.command import PUBLISHED, START, analyse, losses_of, table
from tests.benchmarks.screen import shown


def arms(auto: list[float], published: list[float]) -> dict[str, dict[str, Any]]:
    losses = {
        "AutoLR": auto,
        "default": [200.0, 201.0],
        "swept, with decay": [87.0, 87.1],
        "as published": published,
    }
    return {name: {"lr": 0.1, "losses": values} for name, values in losses.items()}


def test_who_is_below_within_or_above() -> None:
    as_it_was = [87.11, 87.12]
    for auto, said in (([86.9, 86.91], "below"), ([87.11, 87.12], "within"), ([87.5, 87.51], "above")):
        (row,) = analyse({"Adam": arms(auto, as_it_was)}, START)["rows"]
        assert row["AutoLR_is"] == said
        assert row["agrees"]
    (row,) = analyse({"Adam": arms([87.1, 87.2], [90.0, 90.1])}, START)["rows"]
    assert not row["agrees"]
    assert row["regret_percent"] == pytest.approx(100 * (87.15 - 87.11188) / (START - 87.11188))


def test_one_that_diverged_is_told_as_such_and_is_plain_json() -> None:
    result = analyse({"SGD": arms([87.0, math.inf], [87.4, 87.5])}, START + 1)
    json.dumps(result, allow_nan=False)
    (row,) = result["rows"]
    assert row["AutoLR_is"] == "above"
    seen = shown(table(result))
    assert "diverged" in seen
    assert "does not agree" in seen


def test_the_published_settings_land_near_the_published_losses() -> None:
    optimizer = next(iter(PUBLISHED))
    known = PUBLISHED[optimizer]
    (loss,) = losses_of(optimizer, [0], known["lr"])
    assert loss == pytest.approx(known["mean"], abs=4 * known["deviation"])


def test_a_whole_small_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "STEPS", 56)
    monkeypatch.setattr(command, "OPTIMIZERS", ("Adam", "momentum 0.9"))
    result = command.run(quick=True)
    json.dumps(result, allow_nan=False)
    adam, other = result["rows"]
    assert result["start"]["agrees"]
    assert set(adam["arms"]) - set(other["arms"]) == {"as published", "as published, reshuffled"}
    assert all(len(arm["losses"]) == 2 for arm in adam["arms"].values())
    assert "quadratic_deep" in shown(table(result))
