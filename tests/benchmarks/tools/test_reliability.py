"""docs/reliability.md names tests that are there, and a row without one promises nothing new."""

from __future__ import annotations

import ast
import re

from tests import ROOT

TEXT = (ROOT / "docs" / "reliability.md").read_text(encoding="utf-8")


def test_every_test_that_is_named_is_there() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", TEXT)
    assert len(named) > 40
    missing = []
    for file, function in named:
        path = ROOT / file
        tree = ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.Module([], [])
        if function not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}:
            missing.append(f"{file}::{function}")
    assert missing == []


def test_every_row_has_a_test_or_does_not_promise_anything_new() -> None:
    rows = [line.strip("| ").split(" | ") for line in TEXT.splitlines() if line.startswith("| ")]
    faults = [row for row in rows if len(row) == 5 and row[0] not in ("fault", "---")]
    assert len(faults) > 50
    for fault, _, promised, test, _ in faults:
        if "::" not in test:
            assert "**open**" in promised or promised.startswith(("limit", "the same")), fault
