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
    faults = re.findall(r"^- (.+?) → (.+?)\.(?: (`tests/.+))?$", TEXT, re.MULTILINE)
    assert len(faults) > 50
    assert len(faults) == TEXT.count(" → ") - TEXT.count("4 → 2 → 3 → 1") * 3
    for fault, promised, test in faults:
        if "::" not in test:
            assert "**open**" in promised or promised.startswith("limit"), fault
