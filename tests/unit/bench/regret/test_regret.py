"""The regret benchmark: its arithmetic, its order, its memory, and what it shows."""

from __future__ import annotations

import io
import json
import math
import time
import xml.etree.ElementTree as ElementTree
from concurrent.futures import Executor, Future
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from hdet.bench.regret import arms
from hdet.bench.regret import command as regret
from hdet.bench.regret.analysis import analyse, grid, interval, regrets, tuned
from hdet.bench.regret.chart import chart
from hdet.bench.regret.plan import ARMS, Plan, Row, Rows, Run, next_half_decade, planned, published
from tools import quote


def row(arm: str, seed: int, held_out: float, *, lr: float | None = None, **changes: Any) -> Row:
    """A run that came from 2 to ``held_out``, and in training from 4 to twice of it."""
    schedule = ARMS.get(arm, "wsd")
    run = asdict(Run(changes.pop("workload", "quadratic"), "adamw", arm, lr, schedule, seed))
    found = {"init": 2.0, "init_train": 4.0, "seconds": 1.0, "reached": lr or 0.1, "diverged": False}
    return {**run, "held_out": held_out, "train": 2 * held_out, **found, **changes}


def sweep(lr: float, *losses: float, **changes: Any) -> list[Row]:
    return [row("sweep", seed, loss, lr=lr, **changes) for seed, loss in enumerate(losses)]


BEST = sweep(0.1, 1.0, 1.2, 0.8)
OTHERS = sweep(0.01, 1.5, 1.5, 1.5) + sweep(1.0, 1.1, 1.1, 1.1)


# ---------------------------------------------------------------------- analysis


def test_tuned_is_the_lowest_mean_over_seeds() -> None:
    best = tuned(BEST + OTHERS)
    assert best is not None
    assert (best.lr, best.schedule, best.mean("held_out")) == (0.1, "wsd", 1.0)
    assert tuned([row("default", 0, 1.0)]) is None


def test_a_candidate_with_fewer_seeds_counts_only_if_it_leads() -> None:
    # On seed 0 alone the lucky one is the best: nothing but seed 0 can then be compared.
    lucky, unlucky = tuned(BEST + OTHERS + sweep(0.3, 0.9)), tuned(BEST + OTHERS + sweep(0.3, 1.4))
    assert lucky is not None
    assert unlucky is not None
    assert (lucky.lr, list(lucky.by_seed)) == (0.3, [0])
    assert (unlucky.lr, list(unlucky.by_seed)) == (0.1, [0, 1, 2])


def test_regret_is_paired_by_seed() -> None:
    best = tuned(BEST)
    assert best is not None
    # Each seed loses 10 % of what its own tuned run gained.
    ours = [row("autolr", seed, 0.9 * loss + 0.1 * 2.0) for seed, loss in enumerate((1.0, 1.2, 0.8))]
    assert regrets(ours, best) == pytest.approx([10, 10, 10])
    mean, half = interval(regrets(ours, best))
    assert (mean, half) == (pytest.approx(10), pytest.approx(0, abs=1e-9))


def test_confidence_interval_is_students() -> None:
    # Mean 2, standard deviation 1, three values: t = 4.303.
    assert interval([1, 2, 3]) == (2, pytest.approx(4.303 / math.sqrt(3)))
    assert interval([5.0]) == (5.0, None)
    assert interval([1.0, math.inf]) == (math.inf, None)
    mean, half = interval([0.0, 2.0] * 50)
    assert half == pytest.approx(1.984 * math.sqrt(100 / 99) / 10, rel=1e-3)
    assert mean == 1


def test_analysis_of_known_regrets() -> None:
    rows = [
        *BEST,
        *OTHERS,
        *(row("autolr", seed, loss) for seed, loss in enumerate((1.01, 1.2, 0.8))),
        *(row("prodigy", seed, loss) for seed, loss in enumerate((1.1, 1.3, 0.9))),
        *(row("mechanic", seed, 1.0, diverged=seed == 1) for seed in range(3)),
        row("autolr@10", 0, 1.5),
    ]
    found = analyse(rows)
    (pair,) = found["pairs"]
    assert pair["tuned"] == {"loss": 1.0, "lr": 0.1, "schedule": "wsd", "seeds": 3}
    assert pair["arms"]["autolr"]["held_out"]["regret"] == pytest.approx(1 / 3)
    assert pair["arms"]["autolr"]["train"]["regret"] == pytest.approx(1 / 3)
    assert pair["arms"]["prodigy"]["held_out"]["regret"] == pytest.approx((10 + 12.5 + 8 + 1 / 3) / 3)
    assert pair["arms"]["mechanic"] | {"reached": 0} == {
        "seeds": 3,
        "diverged": 1,
        "reached": 0,
        "held_out": {"regret": None, "half_width": None},
        "train": {"regret": None, "half_width": None},
    }
    assert found["overall"]["autolr@10"]["worst"] == pytest.approx(50)
    assert found["overall"]["mechanic"]["mean"] is None
    assert found["overall"]["autolr"]["train_mean"] == pytest.approx(1 / 3)
    met = {name: goal["met"] for name, goal in found["goals"].items()}
    assert met == {
        "mean regret of AutoLR at most 0.3 %": False,
        "worst at most 1 %": True,
        "at least: mean 0.7 %": True,
        "at least: worst 2 %": True,
        "never diverges": True,
        "ahead of every learning-rate-free peer on every workload": True,
    }
    json.dumps(found, allow_nan=False)


def test_goals_notice_a_lost_run_and_a_better_peer() -> None:
    rows = [*BEST, row("autolr", 0, 1.1), row("autolr@1", 0, 1.0, diverged=True), row("prodigy", 0, 1.05)]
    goals = analyse(rows)["goals"]
    assert goals["never diverges"] == {"at_most": 0, "measured": 1, "of": 2, "met": False}
    assert goals["ahead of every learning-rate-free peer on every workload"]["behind"] == [
        "quadratic adamw: Prodigy"
    ]
    raised = {**asdict(Run("quadratic", "adamw", "autolr", None, "own", 1)), "error": "ValueError: no"}
    assert analyse(rows, [raised])["goals"]["never diverges"]["measured"] == 2
    assert not any(goal["met"] for goal in analyse([])["goals"].values())


# ---------------------------------------------------------------------- plan


def test_a_sweep_goes_on_at_its_edges_alone() -> None:
    assert next_half_decade({-2: 3.0, -1: 1.0, 0: 2.0}) is None
    assert next_half_decade({-2: 1.0, -1: 2.0, 0: 3.0}) == -3
    assert next_half_decade({-2: 3.0, -1: 2.0, 0: 1.0}) == 1
    assert next_half_decade({-1: 2.0, 0: math.inf}) == -2
    assert next_half_decade({-1: math.inf, 0: math.inf}) == -2


def finished(plan: Plan, loss_at: Any, seeds: range) -> dict[Run, Row]:
    """Do what the plan asks for, seed by seed, until it asks for nothing new."""
    done: dict[Run, Row] = {}
    while new := [run for run in planned(plan, done) if run not in done and run.seed in seeds]:
        for run in new:
            loss = loss_at(run)
            diverged = loss == math.inf
            end = {"held_out": None if diverged else loss, "diverged": diverged}
            done[run] = {**asdict(run), "init": 9.0, **end}
    return done


def rates(done: dict[Run, Row]) -> list[float]:
    return sorted({run.lr for run in done if run.arm == "sweep" and run.lr is not None})


def test_a_sweep_follows_its_best_at_most_four_times() -> None:
    plan = Plan(("quadratic",), ("adamw",), seeds=2)

    def bowl(run: Run) -> float:
        return abs(math.log10(run.lr or 1) + 4.5) + (run.schedule == "wsd") + run.seed

    assert rates(finished(plan, bowl, range(1))) == [
        *(1e-5, 3.162e-5, 0.0001, 0.0003162),
        *(0.001, 0.003162, 0.01, 0.03162, 0.1),
    ]
    assert rates(finished(plan, lambda run: -(run.lr or 0), range(1)))[-1] == 10.0
    assert rates(finished(plan, lambda run: abs((run.lr or 0) - 0.01), range(1))) == [
        *(0.001, 0.003162, 0.01, 0.03162, 0.1)
    ]


def test_a_second_seed_may_move_the_best_to_the_edge() -> None:
    plan = Plan(("quadratic",), ("sgd",), seeds=2)

    def loss(run: Run) -> float:
        return abs(math.log10(run.lr or 1) + 1) if run.seed == 0 else -2 * math.log10(run.lr or 1)

    assert 3.162 not in rates(finished(plan, loss, range(1)))
    assert 3.162 in rates(finished(plan, loss, range(2)))


def test_the_order_starts_with_the_sweep_of_the_first_seed() -> None:
    plan = Plan(("quadratic", "digits-mlp"))
    runs = planned(plan, {})
    assert len(set(runs)) == len(runs)
    assert {(run.arm, run.seed) for run in runs[:40]} == {("sweep", 0)}
    own = [run for run in runs if "@" not in run.arm]
    assert [run.seed for run in own] == sorted(run.seed for run in own)
    assert runs[: len(own)] == own, "runs that must end like others come last"
    assert {run.arm for run in runs if run.seed == 0} == {
        *("sweep", *ARMS),
        *("autolr@1e-8", "autolr@1e-4", "autolr@1", "autolr@10"),
    }
    assert {run.arm for run in runs if run.seed == 1} == {"sweep", *ARMS}
    assert not [run for run in runs if run.arm == "prodigy" and run.optimizer == "sgd"]
    assert len(published(plan)) == 2 * 2 * 3


def test_a_learning_rate_far_behind_waits_for_its_other_seeds() -> None:
    plan = Plan(("quadratic",), ("adamw",), seeds=3)

    def loss(run: Run) -> float:
        return 0.1 if run.arm != "sweep" else abs(math.log10(run.lr or 1) + 2)

    done = finished(plan, loss, range(1))
    others = [run for run in planned(plan, done) if run.seed > 0]
    assert len(others) == len(set(others)) == 2 * (2 * len(rates(done)) + len(ARMS))
    far = [run.arm == "sweep" and run.lr in (0.1, 0.001) for run in others]
    assert far.index(True) == len(far) - sum(far) == len(far) - 2 * 2 * 2
    # Where all diverge none is ahead, and still each is run once.
    everywhere = planned(plan, finished(plan, lambda run: math.inf, range(3)))
    assert len(set(everywhere)) == len(everywhere)


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


# ---------------------------------------------------------------------- what is shown


@pytest.fixture
def result() -> dict[str, Any]:
    rows = []
    for workload in ("newsfeed", "charlm"):
        about = {"workload": workload}
        rows += sweep(0.1, 1.0, 1.2, 0.8, **about)
        rows += [row("default", seed, 1.5, lr=1e-3, **about) for seed in range(3)]
        rows += [row("autolr", seed, 1.01, **about) for seed in range(3)]
        rows += [row("prodigy", seed, 1.3, **about) for seed in range(3)]
        rows += [row("mechanic", seed, 1.0, diverged=True, **about) for seed in range(3)]
        rows += [row("autolr@1e-8", 0, 1.02, lr=1e-8, **about)]
    plan, done = Plan(("newsfeed", "charlm"), seeds=3), Rows(None)
    for one in rows:
        done.add(one)
    machine = {"torch": "2", "cpu": "fast", "cores": 2, "date": "2026-11-15T00:00:00"}
    return regret._result(
        plan, done, {"experiment": "regret", "command": "hdet bench regret", "machine": machine}
    )


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


def test_the_chart_is_xml_with_a_mark_for_every_arm(result: dict[str, Any]) -> None:
    drawing = chart(result)
    root = ElementTree.fromstring(drawing)
    assert root.attrib["viewBox"].startswith("0 0 800 ")
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    # AutoLR and Prodigy are polygons: one for each of two workloads and one in the legend.
    assert tags.count("polygon") == 6
    assert sum(element.text == "×" for element in root.iter()) == 2
    assert "charlm, adamw" in drawing
    assert ElementTree.fromstring(chart(regret.recomputed({**result, "runs": {"header": [], "rows": []}})))
