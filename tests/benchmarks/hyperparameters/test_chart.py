"""The chart of ways from wrong values."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

from benchmarks.hyperparameters import command as hyperparameters
from benchmarks.hyperparameters.chart import chart
from tests.benchmarks.hyperparameters.rows import SINGLES


def test_the_chart_is_xml_with_an_arrow_for_every_start(result: dict[str, Any]) -> None:
    drawing = chart(result)
    root = ElementTree.fromstring(drawing)
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    # Two in the legend; and a curve for the grid, six for the ways from there, in every column.
    assert tags.count("polygon") == 2 + 2 * len(SINGLES)
    assert tags.count("polyline") == 7 * len(SINGLES)
    assert "nan" not in drawing
    assert "inf" not in drawing
    nothing = {**result, "runs": {**result["runs"], "rows": []}, "paths": []}
    assert ElementTree.fromstring(chart(hyperparameters.recomputed(nothing)))
