"""The chart of regrets."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

from benchmarks.regret import command as regret
from benchmarks.regret.chart import chart


def test_the_chart_is_xml_with_a_mark_for_every_arm(result: dict[str, Any]) -> None:
    drawing = chart(result)
    root = ElementTree.fromstring(drawing)
    assert root.attrib["viewBox"].startswith("0 0 800 ")
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    # AutoLR and Prodigy are polygons: one for each of two workloads and one in the legend.
    assert tags.count("polygon") == 6
    assert sum(element.text == "×" for element in root.iter()) == 2
    assert "charlm, adamw" in drawing
    assert ElementTree.fromstring(chart(regret.recomputed({**result, "runs": {"header": [], "rows": []}})))
