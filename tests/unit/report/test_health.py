"""Every fault that a history shows is a sentence with a fix; a healthy run has none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from hdet.report.health import examine
from tests.browser.histories import opening, sync

Lines = list[dict[str, Any]]


def run(syncs: int = 200, **opened: Any) -> Lines:
    return [opening(**opened), *(sync(i) for i in range(syncs)), {"kind": "end", "step": 10 * syncs}]


def test_a_healthy_run_is_called_so() -> None:
    found = examine(run())
    assert [finding.level for finding in found] == ["good"]
    assert str(found[0]) == "the run was healthy."


def changed(lines: Lines, at: int, **more: Any) -> Lines:
    lines[at] = {**lines[at], **more}
    return lines


def warning(text: str) -> dict[str, Any]:
    return {"kind": "said", "level": "warning", "text": text}


def rising(lines: Lines) -> Lines:
    for line in lines:
        for seen in line.get("horizon", ()):
            seen["loss_mean"] = seen["loss_previous"] = 1.0 + line["step"] / 1000
    return lines


def lost(lines: Lines) -> Lines:
    for line in lines:
        for seen in line.get("horizon", ()):
            seen["loss_mean"] = None
    return lines


def dear(lines: Lines) -> Lines:
    for line in lines:
        if "kind" not in line:
            line["seconds"], line["sync_seconds"] = (
                line["step"] / 10,
                line["step"] / 40,
            )  # 200 and 50 seconds in all
    return lines


@pytest.mark.parametrize(
    ("fault", "level", "text", "fix"),
    [
        (lambda: run(120)[:-1], "warning", "last seen at step 1,200 of 2,000", "resume it from its last"),
        (lambda: rising(run()), "error", "nothing was learnt: the loss went from", "check that the opt"),
        (lambda: lost(run()), "error", "no loss was finite", "look at the data"),
        (lambda: dear(run()), "warning", "probing took 25 % of the time", "smaller batches"),
        (
            lambda: changed(run(), 50, events=["replica 2 is left out of the mean: its loss is nan"]),
            "error",
            "replica lost at step 500: replica 2",
            "look at its data",
        ),
        (
            lambda: [*run()[:60], warning("3 optimizers slept"), *run()[60:]],
            "warning",
            "warning at step 590: 3 optimizers slept",
            "",
        ),
        (lambda: [*run(), {"kind": "lost", "lines": 7}], "warning", "7 lines of the history could", "disk"),
        (
            lambda: [*run(100)[:-1], opening(resumed_at=600), *run()[61:]],
            "warning",
            "1 resume repeated 400 steps",
            "save more often",
        ),
        (lambda: [], "error", "no sync has been recorded", "until the first window ends"),
    ],
)  # fmt: skip
def test_a_fault_is_a_sentence_with_a_fix(
    fault: Callable[[], Lines], level: str, text: str, fix: str
) -> None:
    found = examine(fault())
    named = [finding for finding in found if text in finding.text]
    assert len(named) == 1, found
    assert named[0].level == level
    assert fix in named[0].fix
    assert all(finding.level != "good" for finding in found)


def test_the_worst_comes_first_and_a_kind_is_told_once() -> None:
    lines = run()[:-1]
    for at in (20, 40, 60):
        lines[at]["events"] = ["replica 1 is left out of the mean: its loss is nan"]
    lines.append({"kind": "lost", "lines": 1})
    found = examine(lines, torn=2)
    assert "2 lines of the history cannot be read" in [finding.text for finding in found]
    assert [finding.level for finding in found] == sorted(finding.level for finding in found)
    assert sum("replica lost" in finding.text for finding in found) == 1
    assert "(3 times)" in found[0].text
