"""The notebook of the examples: its cells run, and what it shows was written by a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.tools.notebook import execute, main
from tests import ROOT

PATH = ROOT / "examples" / "report.ipynb"
NOTEBOOK: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
CODE = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]


def test_its_cells_run_and_show_the_report() -> None:
    _, trained, shown, kept = execute(CODE)
    *_, last = trained[0]["text"]
    assert float(last.split()[-2]) < 0.01, last
    report = shown[0]["data"]
    assert "Found a learning rate of" in report["text/plain"][0]
    assert report["text/html"][0].startswith("<iframe srcdoc=")
    assert kept[0]["text"] == ["report.html run.jsonl schedule.json\n"]


def test_it_is_a_notebook_of_format_4_5() -> None:
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert {"cells", "metadata", "nbformat", "nbformat_minor"} == set(NOTEBOOK)
    of_code = {"cell_type", "execution_count", "id", "metadata", "outputs", "source"}
    for cell in NOTEBOOK["cells"]:
        assert set(cell) == of_code if cell in CODE else of_code - {"execution_count", "outputs"}
    names = [cell["id"] for cell in NOTEBOOK["cells"]]
    assert len(set(names)) == len(names)


def test_what_is_committed_was_run_and_is_light() -> None:
    assert [cell["execution_count"] for cell in CODE] == [1, 2, 3, 4]
    shown = "".join(CODE[2]["outputs"][0]["data"]["text/plain"])
    assert "Found a learning rate of" in shown
    assert CODE[1]["outputs"][0]["text"][-1].startswith("the end of step 400")
    assert PATH.stat().st_size < 100_000, "the page's script is left out"
    assert PATH.with_name("report.png").is_file()


def test_a_page_is_left_out_of_the_file_and_short_outputs_are_kept(tmp_path: Path) -> None:
    source = (
        "class Shown:\n"
        "    def __init__(self, size): self.size = size\n"
        "    def __repr__(self): return 'a page'\n"
        "    def _repr_html_(self): return 'x' * self.size"
    )
    cells = [
        {"cell_type": "code", "source": [text], "outputs": [], "execution_count": None}
        for text in (source, "Shown(10)", "Shown(200_000)", "print(1)\nNone")
    ]
    path = tmp_path / "made.ipynb"
    path.write_text(json.dumps({"cells": cells}), encoding="utf-8")
    main(path)
    nothing, short, long, printed = (cell["outputs"] for cell in json.loads(path.read_text())["cells"])
    assert nothing == []
    assert short[0]["data"] == {"text/plain": ["a page"], "text/html": ["x" * 10]}
    assert long[0]["data"] == {"text/plain": ["a page"]}
    assert printed == [{"output_type": "stream", "name": "stdout", "text": ["1\n"]}]
