"""One number of a JSON file: the way to it, what is done to it, how it is written, and what leads nowhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tools.quote import fill

RESULT: dict[str, Any] = {
    "machine": {"date": "2026-11-16T08:20:00+00:00"},
    "share": 0.0362,
    "loss": -0.8455,
    "nothing": -0.0004,
    "count": 1234567,
    "lost": None,
    "met": True,
    "goals": {"worst at most 5. %": {"measured": 8.037}},
    "rows": [
        {"model": "small", "optimizer": "AdamW", "lr": 0.001, "cost": [1.0, 2.0]},
        {"model": "small", "optimizer": "SGD", "lr": 0.1, "cost": [3.0, 4.0]},
        {"model": "the large one", "optimizer": "SGD", "lr": 0.1, "cost": [5.0, 7.0]},
    ],
}


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    (tmp_path / "made-up.json").write_text(json.dumps(RESULT), encoding="utf-8")
    return tmp_path


def shown(mark: str, evidence: Path) -> str:
    before, after = f"It is <!-- number: made-up {mark} -->", "<!-- end --> here."
    filled = fill(f"{before}old{after}", evidence)
    assert filled.startswith(before)
    assert filled.endswith(after)
    return filled.removeprefix(before).removesuffix(after)


def test_a_number_stands_in_its_place(evidence: Path) -> None:
    for mark, text in [
        ("loss .1f", "−0.8"),
        ("loss abs .1f", "0.8"),
        ("loss *100 +.0f", "−85"),
        ("nothing +.2f", "0.00"),
        ("share .1%", "3.6 %"),
        ("share +.1%", "+3.6 %"),
        ("count ,d", "1,234,567"),
        ("count /1e6 .2f", "1.23"),
        ("count .3g", "1.23e+06"),
        ("machine.date .10s", "2026-11-16"),
        ('goals["worst at most 5. %"].measured .1f', "8.0"),
        ("rows[0].cost.1 .0f", "2"),
        ("rows[-1].cost[1] .0f", "7"),
        ("rows.2.cost.0 .0f", "5"),
        ("rows[model=small,optimizer=SGD].cost.0 .0f", "3"),
        ("rows[lr=1e-3].cost.0 .0f", "1"),
        ("rows[model=the large one].cost.0 .0f", "5"),
        ("rows[*].cost.0 max .0f", "5"),
        ("rows[optimizer=SGD,*].cost.0 mean .1f", "4.0"),
        ("rows[optimizer=SGD,*].cost[*] median .1f", "4.5"),
        ("rows len d", "3"),
        ("rows[0].cost sum -1 .0f", "2"),
    ]:
        assert shown(mark, evidence) == text


def test_a_mark_that_leads_nowhere_says_why(evidence: Path) -> None:
    for mark, why in [
        ("loss", "a mark is FILE PATH"),
        ("lozz .1f", "the top of the file has no 'lozz': it has 'machine', 'share'"),
        ("machine.time .1f", "machine has no 'time': it has 'date'"),
        ("rows[5].lr .1f", "rows is a list of 3, which has no '5'"),
        ("rows.lr .1f", "rows is a list of 3, which has no 'lr'"),
        ("loss.mean .1f", "loss is -0.8455, which has no 'mean'"),
        ("loss[*] .1f", "loss is -0.8455, of which nothing can be chosen"),
        (
            "rows[optimizer=SGD].lr .1f",
            "2 entries of rows are [optimizer=SGD], not one; they are told apart by",
        ),
        ("rows[optimizer=sgd].lr .1f", "0 entries of rows"),
        ("rows[optimizer=sgd,*].lr max .1f", "max is of several values"),
        ("rows[*].lr .1f", "say which of them, or min, max, mean"),
        ("lost .1f", "lost is no number but null"),
        ("met .1f", "met is no number but True"),
        ("machine.date .1f", "machine.date is no number but '2026"),
        ("loss s", "'s' is for words"),
        ("loss .1x", "'.1x' is no format"),
        ("loss twice .1f", "'twice' is none of abs"),
    ]:
        text = f"One\ntwo <!-- number: made-up {mark} -->old<!-- end -->"
        with pytest.raises(ValueError, match=r"docs/page\.md, line 2, <!-- number: made-up") as raised:
            fill(text, evidence, "docs/page.md")
        assert f"<!-- number: made-up {mark} -->: " in str(raised.value)
        assert why in str(raised.value)
