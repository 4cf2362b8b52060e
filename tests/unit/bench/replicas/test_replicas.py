"""What more replicas buy, and what stacking them gains: plans, arithmetic, and one small run of each."""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from hdet.bench.replicas import command as replicas
from hdet.bench.replicas import runs as replicas_runs
from hdet.bench.replicas.command import Plan, analyse, planned, tuned_lr
from hdet.bench.replicas.runs import ARMS, Run
from hdet.bench.rows import Row
from hdet.bench.speed import stacked

PLAN = Plan(sizes=(2, 4), seeds=2, steps=40, exponents=(-4, -2))


def made_up(run: Run, held_out: float | None = None) -> Row:
    """The sweep is won at 0.01; who starts at a tenth ends at 1.3 and 1.5."""
    losses = {0.01: 1.0, 0.1: 1.4, 0.001: 1.3, None: 1.05}
    loss = losses[run.lr] + 0.2 * run.seed if held_out is None else held_out
    decisions = [[0.01, 0.02], [0.03, 0.02]] if run.arm.startswith("published") else []
    return {**asdict(run), "held_out": loss, "init": 2.0 + 0.2 * run.seed, "decisions": decisions}


def all_done(plan: Plan) -> dict[Run, Row]:
    finished: dict[Run, Row] = {}
    while todo := [run for run in planned(plan, finished) if run not in finished]:
        finished |= {run: made_up(run) for run in todo}
    return finished


# ---------------------------------------------------------------------- the plan


def test_the_sweep_comes_first_and_the_others_start_at_a_tenth_of_its_winner() -> None:
    first = planned(PLAN, {})
    assert {(run.arm, run.lr) for run in first} == {("plain", 0.01), ("plain", 0.1), ("AutoLR", None)}
    assert [run.replicas for run in first] == [4] * 6 + [2] * 6, "the largest first"
    # What one N has found says nothing about another.
    half = {run: made_up(run) for run in first if run.replicas == 4}
    then = [run for run in planned(PLAN, half) if run not in first]
    assert {(run.arm, run.replicas, run.lr) for run in then} == {(arm, 4, 0.001) for arm in ARMS[:3]}
    runs = planned(PLAN, all_done(PLAN))
    assert len(runs) == len(set(runs)) == 2 * 2 * (2 + 1 + 3)


def test_a_plain_run_at_a_tenth_that_the_sweep_holds_is_run_once() -> None:
    plan = replace(PLAN, sizes=(2,), exponents=(-6, -4))
    runs = planned(plan, all_done(plan))
    assert len(runs) == len(set(runs)) == 2 * (2 + 1 + 2)


def test_the_tuned_learning_rate_is_that_of_the_lowest_mean_of_all_seeds() -> None:
    finished = all_done(PLAN)
    assert tuned_lr(PLAN, finished, 2) == 0.01
    one, other = PLAN.over_seeds("plain", 2, 0.01)
    assert tuned_lr(PLAN, {**finished, other: made_up(other, held_out=2.2)}, 2) == 0.1
    diverged = {**made_up(other), "held_out": None}
    assert tuned_lr(PLAN, {**finished, other: diverged}, 2) == 0.1
    assert tuned_lr(PLAN, {run: row for run, row in finished.items() if run != one}, 2) is None


def test_where_every_learning_rate_diverges_there_is_no_line() -> None:
    finished = {
        run: {**row, "held_out": None} if (run.arm, run.replicas) == ("plain", 2) else row
        for run, row in all_done(PLAN).items()
    }
    assert tuned_lr(PLAN, finished, 2) is None
    assert [row["replicas"] for row in analyse(PLAN, finished)["rows"]] == [4]


# ---------------------------------------------------------------------- the arithmetic


def test_regret_is_the_share_of_what_the_tuned_run_gained() -> None:
    finished = all_done(PLAN)
    for seed, run in enumerate(PLAN.over_seeds("published", 2, 0.001)):
        finished[run] = made_up(run, held_out=1.1)
        # The controller's doing: one sync in the second seed, three in the first.
        finished[run]["decisions"] = [[0.0, 0.0]] if seed else [[0.01, 0.02], [0.03, 0.02], [0.05, 0.02]]
    gone = PLAN.over_seeds("published, σ auto", 2, 0.001)[0]
    finished[gone] = {**finished[gone], "held_out": None}
    row, other = analyse(PLAN, finished)["rows"]
    # Held out 1.0 and 1.2, untrained 2.0 and 2.2: the tuned run has gained 1.0 and has 1.1.
    assert (row["replicas"], row["tuned_lr"], row["tuned_loss"]) == (2, 0.01, 1.1)
    regret = row["regret_percent"]
    # 1.3 and 1.5 are 20 and 40 %; t of one degree of freedom is 12.706.
    assert regret["plain"] == {"mean": 30.0, "half_width": pytest.approx(127.06, rel=1e-4), "seeds": 2}
    assert regret["published"] == {"mean": 0.0, "half_width": 0.0, "seeds": 2}
    assert regret["published, σ auto"] == {"mean": None, "half_width": None, "seeds": 2}
    assert regret["AutoLR"]["mean"] == pytest.approx(5.0)
    # (0.09 + 0.06 + 0)/8; differences 0.02, 0.02, 0, 0: √(0.0002/2) = 0.01.
    decision = row["decision"]["published"]
    assert decision == {"mean_percent": pytest.approx(1.875), "deviation_percent": pytest.approx(1.0)}
    assert other["replicas"] == 4


def test_the_deviation_of_a_decision_is_its_noise_and_not_its_trend() -> None:
    draw = random.Random(0)
    plan = replace(PLAN, sizes=(2,), seeds=1)
    finished = all_done(plan)
    (run,) = plan.over_seeds("published", 2, 0.001)
    finished[run]["decisions"] = [[step / 2000 + draw.gauss(0, 0.01)] for step in range(2000)]
    decision = analyse(plan, finished)["rows"][0]["decision"]["published"]
    assert decision["deviation_percent"] == pytest.approx(1.0, rel=0.05)
    assert decision["mean_percent"] == pytest.approx(50, rel=0.01)


def test_an_unfinished_table_shows_what_there_is_and_says_what_is_missing() -> None:
    swept = {run: row for run, row in all_done(PLAN).items() if run.replicas == 4 and run.arm == "plain"}
    swept = {run: row for run, row in swept.items() if run.lr != 0.001}
    result = analyse(PLAN, swept)
    (row,) = result["rows"]
    assert row["regret_percent"]["published"] == {"mean": None, "half_width": None, "seeds": 0}
    # Of 4 replicas AutoLR and three arms, of 2 the sweep and AutoLR; two seeds each.
    assert result["missing_runs"] == 2 * (1 + 3 + 2 + 1)
    row["step_ms"] = [2.0, 1.0]
    assert f"{result['missing_runs']} runs are missing." in replicas.markdown(result)
    assert "| – | – | – | – | – | – | 2.0 (1.0) |" in replicas.markdown(result)


# ---------------------------------------------------------------------- memory


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """To start a process takes longer than the runs."""
    monkeypatch.setattr(replicas, "workers", lambda *_: ThreadPoolExecutor(1))


def test_stopped_and_started_again_nothing_is_run_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_this_process: None
) -> None:
    asked: list[Run] = []
    raises = [3, 5]

    def work(run: Run) -> Row:
        asked.append(run)
        if len(asked) in raises:
            raise KeyboardInterrupt
        return made_up(run)

    def start() -> dict[str, Any]:
        return replicas.run(quick=True, processes=1, rows=tmp_path / "kept" / "rows.jsonl")

    monkeypatch.setattr(replicas, "execute", work)
    monkeypatch.setattr(replicas, "cost", lambda *_, **__: 1.0)
    for _ in raises:
        with pytest.raises(KeyboardInterrupt):
            start()
    result = start()
    assert (result["missing_runs"], len(set(asked))) == (0, 6)
    assert len(asked) == 6 + len(raises), "only what was interrupted is run again"
    again = start()
    assert len(asked) == 6 + len(raises)
    assert again["rows"] == result["rows"]


def test_a_run_that_failed_is_counted_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_this_process: None
) -> None:
    broken = {"AutoLR"}

    def work(run: Run) -> Row:
        return {**asdict(run), "error": "it broke"} if run.arm in broken else made_up(run)

    def start() -> dict[str, Any]:
        return replicas.run(quick=True, processes=1, rows=tmp_path / "rows.jsonl")

    monkeypatch.setattr(replicas, "execute", work)
    monkeypatch.setattr(replicas, "cost", lambda *_, **__: 1.0)
    result = start()
    assert (result["failed"], result["missing_runs"]) == (1, 1)
    assert result["rows"][0]["regret_percent"]["AutoLR"]["mean"] is None
    broken.clear()
    result = start()
    assert (result["failed"], result["missing_runs"]) == (0, 0)


def test_no_time_left_starts_no_run(monkeypatch: pytest.MonkeyPatch, in_this_process: None) -> None:
    monkeypatch.setattr(replicas, "execute", lambda run: pytest.fail("was run"))
    result = replicas.run(quick=True, minutes=0)
    assert (result["rows"], result["missing_runs"]) == ([], 3)


# ---------------------------------------------------------------------- for real


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    """The runs' own task, evaluated on less; in this process."""
    whole = replicas_runs._workload("cpu")
    less = replace(whole, held_out=whole.held_out[:1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replicas_runs, "_workload", lambda device: less)
        patch.setattr(replicas, "workers", lambda *_: ThreadPoolExecutor(1))
        yield


@pytest.fixture(scope="module")
def result(small: None) -> dict[str, Any]:
    return replicas.run(quick=True, processes=1)


def shown(view: Any) -> str:
    """What a table of rich's looks like on a wide screen."""
    printed = io.StringIO()
    Console(width=400, file=printed).print(view)
    return printed.getvalue()


def test_a_quick_run_fills_every_cell(result: dict[str, Any]) -> None:
    assert (result["missing_runs"], result["failed"]) == (0, 0)
    assert result["command"] == "hdet bench replicas --quick"
    (row,) = result["rows"]
    assert (row["replicas"], row["tuned_lr"]) == (2, 0.01)
    regret = {arm: row["regret_percent"][arm]["mean"] for arm in ARMS}
    # A tenth of the best learning rate is too little in so few steps, whoever controls it.
    assert regret["plain"] > 10 > regret["AutoLR"]
    assert regret["published"] == pytest.approx(regret["plain"], abs=2)
    assert regret["published, σ auto"] == pytest.approx(regret["plain"], abs=2)
    assert all(row["decision"][arm]["deviation_percent"] > 0 for arm in ARMS[1:3])
    assert all(ms > 0 for ms in row["step_ms"])
    json.dumps(result, allow_nan=False)


def test_table_and_markdown_show_the_same_cells(result: dict[str, Any]) -> None:
    text = replicas.markdown(result)
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(result["rows"])
    assert len({line.count("|") for line in lines}) == 1
    assert "–" not in "".join(lines)
    assert all(caveat in text for caveat in result["caveats"])
    assert "40 steps, 16 samples a replica, a sync every 10 steps, 1 seed." in text
    printed = shown(replicas.table(result))
    for line, row in zip(lines[2:], result["rows"], strict=True):
        cells = line.strip("| ").split(" | ")
        assert cells[:2] == [str(row["replicas"]), f"{row['tuned_loss']:.4f} @ {row['tuned_lr']:g}"]
        assert all(cell in printed for cell in cells)


def test_a_run_is_the_same_again_and_another_with_another_seed(small: None) -> None:
    run = Run("published", 2, 0.01, seed=0, steps=20)
    row = replicas_runs.execute(run)
    assert len(row["decisions"]) == 2
    assert {len(decision) for decision in row["decisions"]} == {4}, "one for each group of parameters"
    assert replicas_runs.execute(run) == row
    assert replicas_runs.execute(replace(run, seed=1))["held_out"] != row["held_out"]
    assert row["held_out"] < row["init"]


def test_n_replicas_see_n_times_the_samples_and_no_seed_those_of_another() -> None:
    def some(replicas: int, seed: int) -> torch.Tensor:
        return next(replicas_runs._batches(Run("plain", replicas, 0.01, seed)))[0]

    assert (len(some(2, 0)), len(some(4, 0))) == (32, 64)
    assert torch.equal(some(4, 0)[:32], some(2, 0))
    assert not torch.equal(some(2, 1), some(2, 0))


def test_an_arm_that_there_is_not_is_an_error_and_no_result() -> None:
    row = replicas_runs.execute(Run("tuned", 2, 0.01, 0))
    assert "arm must be one of 'plain', 'published'" in row["error"]
    assert "got 'tuned'" in row["error"]


# ---------------------------------------------------------------------- stacked against processes


def timed(way: str, replicas: int, gradients: str, per_second: float, model: str = "lm, 30 k") -> Row:
    row = {"model": model, "way": way, "replicas": replicas, "gradients": f"{gradients} gradients"}
    return {**row, "step_ms": 12.34, "step_ms_iqr": [12.1, 12.6], "samples_per_second": per_second}


TIMED = [
    timed("stacked", 2, "shared", 9000.0),
    timed("stacked", 8, "shared", 3000.0),
    timed("stacked", 8, "own", 4000.0),
    timed("processes", 8, "shared", 500.0),
    timed("processes", 8, "own", 2000.0),
    timed("processes, MPS", 8, "own", 2500.0),
    timed("stacked, measured again", 8, "shared", 5000.0),
    timed("stacked, measured again", 8, "own", 6000.0),
    timed("stacked", 8, "own", 70.0, model="lm, 800 k"),
    timed("processes", 8, "own", 100.0, model="lm, 800 k"),
]


def test_like_is_compared_with_like_and_both_measurements_count() -> None:
    assert stacked._ratios(TIMED, 8) == {
        ("lm, 30 k", "processes", "shared gradients"): 8.0,
        ("lm, 30 k", "processes", "own gradients"): 2.5,
        ("lm, 30 k", "processes, MPS", "own gradients"): 2.0,
        ("lm, 800 k", "processes", "own gradients"): 0.7,
    }
    assert stacked._ratios(TIMED, 2) == {}


def test_the_table_of_stacked_replicas_shows_every_way_and_goal() -> None:
    goals = {
        "lm, 30 k: stacked at least 3 × processes, shared gradients": {"measured": 8.0, "met": True},
        "lm, 30 k: stacked at least 3 × processes, own gradients": {"measured": 2.5, "met": False},
    }
    result: dict[str, Any] = {"goals": goals, "rows": TIMED}
    text = stacked.markdown(result)
    assert text.endswith(
        "Throughput of stacked replicas over that of processes: lm, 30 k, processes, shared gradients: "
        "**× 8.00**; lm, 30 k, processes, own gradients: **× 2.50**."
    )
    lines = text.splitlines()
    assert "| lm, 30 k | 8 | shared gradients | processes | 12.3 ms (12.1–12.6) | 500 |" in lines
    assert "| lm, 30 k | 2 | shared gradients | stacked | 12.3 ms (12.1–12.6) | 9,000 |" in lines
    # Ways stand together that are to be compared.
    assert [re.split(r" \| ", line)[3] for line in lines[7:10]] == [
        "stacked",
        "processes",
        "stacked, measured again",
    ]
    view = stacked.table(result)
    assert view.row_count == len(TIMED) + len(goals)
    printed = shown(view)
    assert re.findall(r"\b(?:met|missed)\b", printed) == ["met", "missed"]


def test_a_quick_measurement_of_both_ways() -> None:
    try:
        result = stacked.run(quick=True)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    assert result["command"] == "hdet bench stacked --quick"
    ways = [(row["way"], row["gradients"]) for row in result["rows"]]
    assert len(ways) == len(set(ways)) == 3 * 2
    for row in result["rows"]:
        assert row["replicas"] == 2
        low, high = row["step_ms_iqr"]
        assert 0 < low <= row["step_ms"] <= high
        # Eight samples a replica.
        assert row["samples_per_second"] == pytest.approx(2 * 8 * 1e3 / row["step_ms"], rel=1e-3)
    goals = list(result["goals"].values())
    ratios = list(stacked._ratios(result["rows"], 2).values())
    assert [goal["measured"] for goal in goals] == [pytest.approx(ratio, rel=2e-3) for ratio in ratios]
    assert [goal["met"] for goal in goals] == [goal["measured"] >= 3 for goal in goals]
    json.dumps(result, allow_nan=False)
