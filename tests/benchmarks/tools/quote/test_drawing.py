"""The chart beside the short table is drawn from the same numbers."""

from __future__ import annotations

import copy
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

import pytest

from benchmarks.tools.quote.drawing import draw, drawings
from tests import ROOT

EVIDENCE = ROOT / "docs" / "evidence"


@pytest.mark.parametrize("name", drawings(EVIDENCE))
def test_a_drawing_is_that_of_the_evidence(name: str) -> None:
    assert (EVIDENCE / name).read_text(encoding="utf-8") == drawings(EVIDENCE)[name], (
        "run: python -m benchmarks.tools.quote"
    )


def tags(drawing: str, name: str) -> Iterator[ElementTree.Element]:
    return (one for one in ElementTree.fromstring(drawing).iter() if one.tag.endswith(f"}}{name}"))


def test_every_finite_excess_is_a_dot_and_every_loss_of_auto_lr_a_ring_with_its_name() -> None:
    result = json.loads((EVIDENCE / "excess.json").read_text(encoding="utf-8"))
    for worse in (None, "vae"):
        pairs = result["excess"]["pairs"]
        if worse is not None:
            pairs = copy.deepcopy(pairs)
            for pair in pairs:
                if pair["workload"] == worse:
                    pair["arms"]["autolr"]["chosen"]["excess"] = 400.0
        drawing = draw({**result, "excess": {**result["excess"], "pairs": pairs}})
        cells = [cells["chosen"] for pair in pairs for cells in pair["arms"].values()]
        lost = [
            pair
            for pair in pairs
            if pair["arms"]["autolr"]["chosen"]["excess"]
            > min(
                cells["chosen"]["excess"]
                for cells in pair["arms"].values()
                if cells["chosen"]["excess"] is not None
            )
        ]
        circles = list(tags(drawing, "circle"))
        rings = [one for one in circles if one.attrib["fill"] == "none"]
        assert len(circles) - len(rings) == sum(cell["excess"] is not None for cell in cells)
        assert len(rings) == len(lost) > 0
        said = [one.text or "" for one in tags(drawing, "text")]
        assert sum(" % (" in text for text in said) == len(lost)
        assert sum(text.startswith("×") for text in said) == 1
