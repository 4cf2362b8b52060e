"""The command: what it remembers, and what it shows."""

from __future__ import annotations

import io
import json
import math
import time
from concurrent.futures import Executor, Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hdet.bench.regret import arms
from hdet.bench.regret import command as regret
from hdet.bench.regret.analysis import LOOKED_AT, grid, interval
from hdet.bench.regret.plan import Plan, Row, Rows, Run, planned
from hdet.bench.workloads import WORKLOADS
from tests.unit.bench.regret.rows import row
from tools import quote

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
    arms=("default",),
    misled=(),
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


def test_after_the_deadline_nothing_is_started(tmp_path: Path) -> None:
    assert complete(SMALL, tmp_path / "rows.jsonl", deadline=time.monotonic()) == []


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


def test_a_table_can_be_made_of_other_files_without_a_run(tmp_path: Path) -> None:
    theirs, plan = tmp_path / "theirs.jsonl", Plan(("quadratic",), ("lion",), device="cuda", scale="gpu")
    for run in planned(plan, {}):
        Rows(theirs).add({**row(run.arm, run.seed, 1.0, lr=run.lr), **asdict(run)})
    result = regret.run(
        device="cuda",
        workloads=["quadratic"],
        optimizers=["lion"],
        rows=tmp_path / "none.jsonl",
        merge=[theirs],
        minutes=0,
    )
    (pair,) = result["excess"]["pairs"]
    assert (pair["workload"], pair["optimizer"]) == ("quadratic", "lion")
    assert result["command"] == "hdet bench regret --device cuda --workloads quadratic --optimizers lion"
    assert not (tmp_path / "none.jsonl").exists()
    with pytest.raises(ValueError, match="optimizers must be some of adamw, sgd, lion, muon, got adam"):
        regret.run(optimizers=["adam"])


# ---------------------------------------------------------------------- what is shown


def test_what_was_looked_at_is_said() -> None:
    assert set(LOOKED_AT) < set(regret.COMPARED) < set(WORKLOADS)
    assert set(regret.COMPARED) - set(LOOKED_AT) == {"newsfeed", "charlm-long"}


def test_the_result_holds_both_tables(result: dict[str, Any]) -> None:
    console = Console(width=220, file=io.StringIO())
    with console.capture() as shown:
        console.print(regret.table(result, "excess"))
    text = shown.get()
    # These rows tell no chosen loss, like those of old files.
    assert "Excess over the tuned sweep, %, both as they end; " in text
    assert "AutoLR in detail" in text
    assert "goal: nothing ends worse than it began: met: 0 of 8" in text
    assert result["excess"]["pairs"][0]["workload"] == "charlm"
    assert "Normalised regret" not in text


def test_the_table_can_be_made_from_the_rows_it_keeps(result: dict[str, Any]) -> None:
    kept = json.loads(json.dumps(result, allow_nan=False))
    assert regret.recomputed({**kept, "pairs": [], "overall": {}, "goals": {}}) == kept
    assert [pair["workload"] for pair in kept["pairs"]] == ["charlm", "newsfeed"]


def test_the_table_shows_every_arm(result: dict[str, Any]) -> None:
    console = Console(width=160, file=io.StringIO())
    with console.capture() as shown:
        console.print(regret.table(result))
    text = shown.get()
    assert "charlm adamw" in text
    assert "diverged 3/3" in text
    assert "still missing" in text
    assert "goal: never diverges: met: 0 of 8" in text
    headings, lines = grid(result, lambda cell: f"<{cell}>")
    assert headings[-1] == "AutoLR"
    assert all(line[-1].startswith("<") for line in lines[:-3])
    assert [line[0] for line in lines[-3:]] == ["mean", "worst", "mean, of training loss"]


def test_the_quote_is_the_same_table(tmp_path: Path, result: dict[str, Any]) -> None:
    (tmp_path / "regret.json").write_text(json.dumps(result))
    text = quote.fill("<!-- quote: regret -->\n<!-- end -->", tmp_path)
    mean, half = interval([100 * (1.5 - best) / (2 - best) for best in (1.0, 1.2, 0.8)])
    assert f"| charlm adamw | 1 @ 0.1 wsd | {mean:.1f} ± {half:.1f} |" in text
    assert text.count("**") == 2 * 2 + 2
    assert "chosen while looking at charlm, and confirmed on newsfeed." in text
    assert "KuaiRand rows are restricted" in text
    assert "built at 1e-8 instead" in text
    assert "95 % confidence interval" in text


def test_the_quote_of_excess_is_its_table(tmp_path: Path, result: dict[str, Any]) -> None:
    (tmp_path / "regret.json").write_text(json.dumps(result))
    text = quote.fill("<!-- quote: regret excess -->\n<!-- end -->", tmp_path)
    mean, half = interval([100 * (1.5 / best - 1) for best in (1.0, 1.2, 0.8)])
    assert f"| charlm adamw | 1 @ 0.1 wsd | {mean:.1f} ± {half:.1f} |" in text
    assert "| worth random rates |" in text
    assert "made before chosen losses were kept" in text
    assert "Normalised regret" not in text
