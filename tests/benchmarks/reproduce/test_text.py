"""Tables and figures in words: as text and Markdown."""

from __future__ import annotations

from typing import Any

from benchmarks.reproduce.analysis import curves
from benchmarks.reproduce.plan import CONFIGURATIONS
from benchmarks.reproduce.text import markdown, said
from tests.benchmarks.reproduce.rows import PLAN, all_done, with_head


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


def cells_of(text: str) -> list[list[str]]:
    """The rows of all Markdown tables in a text, headings included."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_markdown_of_a_table(result: dict[str, Any]) -> None:
    text = markdown({**result, "missing_runs": 7})
    rows = cells_of(text)
    assert len(rows) == 2 * (1 + len(CONFIGURATIONS))
    assert len({len(row) for row in rows}) == 1
    assert sum(line.startswith("|---") for line in text.splitlines()) == 2
    found = dict(zip(rows[0], rows[1], strict=True))
    assert (found["configuration"], found["LR"], found["paper"]) == ("Baseline-Low", "0.0001", "3.294")
    assert (found["training loss"], found["crashed"], found["at step"]) == ("1.2100 ± 0.0248", "0 of 3", "–")
    crashed = dict(zip(rows[0], rows[len(CONFIGURATIONS) + 3], strict=True))
    assert (crashed["configuration"], crashed["training loss"]) == ("Baseline-High", "not finite†")
    assert (crashed["paper"], crashed["crashed"], crashed["at step"]) == ("4.169†", "3 of 3", "81")
    for block in result["blocks"]:
        assert f"{block['title'][1:]}:" in text
    assert text.endswith(
        "Who knows the base rates alone has a loss of 1.3000. 7 runs are still missing: start the command "
        "again. Crashed is who crashed. It is made up."
    )


def test_markdown_of_the_losses_says_who_crashed() -> None:
    text = markdown(with_head("figure2", curves(PLAN, all_done(PLAN))))
    paper, crash = text.split("\n\n")[1::2]
    assert paper.startswith("Baseline-Low at 0.0001 crashed in 0 of 3 seeds. Baseline-High at 0.0009 crashed")
    assert "3 of 3" not in paper
    for line in ("Baseline-High", "Warm-Init", "HDET (full)"):
        assert f"{line} at 0.3162 crashed in 3 of 3 seeds." in crash
    assert "Baseline-Low at 0.03513 crashed in 0 of 3 seeds." in crash
    assert cells_of(text) == []
