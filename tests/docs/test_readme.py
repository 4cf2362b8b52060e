"""What a stranger meets first stays short, and says what one must know."""

from __future__ import annotations

import re

from tests import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
START = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 110


def test_what_one_must_know_stands_one_link_away() -> None:
    assert "(docs/start.md#what-one-must-know)" in README
    known = START[START.index("## What one must know") :]
    for rule in (
        "after the process group",
        r"One `auto\.step\(\)` for each optimizer step",
        "Restore in this order",
        r"\*\*4 steps at least",
        "The probe is not a validation set",
    ):
        assert re.search(rule, known), rule


def test_one_chart_and_no_table_of_evidence() -> None:
    assert len(re.findall(r"^!\[", README, re.MULTILINE)) == 1
    assert "<!-- quote: " not in README


def test_costs_and_losses_stand_beside_wins_with_their_numbers() -> None:
    parts = re.split(
        r"^\*\*(Good for|Costs|Not for)\*\*$", README.partition("## Try it")[0], flags=re.MULTILINE
    )
    found = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert list(found) == ["Good for", "Costs", "Not for"]
    for name, text in found.items():
        assert text.count("<!-- number: ") >= 3, name
    assert re.search(r"\*\*Never run:\*\* NCCL", found["Not for"])
