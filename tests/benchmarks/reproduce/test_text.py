"""Tables and figures in words: as text and Markdown."""

from __future__ import annotations

from typing import Any

from benchmarks.reproduce.text import said


def test_what_is_printed_holds_the_table(result: dict[str, Any]) -> None:
    text = said(result)
    lines = text.splitlines()
    assert sum(line.startswith("Baseline-High") for line in lines) == 4, "losses and AUC, in both blocks"
    low = next(line for line in lines if line.startswith("Baseline-Low"))
    assert "3.294" in low
    assert "1.2100 ± 0.0248" in low
    assert "0 of 3" in low
    high = [line for line in lines if line.startswith("Baseline-High")][2]
    assert "4.169†" in high
    assert "not finite†" in high
    assert high.split("3 of 3")[1].strip() == "81"
    assert "It is made up." in text
    assert "Crashed is who crashed." in text
