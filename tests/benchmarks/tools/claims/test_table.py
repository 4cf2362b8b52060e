"""Every claim's evidence is there, and numbers and verdicts of the table follow from it."""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tools.claims.rules import Verdict
from benchmarks.tools.claims.table import CLAIMS, counts, table
from benchmarks.tools.quote import fill
from benchmarks.tools.quote.index import measurements
from tests import ROOT

EVIDENCE = ROOT / "docs" / "evidence"


def test_every_file_is_judged_by_a_claim_and_every_claims_file_is_there() -> None:
    assert {name for claim in CLAIMS for name in claim.files} == {
        file.stem for file in measurements(EVIDENCE)
    }


def test_every_claims_test_is_there() -> None:
    named = defaultdict(set)
    for claim in CLAIMS:
        for test in claim.tests:
            file, _, function = test.partition("::")
            named[file].add(function)
    assert named
    for file, functions in named.items():
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        missing = functions - {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert not missing, f"{file} has no {missing}"


def test_a_claim_has_evidence_or_was_not_tested() -> None:
    for claim in CLAIMS:
        if not claim.files:
            _, verdict = claim.judge({})
            assert (verdict is Verdict.UNTESTED) == (not claim.tests), claim.text


def test_the_table_has_every_claim_once_and_only_the_four_verdicts() -> None:
    head, _, *lines = table(EVIDENCE).splitlines()
    assert head == "| claim | where | measured | evidence | verdict |"
    rows = [line.strip("| ").split(" | ") for line in lines]
    assert [row[0] for row in rows] == [claim.text for claim in CLAIMS]
    assert len({row[0] for row in rows}) == len(rows)
    assert {len(row) for row in rows} == {5}, "no cell holds a bar"
    assert all(cell for row in rows for cell in row)
    assert {row[4] for row in rows} <= {
        "**holds**",
        "**holds partly**",
        "**does not hold here**",
        "**not tested**",
    }


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for file in measurements(EVIDENCE):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def change(file: Path, path: list[Any], value: Any) -> None:
    result = json.loads(file.read_text(encoding="utf-8"))
    place = result
    for step in path[:-1]:
        place = place[step]
    assert place[path[-1]] != value
    place[path[-1]] = value
    file.write_text(json.dumps(result), encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("replicas", ["rows", 0, "decision", "published", "mean_percent"], 9.0),
        ("step-cuda", ["machine", "gpu"], "Another"),
        ("table1-kuairand", ["runs", "rows", 0, 4], 9.0),
    ],
)
def test_a_changed_file_changes_the_table(copied: Path, name: str, path: list[Any], value: Any) -> None:
    before = table(copied)
    change(copied / f"{name}.json", path, value)
    assert table(copied) != before


def test_a_document_has_the_table_at_its_place(copied: Path) -> None:
    text = "before\n<!-- claims -->\nold\n<!-- end -->\nafter\n"
    filled = fill(text, copied)
    assert filled == f"before\n<!-- claims -->\n{table(copied)}\n<!-- end -->\nafter\n"
    assert fill(filled, copied) == filled
    change(copied / "feed.json", ["rows", 0, "share"], 0.9)
    assert fill(filled, copied) != filled


def test_the_counts_are_those_of_the_table() -> None:
    verdicts = [line.rpartition(" | ")[2].strip(" |*") for line in table(EVIDENCE).splitlines()[2:]]
    head, _, *rows, last = counts(EVIDENCE).splitlines()
    names = head.strip("| ").split(" | ")[1:]
    cells = [row.strip("| ").split(" | ")[1:] for row in (*rows, last)]
    for place, name in enumerate(names):
        column = [0 if cell[place] == "–" else int(cell[place].strip("*")) for cell in cells]
        assert sum(column[:-1]) == column[-1] == verdicts.count(name)


def test_a_document_has_the_counts_at_their_place(copied: Path) -> None:
    text = "<!-- claims counts -->\n<!-- end -->\n"
    assert fill(text, copied) == f"<!-- claims counts -->\n{counts(copied)}\n<!-- end -->\n"
    with pytest.raises(ValueError, match=r"there is no table of claims 'by heart'"):
        fill("<!-- claims by heart -->\n<!-- end -->\n", copied)
