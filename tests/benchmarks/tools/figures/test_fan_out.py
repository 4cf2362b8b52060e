"""docs/fan-out.svg is of a real run, and a new one has the same shape."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.tools.figures.draw import digest
from benchmarks.tools.figures.fan_out import draw_fan_out, train_fan_out
from tests import ROOT


def test_the_picture_is_of_the_data_and_has_no_background() -> None:
    result = json.loads((ROOT / "docs" / "figures" / "fan-out.json").read_text(encoding="utf-8"))
    text = (ROOT / "docs" / "fan-out.svg").read_text(encoding="utf-8")
    assert digest(result) in text, "run: python -m benchmarks.tools.figures"
    assert "fill: #ffffff" not in text
    assert len(text) < 150_000
    assert "](fan-out.svg)" in (ROOT / "docs" / "report.md").read_text(encoding="utf-8")


def test_the_readme_shows_how_this_run_ended() -> None:
    run = json.loads((ROOT / "docs" / "figures" / "fan-out.json").read_text(encoding="utf-8"))["runs"]["hdet"]
    (row,) = [
        line.split()
        for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("HDET, ")
    ]
    assert row[-2:] == [str(run["rounds"][-1]["step"]), f"{run['test_loss']:.3f}"]


@pytest.mark.slow
def test_it_can_be_trained_and_drawn_again(tmp_path: Path) -> None:
    result = json.loads(json.dumps(train_fan_out(steps=80), allow_nan=False))
    rounds = result["runs"]["hdet"]["rounds"]
    assert [one["step"] for one in rounds] == list(range(2, 82, 2))
    for one in rounds:
        ratios = sorted(value / one["base"] for value in one["values"])
        assert ratios == pytest.approx([8 / 9, 26 / 27, 28 / 27, 10 / 9])
    (path,) = draw_fan_out(result, tmp_path)
    ElementTree.fromstring(path.read_text(encoding="utf-8"))
