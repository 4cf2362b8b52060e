"""What a stranger meets first stays short, and says what one must know."""

from __future__ import annotations

import re

from tests import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 150


def test_what_one_must_know_stands_there() -> None:
    known = README[README.index("## What you must know") :]
    for rule in (
        "after the process group",
        r"One `auto\.step\(\)` for each optimizer step",
        "Restore in this order",
        r"\*\*4 steps at least",
        "The probe is not a validation set",
    ):
        assert re.search(rule, known), rule


def test_one_picture_one_chart_and_one_table_of_evidence() -> None:
    assert len(re.findall(r"^!\[", README, re.MULTILINE)) == 2
    assert README.count("<!-- quote: ") == 1


def test_losses_stand_beside_wins() -> None:
    assert "**AutoLR loses**" in README
    assert "loses" in README[README.index("<!-- end -->") :]
