"""The benchmark of hyperparameters: its arithmetic, its order, its memory, what it shows, and a tiny run."""

from __future__ import annotations

import io
import json
import math
import threading
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn
from typer.testing import CliRunner

from hdet.bench.hyperparameters import command as hyperparameters
from hdet.bench.hyperparameters.analysis import analyse, best_of, grid, recovered, together
from hdet.bench.hyperparameters.chart import chart
from hdet.bench.hyperparameters.plan import (
    FIXED,
    HDET,
    IN_TURN,
    Plan,
    Rows,
    Run,
    best_alone,
    planned,
    wrong_start,
)
from hdet.bench.hyperparameters.runs import execute, phases
from hdet.bench.hyperparameters.tasks import FOUR, NEUTRAL, TASKS, put, set_up, workload
from hdet.bench.rows import Row, failure
from hdet.bench.workloads import charlm, data_file, digits, newsfeed
from hdet.bench.workloads.base import Workload
from hdet.cli import app
from hdet.replicas.launch import LocalProcesses
from tools import quote

SINGLES = tuple(task for task in TASKS if task != FOUR)
BEST = {"weight decay": 3.0, "dropout": 0.2, "label smoothing": 0.1, "attention temperature": 1.0}


def bowl(run: Run) -> float:
    """The loss that fixed values have: 1 at the best, more with the square of the decades from there."""
    names = TASKS[run.task].explored
    away = [math.log10((value + 1e-3) / BEST[name]) for name, value in zip(names, run.start, strict=True)]
    return 1 + sum(distance**2 for distance in away) + 0.01 * run.seed


def row_of(run: Run, loss: Callable[[Run], float] = bowl) -> Row:
    """A run with HDET comes nine tenths of the way to a loss of 1, in four syncs."""
    names = TASKS[run.task].explored
    paths = {} if run.arm == FIXED else {n: [s, s, BEST[n]] for n, s in zip(names, run.start, strict=True)}
    held_out = loss(run) if run.arm == FIXED else 0.1 * loss(run) + 0.9 * (1 + 0.01 * run.seed)
    end = {"held_out": held_out, "diverged": False, "seconds": 1.0, "paths": paths}
    # As it comes back from its file.
    return json.loads(json.dumps({**asdict(run), **end}))


def all_done(plan: Plan) -> Rows:
    done = Rows(None)
    while todo := [run for run in planned(plan, done.finished) if run not in done.finished]:
        for run in todo:
            done.add(row_of(run))
    return done


# ---------------------------------------------------------------------- tasks


def needs_data() -> None:
    try:
        data_file("tinyshakespeare.txt")
        data_file("kuairand_feed.tsv")
    except FileNotFoundError as error:
        pytest.skip(str(error))


def test_every_grid_rises_and_ends_far_from_its_middle() -> None:
    for task in TASKS.values():
        for values in task.grids.values():
            assert list(values) == sorted(set(values))
            assert values[-1] / values[0] >= 10
        assert set(task.wrong) in (set(), set(task.explored))
        for name, value in task.wrong.items():
            assert value in (task.grids[name][0], task.grids[name][-1])


def rows_in(workload: Workload) -> tuple[set[bytes], set[bytes], set[bytes]]:
    """Samples that training, probe and held-out batches show, as bytes."""

    def bytes_of(batches: Any) -> set[bytes]:
        return {
            b"".join(part[i].cpu().numpy().tobytes() for part in batch)
            for batch in batches
            for i in range(len(batch[0]))
        }

    train, probe = workload.batches(0), workload.probe(0)
    return (
        bytes_of(next(train) for _ in range(30)),
        bytes_of(next(probe) for _ in range(3)),
        bytes_of(workload.held_out),
    )


def test_digits_are_few_and_a_fifth_of_the_labels_is_noise() -> None:
    made = digits.make_noisy()
    train, probe, held_out = rows_in(made)
    assert len(train) <= 150
    assert not train & probe
    assert not train & held_out
    assert not probe & held_out
    (images, labels), clean = made.held_out[0], digits.load()
    assert torch.equal(images, clean.test_images)
    # A tenth of those drawn at random are right by chance.
    assert float((labels != clean.test_labels).float().mean()) == pytest.approx(0.18, abs=0.05)


@pytest.mark.parametrize("make", [charlm.make_overfitting, newsfeed.make_few])
def test_small_parts_are_disjoint(make: Callable[[], Workload]) -> None:
    needs_data()
    train, probe, held_out = rows_in(make())
    # A few rows of the feed look alike, though they are different impressions.
    assert len(train & probe) + len(train & held_out) <= 0.02 * len(train)


def test_temperature_multiplies_the_logits_of_attention() -> None:
    block = charlm.Block(8, 2)
    block.before_attention = nn.Identity()
    x = torch.randn(3, 5, 8)
    usual = block(x)
    with torch.no_grad():
        block.query_key_value.weight[:8] /= 4
    block.temperature = 4.0
    torch.testing.assert_close(block(x), usual)


def test_values_are_written_where_they_act() -> None:
    task = replace(TASKS["dropout"], lr=0.1)
    setup = set_up(task, charlm.GPT(5, 2, 8, 2, 4))
    for name, value in {"weight decay": 0.3, "dropout": 0.4, "label smoothing": 0.2}.items():
        put(setup, name, value)
    put(setup, "attention temperature", 3.0)
    assert setup.optimizer.param_groups[0]["weight_decay"] == 0.3
    assert {module.p for module in setup.model.modules() if isinstance(module, nn.Dropout)} == {0.4}
    assert [block.temperature for block in setup.model.blocks] == [3.0, 3.0]
    assert setup.criterion.label_smoothing == 0.2
    with pytest.raises(TypeError, match="needs CrossEntropyLoss"):
        put(set_up(TASKS["weight decay"], nn.Linear(1, 1)), "label smoothing", 0.1)


# ---------------------------------------------------------------------- plan


def test_a_prefix_of_the_plan_is_already_a_picture() -> None:
    runs = planned(Plan(), {})
    assert len(set(runs)) == len(runs)
    # The first runs: of every task both ends, with HDET and fixed.
    first = runs[: 4 * len(SINGLES)]
    for task in SINGLES:
        (values,) = TASKS[task].grids.values()
        ends = {(arm, (value,)) for arm in (HDET, FIXED) for value in (values[0], values[-1])}
        assert {(run.arm, run.start) for run in first if run.task == task} == ends
    own = [run for run in runs if run.task != FOUR or run.start == wrong_start(TASKS[FOUR])]
    assert [run.seed for run in own] == sorted(run.seed for run in own)
    assert runs[: len(own)] == own, "what only the reference needs comes last"
    for task in SINGLES:
        (values,) = TASKS[task].grids.values()
        for seed in range(3):
            fixed = [run.start[0] for run in runs if (run.task, run.arm, run.seed) == (task, FIXED, seed)]
            assert sorted(fixed) == list(values)


def test_the_reference_follows_from_the_grids_of_each_alone() -> None:
    plan = Plan((FOUR,))
    assert best_alone(plan, {}) is None
    done = all_done(plan)
    best = (3.0, 0.2, 0.1, 1.0)
    assert best_alone(plan, done.finished) == best
    ends = [run for run in planned(plan, done.finished) if run.start == best]
    assert [(run.arm, run.seed) for run in ends] == [(FIXED, 0), (FIXED, 1), (FIXED, 2)]


def test_in_turn_has_the_same_steps_and_all_of_them() -> None:
    run = Run(FOUR, IN_TURN, (1, 2, 3, 4), 0, 8)
    names = ("a", "b", "c", "d")
    for steps in (40, 41, 1000):
        parts = phases(run, names, steps)
        assert [name for (name,), _ in parts] == list(names)
        assert sum(length for _, length in parts) == steps
    assert phases(replace(run, arm=HDET), names, 40) == [(names, 40)]
    assert phases(replace(run, arm=FIXED), names, 40) == [((), 40)]


# ---------------------------------------------------------------------- analysis


def test_recovered_is_paired_by_seed() -> None:
    wrong, best = {0: 3.0, 1: 4.0}, {0: 1.0, 1: 2.0}
    assert recovered({0: 2.0, 1: 3.0, 2: 9.0}, wrong, best) == [50, 50]
    assert recovered({0: 1.0, 1: 1.0}, wrong, best) == [100, 150]
    assert recovered({0: 1.0}, {0: 1.0}, {0: 1.0}) == [], "where nothing is lost nothing can be recovered"
    assert recovered({0: 1.5}, {0: math.inf}, {0: 1.0}) == [100]
    assert recovered({0: math.inf}, {0: 2.0}, {0: 1.0}) == [-math.inf]


def test_the_best_value_is_that_of_the_lowest_mean_over_all_seeds() -> None:
    losses = {(0.1,): {0: 1.0, 1: 1.4}, (1.0,): {0: 1.1, 1: 1.2}, (3.0,): {0: 0.5}}
    assert best_of(losses) == (1.0,)
    assert best_of({}) is None


def made(plan: Plan) -> list[Row]:
    return [{**row, "start": tuple(row["start"])} for row in all_done(plan).finished.values()]


def paths_of(rows: list[Row]) -> list[Row]:
    return [
        {**{n: row[n] for n in ("task", "arm", "start", "seed")}, "explored": name, "values": values}
        for row in rows
        for name, values in row["paths"].items()
    ]


def test_analysis_of_known_shares() -> None:
    rows = made(Plan())
    found = analyse(rows, paths_of(rows))
    assert [task["task"] for task in found["tasks"]] == list(SINGLES)
    for task in found["tasks"]:
        assert [start["start"] for start in task["starts"]] == [
            task["grid"][0]["value"],
            task["grid"][-1]["value"],
        ]
        assert len(task["best"]["losses"]) == 3
        for start in task["starts"]:
            assert start["recovered"]["mean"] == pytest.approx(90, abs=1)
            assert start["recovered"]["seeds"] == 3
            assert start["found"] == [BEST[task["task"]]] * 3
    shares = {arm["arm"]: arm["recovered"]["mean"] for arm in found["four"]["arms"]}
    assert shares["all wrong, fixed"] == 0
    assert shares["each at the best of its own grid, fixed"] == 100
    assert shares["all at once"] == shares["one after the other"] == pytest.approx(90, abs=5)
    assert all(goal["met"] for goal in found["goals"].values())
    json.dumps(found, allow_nan=False)


def with_loss(rows: list[Row], loss: float | None, **of: Any) -> list[Row]:
    changed = {"held_out": loss, "diverged": loss is None}
    return [{**row, **(changed if of.items() <= row.items() else {})} for row in rows]


def test_a_hyperparameter_counts_by_its_worse_start() -> None:
    rows = made(Plan(SINGLES))
    low = TASKS["dropout"].grids["dropout"][0]
    missed = with_loss(rows, 9.0, task="dropout", arm=HDET, start=(low,))
    goals = analyse(missed)["goals"].values()
    assert [goal["met"] for goal in goals] == [False, True]
    diverged = with_loss(rows, None, task="dropout", arm=HDET, start=(low,))
    found = analyse(diverged)
    assert [goal["met"] for goal in found["goals"].values()] == [False, True]
    assert found["goals"]["each of the four recovers at least 80 %, from its worse start"]["measured"] is None
    json.dumps(found, allow_nan=False)
    assert not any(goal["met"] for goal in analyse([])["goals"].values())


# ---------------------------------------------------------------------- memory


SMALL = Plan(("label smoothing",), seeds=1)


def complete(plan: Plan, path: Path, *, cores: int = 8, deadline: float = math.inf) -> list[Run]:
    asked: list[Run] = []
    busy, most, lock = 0, 0, threading.Lock()

    def work(run: Run) -> Row:
        nonlocal busy, most
        with lock:
            asked.append(run)
            busy += run.replicas
            most = max(most, busy)
        time.sleep(0.002)
        with lock:
            busy -= run.replicas
        return row_of(run)

    hyperparameters.complete(plan, Rows(path), work, cores=cores, deadline=deadline, say=lambda _: None)
    assert most <= max(cores, max((run.replicas for run in asked), default=0))
    return asked


def test_what_is_in_the_rows_file_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "rows.jsonl"
    assert len(complete(SMALL, path)) == 9
    assert complete(SMALL, path) == []
    kept = path.read_text()
    assert len(complete(replace(SMALL, seeds=2), path)) == 9
    assert path.read_text().startswith(kept)
    assert len(complete(replace(SMALL, steps=6), path)) == 9
    path.write_text(path.read_text()[:-20])
    assert len(complete(replace(SMALL, steps=6), path)) == 1


@pytest.mark.parametrize("cores", [1, 4, 16])
def test_no_more_replicas_at_a_time_than_cores(tmp_path: Path, cores: int) -> None:
    plan = Plan(("dropout", FOUR), seeds=1)
    asked = complete(plan, tmp_path / "rows.jsonl", cores=cores)
    assert set(asked) == set(planned(plan, Rows(tmp_path / "rows.jsonl").finished))


def test_after_the_deadline_nothing_is_started(tmp_path: Path) -> None:
    assert complete(SMALL, tmp_path / "rows.jsonl", deadline=time.monotonic()) == []


def test_a_run_that_raised_is_tried_again_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    run = planned(SMALL, {})[0]
    Rows(path).add(failure(run, ValueError("no [such] thing\nmore")))
    shown = hyperparameters._result(SMALL, Rows(path), {"command": "", "caveats": []})
    assert "ValueError: no [such] thing" in text_of(shown)
    assert run in complete(SMALL, path)
    assert not Rows(path).failed


# ---------------------------------------------------------------------- what is shown


def text_of(result: Mapping[str, Any]) -> str:
    console = Console(width=170, file=io.StringIO())
    with console.capture() as shown:
        console.print(hyperparameters.table(dict(result)))
    return shown.get()


@pytest.fixture
def result() -> dict[str, Any]:
    machine = {"torch": "2", "cpu": "fast", "cores": 2, "date": "2026-11-15T00:00:00"}
    about = {"experiment": "hyperparameters", "command": "hdet bench hyperparameters", "machine": machine}
    return hyperparameters._result(Plan(), all_done(Plan()), {**about, "caveats": ["Mind it."]})


def test_the_table_can_be_made_from_the_rows_it_keeps(result: dict[str, Any]) -> None:
    kept = json.loads(json.dumps(result, allow_nan=False))
    assert hyperparameters.recomputed({**kept, "tasks": [], "four": None, "goals": {}}) == kept
    assert kept["missing_runs"] == 0
    assert len(kept["paths"]) == len(SINGLES) * 2 * 3 + 2 * 3 * 4


def test_the_table_shows_every_start_and_the_goals(result: dict[str, Any]) -> None:
    text = text_of(result)
    for task in SINGLES:
        assert text.count(f"│ {task} ") >= 2
    assert "all at once" in text
    assert "goal: at least: three of the four recover 50 %: met" in text
    assert "Mind it." in text
    headings, lines = grid(result)
    assert all(len(line) == len(headings) for line in lines)
    headings, lines = together(result)
    assert [line[0] for line in lines] == [
        *("all wrong, fixed", "one after the other", "all at once"),
        "each at the best of its own grid, fixed",
    ]


def test_the_quote_is_the_same_table(tmp_path: Path, result: dict[str, Any]) -> None:
    (tmp_path / "hyperparameters.json").write_text(json.dumps(result))
    text = quote.fill("<!-- quote: hyperparameters -->\n<!-- end -->", tmp_path)
    assert text.count("\n| weight decay | 3: ") == 2
    assert "| one after the other |" in text
    assert "95 % confidence interval" in text
    assert "Mind it." in text


def test_the_chart_is_xml_with_an_arrow_for_every_start(result: dict[str, Any]) -> None:
    drawing = chart(result)
    root = ElementTree.fromstring(drawing)
    tags = [element.tag.rpartition("}")[2] for element in root.iter()]
    # Two in the legend; and a curve for the grid, six for the ways from there, in every column.
    assert tags.count("polygon") == 2 + 2 * len(SINGLES)
    assert tags.count("polyline") == 7 * len(SINGLES)
    assert "nan" not in drawing
    assert "inf" not in drawing
    nothing = {**result, "runs": {**result["runs"], "rows": []}, "paths": []}
    assert ElementTree.fromstring(chart(hyperparameters.recomputed(nothing)))


def test_the_chart_bears_zeros_and_runs_that_diverged(result: dict[str, Any]) -> None:
    header = result["runs"]["header"]
    rows = [dict(zip(header, row, strict=True)) for row in result["runs"]["rows"]]
    low = f"{TASKS['dropout'].grids['dropout'][0]:g}"
    broken = with_loss(rows, None, task="dropout", start=low)
    paths = [{**path, "values": [0.0 for _ in path["values"]]} for path in result["paths"]]
    runs = {"header": header, "rows": [[row[name] for name in header] for row in broken]}
    other = hyperparameters.recomputed({**result, "runs": runs, "paths": paths})
    assert ElementTree.fromstring(chart(other))
    assert "diverged" in text_of(other)


# ---------------------------------------------------------------------- runs


def test_a_quick_run_from_end_to_end(tmp_path: Path) -> None:
    out = tmp_path / "hyperparameters.json"
    options = ["--rows", str(tmp_path / "rows.jsonl"), "--processes", "2", "--output", str(out)]
    shown = CliRunner(env={"COLUMNS": "170"}).invoke(app, ["bench", "hyperparameters", "--quick", *options])
    assert shown.exit_code == 0, shown.output
    found = json.loads(out.read_text())
    assert found["command"] == "hdet bench hyperparameters --quick"
    assert (found["missing_runs"], found["failed"]) == (0, [])
    (task,) = found["tasks"]
    assert all(0 < point["loss"] < 5 for point in task["grid"])
    assert [len(path["values"]) for path in found["paths"]] == [5, 5]
    assert ElementTree.parse(out.with_suffix(".svg"))


def test_bench_refuses_what_is_not_for_it() -> None:
    refused = CliRunner().invoke(app, ["bench", "hyperparameters", "--scale", "gpu"])
    assert refused.exit_code == 2
    with pytest.raises(ValueError, match="device must be 'cpu', got 'cuda'"):
        hyperparameters.run(quick=True, device="cuda")


def test_four_are_looked_for_in_turn(ranks: LocalProcesses) -> None:
    needs_data()
    run = Run(FOUR, IN_TURN, wrong_start(TASKS[FOUR]), 0, replicas=2, sync_every=2, steps=16)
    row = ranks.run(execute, run, size=2, timeout=60)[0]
    assert list(row["paths"]) == list(TASKS[FOUR].explored)
    # Each at its start, and after both syncs of its share of the steps.
    assert [len(values) for values in row["paths"].values()] == [3, 3, 3, 3]
    assert [values[0] for values in row["paths"].values()] == list(run.start)
    assert math.isfinite(row["held_out"])


def test_the_same_run_twice_is_the_same(ranks: LocalProcesses) -> None:
    run = Run("label smoothing", HDET, (0.2,), 0, replicas=2, sync_every=5, steps=10)
    one, two = (ranks.run(execute, run, size=2, timeout=60)[0] for _ in range(2))
    assert {**one, "seconds": 0} == {**two, "seconds": 0}
    assert workload("label smoothing").steps > 10
    assert NEUTRAL.keys() == set(TASKS[FOUR].explored)
