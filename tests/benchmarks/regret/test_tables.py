"""The tables of excess."""

from __future__ import annotations

from typing import Any

from benchmarks.regret.excess import TRIALS, compare
from benchmarks.regret.tables import detail, matrix
from tests.benchmarks.regret.test_excess import OURS, SWEEP, lost, run


def found(*more: Any) -> dict[str, Any]:
    return compare([*SWEEP, *OURS, *more])


def test_a_line_for_each_pair_and_the_summary_of_each_measure() -> None:
    headings, lines = matrix(
        found(lost("schedule-free", 0), run("prodigy", 0, 1.8)), lambda cell: f"<{cell}>"
    )
    assert headings == ["workload, optimizer", "tuned: loss @ LR", "Prodigy", "Schedule-Free", "AutoLR"]
    assert lines[0][:2] == ["quadratic adamw", "0.9 @ 1 wsd"]
    assert lines[0][2:] == ["125 (80.0)", "∞ (∞)", "<1.87 ± 1.75 (3.24)>"]
    assert [line[0] for line in lines[1:]] == [
        "mean, chosen over chosen",
        "worst, chosen over chosen",
        "mean, both as they end",
        "worst, both as they end",
        "mean, chosen over the sweep as it ends",
        "worst, chosen over the sweep as it ends",
    ]
    assert lines[1][-2:] == ["∞", "1.87"]


def test_the_detail_says_what_the_loss_is_worth() -> None:
    headings, lines = detail(found())
    assert len(headings) == 6 + len(TRIALS) == len(lines[0])
    assert all(len(line) == len(headings) for line in lines)
    assert lines[0][1:4] == ["1.87 ± 1.75", "3.24 ± 3.89", "-16.8 ± 3.89"]
    assert lines[0][4].startswith("× 1.0")
    better = detail(compare([*SWEEP, run("autolr", 0, 0.5)]))[1][0]
    assert better[4:6] == ["× 1", "all"]
