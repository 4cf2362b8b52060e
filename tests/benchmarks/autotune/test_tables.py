"""The words of the table."""

from __future__ import annotations

from benchmarks.autotune.analysis import analyse
from benchmarks.autotune.plan import AUTOTUNE, PBT
from benchmarks.autotune.tables import HEADINGS, cells, said, title
from tests.benchmarks.autotune.test_analysis import rows_of_two_seeds


def test_a_line_says_all_that_is_asked() -> None:
    found = analyse(rows_of_two_seeds(), {"a": 100})
    (task,) = found["tasks"]
    lines = {line["arm"]: cells(line) for line in task["arms"]}
    assert all(len(line) == len(HEADINGS) for line in lines.values())
    assert lines[AUTOTUNE][2].startswith("+2.5 ± 19.1")
    assert lines[AUTOTUNE][3] == "0.6"
    assert lines[PBT][3:] == ["never", "8", "9 (3)", "2"]
    assert title(task).startswith("a: the truth is 3.0000 ± ")
    assert "best of 1 at lr 0.1, weight decay 0" in title(task)


def test_the_verdicts_are_sentences() -> None:
    sentences = [*said(analyse(rows_of_two_seeds(), {"a": 100})["verdicts"])]
    assert sentences == [
        "AutoTune is ahead of PBT on 1 of 1 tasks, clearly on 1, on average by 10.0 %.",
        "AutoTune is within 3 % of the truth on 1 of 1 tasks, +2.5 % on average.",
        "PBT is within 3 % of the truth on 0 of 1 tasks, +15.0 % on average.",
    ]
    assert [*said({"autotune_ahead_of": {}, "near_the_truth": {}})] == ["AutoTune has not been run."]
