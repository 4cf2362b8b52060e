"""Runs in a pool: interrupted anywhere, nothing is run twice."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.pool import complete
from benchmarks.reproduce.analysis import table
from benchmarks.reproduce.plan import Row, Rows, Run, planned
from tests.benchmarks.reproduce.rows import PLAN, all_done, made_up


def do(path: Path, work: Callable[[Run], Row], deadline: float = math.inf) -> Rows:
    done = Rows(path)
    with ThreadPoolExecutor(1) as pool:
        complete(
            lambda: planned(PLAN, done.finished),
            done,
            pool,
            work,
            at_once=2,
            deadline=deadline,
            say=lambda _: None,
            told=str,
        )
    return done


def test_interrupted_anywhere_nothing_is_run_twice_and_the_table_is_the_same(tmp_path: Path) -> None:
    asked: list[Run] = []

    def work(run: Run) -> Row:
        asked.append(run)
        if len(asked) in (7, 30):
            raise KeyboardInterrupt
        return made_up(run)

    path = tmp_path / "rows.jsonl"
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            do(path, work)
    done = do(path, work)
    # Two are in flight at a time; whatever else was done is on disk.
    assert len(done.finished) + 2 <= len(asked) <= len(done.finished) + 2 * 2
    assert table(PLAN, done.finished) == table(PLAN, all_done(PLAN))
    assert len(path.read_text().splitlines()) == len(done.finished)
    so_far = len(asked)
    assert do(path, work).finished == done.finished
    assert len(asked) == so_far
    assert do(tmp_path / "none.jsonl", work, deadline=time.monotonic()).finished == {}
