"""The figures of docs/how-autolr-decides.md are of the runs that the page quotes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.tools.figures.draw import FIGURES, digest, draw
from tests import ROOT

DATA = ROOT / "docs" / "figures" / "decisions.json"
PAGE = (ROOT / "docs" / "how-autolr-decides.md").read_text(encoding="utf-8")


def test_the_page_shows_every_figure_and_each_is_of_the_data() -> None:
    result = json.loads(DATA.read_text(encoding="utf-8"))
    for name in FIGURES:
        assert f"](figures/{name}.svg)" in PAGE
        path = ROOT / "docs" / "figures" / f"{name}.svg"
        assert digest(result) in path.read_text(encoding="utf-8"), "run: python -m benchmarks.tools.figures"
        assert path.stat().st_size < 150_000


def test_the_page_has_no_number_of_the_runs_that_is_not_quoted() -> None:
    """Losses and rates of the walk through the figures stand in marks, which another test fills."""
    walk = PAGE.split("## A run that goes well")[1].split("## The rule")[0]
    bare = re.sub(r"<!-- number:.*?<!-- end -->|<!-- quote:.*?<!-- end -->", "", walk, flags=re.DOTALL)
    assert not re.findall(r"\b0\.0\d+|\b[1-4]\.\d{2,}", bare)


def test_they_are_drawn_from_the_data(tmp_path: Path) -> None:
    for path in draw(json.loads(DATA.read_text(encoding="utf-8")), tmp_path):
        text = path.read_text(encoding="utf-8")
        ElementTree.fromstring(text)
        assert "fill: #ffffff" not in text, "a figure has no background of its own"
