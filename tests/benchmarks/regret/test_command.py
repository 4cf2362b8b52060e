"""The command: what it remembers, and what it shows."""

from __future__ import annotations

import io
import math
from concurrent.futures import Executor, Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.regret import arms
from benchmarks.regret import command as regret
from benchmarks.regret.plan import Plan, Row, Rows, Run, planned
from tests.benchmarks.regret.rows import row

# ---------------------------------------------------------------------- memory


class AtOnce(Executor):
    """A pool that does what it is given at once."""

    def submit(self, work: Any, *args: Any, **keywords: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(work(*args, **keywords))
        return future


SMALL = Plan(
    ("quadratic",),
    ("adamw",),
    seeds=1,
    arms=("default-onecycle",),
    schedules=("wsd",),
    starts={"adamw": (-4, -3, -2)},
    extensions=0,
    steps=5,
)


def complete(plan: Plan, path: Path, deadline: float = math.inf) -> list[Run]:
    asked = []

    def work(run: Run) -> Row:
        asked.append(run)
        # A new loss every time would show in the rows if something were run twice.
        return {**row(run.arm, run.seed, 1.0 + len(asked), lr=run.lr), **asdict(run)}

    regret.complete(plan, Rows(path), AtOnce(), work, at_once=2, deadline=deadline, say=lambda _: None)
    return asked


def test_what_is_in_the_rows_file_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows.jsonl"
    first = complete(SMALL, path)
    assert len(first) == 4
    assert complete(SMALL, path) == []
    kept = path.read_text()
    # More is asked for: the rest is run, what was there stays.
    wider = complete(replace(SMALL, seeds=2), path)
    assert len(wider) == 4
    assert path.read_text().startswith(kept)
    # Another size is another run.
    assert len(complete(replace(SMALL, steps=6), path)) == 4


def test_a_torn_last_line_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    complete(SMALL, path)
    whole = path.read_text()
    path.write_text(whole[:-20])
    assert len(complete(SMALL, path)) == 1
    assert len(path.read_text().splitlines()) == 4
    assert len(Rows(path).finished) == 4


def test_a_broken_line_elsewhere_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("not a run\n")
    with pytest.raises(ValueError, match=r"rows.jsonl: line 1: expected the result of a run"):
        Rows(path)


def test_a_run_that_raised_is_tried_again_and_then_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    run = planned(SMALL, {})[0]
    Rows(path).add(arms.failure(run, ValueError("no such thing")))
    again = Rows(path)
    assert (again.failed[run]["error"], run in again.finished) == ("ValueError: no such thing", False)
    assert run in complete(SMALL, path)
    assert not Rows(path).failed


def test_rows_of_other_files_are_taken_over_and_left_alone(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl"
    complete(replace(SMALL, seeds=2), theirs)
    theirs.write_text(theirs.read_text() + '{"torn')
    kept = theirs.read_text()
    run = planned(SMALL, {})[0]
    mine = {**row("sweep", 0, 7.0, lr=run.lr), **asdict(run)}
    Rows(ours).add(mine)
    done = Rows(ours)
    assert done.merge(theirs) == 7
    assert done.merge(theirs) == 0
    assert done.finished[run] == mine, "what we ran ourselves counts"
    assert theirs.read_text() == kept
    assert len(ours.read_text().splitlines()) == 1, "nothing is copied"
    failed = Rows(None)
    failed.add(arms.failure(run, ValueError("no")))
    failed.merge(theirs)
    assert run in failed.finished
    assert not failed.failed


# ---------------------------------------------------------------------- what is shown


def test_the_table_shows_every_arm_and_the_goals(result: dict[str, Any]) -> None:
    console = Console(width=220, file=io.StringIO())
    with console.capture() as shown:
        console.print(regret.table(result))
    text = shown.get()
    assert "charlm adamw" in text
    assert "∞" in text
    assert "still missing" in text
    assert "AutoLR in detail" in text
    assert "goal: nothing ends worse than it began: met: 0 of 6" in text
    assert result["excess"]["pairs"][0]["workload"] == "charlm"
