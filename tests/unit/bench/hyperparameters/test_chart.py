"""The chart of ways from wrong values."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

from hdet.bench.hyperparameters import command as hyperparameters
from hdet.bench.hyperparameters.chart import chart
from hdet.bench.hyperparameters.tasks import TASKS
from tests.unit.bench.hyperparameters.rows import SINGLES, text_of, with_loss


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


def test_the_chart_bears_zeros_and_runs_that_diverged(result: dict[str, Any]) -> None:
    header = result["runs"]["header"]
    rows = [dict(zip(header, row, strict=True)) for row in result["runs"]["rows"]]
    low = f"{TASKS['dropout'].grids['dropout'][0]:g}"
    broken = with_loss(rows, None, task="dropout", start=low)
    paths = [{**path, "values": [0.0 for _ in path["values"]]} for path in result["paths"]]
    runs = {"header": header, "rows": [[row[name] for name in header] for row in broken]}
    other = hyperparameters.recomputed({**result, "runs": runs, "paths": paths})
    assert ElementTree.fromstring(chart(other))
    assert "diverged" in text_of(other)
