"""The oldest versions: what is promised is what was tested, and what was tested is what is said."""

from __future__ import annotations

import json
import re
from pathlib import Path

import hdet
from benchmarks.tools.floors import CONSTRAINTS, DOCUMENT, PAIRS, RESULT, TESTS, counted, fill, table
from tests import ROOT

PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_first_pair_is_the_floor_of_the_package() -> None:
    python, torch = PAIRS[0]
    assert f'requires-python = ">={python}"' in PROJECT
    assert f'"torch>={torch.removesuffix(".0")}"' in PROJECT
    promised = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
    assert {python for python, _ in PAIRS} == set(promised)
    assert all((ROOT / test).exists() for test in TESTS)


def test_the_constraints_are_the_oldest_versions_of_the_extra() -> None:
    pinned = dict(
        line.split("==") for line in CONSTRAINTS.read_text(encoding="utf-8").splitlines() if "==" in line
    )
    oldest = dict(
        re.findall(r'"([a-z-]+)>=([\d.]+)"', "".join(re.findall(r"^cli = .*", PROJECT, re.MULTILINE)))
    )
    assert oldest
    for name, version in oldest.items():
        assert pinned[name].startswith(version)
        assert set(pinned[name][len(version) :]) <= set(".0")


def test_the_document_says_what_the_file_holds() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    (said,) = re.findall(r"<!-- floors -->\n(.*?)<!-- end -->", text, re.DOTALL)
    if not RESULT.exists():
        assert said == "Not written yet: `make floors`.\n"
        return
    result = json.loads(RESULT.read_text(encoding="utf-8"))
    assert fill(text, result) == text, "run: make floors"
    tried = [row for row in result["rows"] if "passed" in row]
    assert (tried[0]["python"], tried[0]["torch"]) == PAIRS[0], "the floor itself has been tried"
    assert all(row["failed"] == 0 and row["passed"] > 500 for row in tried)


def test_a_row_that_was_not_tried_says_why() -> None:
    row = {"python": "3.13", "torch": "2.11.0", "reason": "it comes with CUDA alone here"}
    assert table({"rows": [row]}).splitlines()[-1] == (
        "| 3.13 | 2.11.0 | not tried: it comes with CUDA alone here |  |  |"
    )


def test_what_pytest_wrote_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "results.xml"
    path.write_text(
        '<testsuites><testsuite tests="10" failures="2" errors="1" skipped="3"></testsuite></testsuites>'
    )
    assert counted(path) == {"passed": 4, "failed": 3, "skipped": 3}


def test_one_version_everywhere() -> None:
    cited = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    log = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"version: {hdet.__version__}\n" in cited
    newest, date = re.findall(r"^## \[(\d.*)\] - (.*)$", log, re.MULTILINE)[0]
    assert newest == hdet.__version__
    assert f"date-released: {date}\n" in cited
