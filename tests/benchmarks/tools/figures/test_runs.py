"""The runs that the figures are of can be made anew."""

from __future__ import annotations

import json

from benchmarks.tools.figures.runs import train


def test_both_are_trained_and_every_window_is_kept() -> None:
    result = json.loads(json.dumps(train(most=120), allow_nan=False))
    for run in result["runs"].values():
        assert len(run["rates"]) == 120
        assert run["windows"][0]["action"] == "scale"
        assert run["windows"][-1]["step"] == 120
        assert [w["began"] for w in run["windows"]] == [0, *(w["step"] for w in run["windows"][:-1])]
        assert run["test_loss_handed"] < run["windows"][0]["loss_mean"]
