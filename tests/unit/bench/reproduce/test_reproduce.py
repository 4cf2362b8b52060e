"""The paper's experiments: what is run, what is remembered, what is shown."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import sys
import time
import types
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hdet.bench.pool import complete
from hdet.bench.regret.analysis import interval
from hdet.bench.reproduce import command as reproduce
from hdet.bench.reproduce.analysis import CURVES, curves, learning_rates, table
from hdet.bench.reproduce.order import binomial_tail, friedman, friedman_p, order, ranks
from hdet.bench.reproduce.plan import (
    CONFIGURATIONS,
    PLAIN,
    Plan,
    Row,
    Rows,
    Run,
    blocks,
    crash_lr,
    planned,
    sweep,
    tuned_lr,
)
from hdet.bench.reproduce.text import as_csv, as_text, markdown, said
from hdet.cli import app

GROUPS = ("embedding", "no_decay", "non_embedding", "transformer")
PLAN = Plan("feed", "cpu", seeds=3)


# ---------------------------------------------------------------------- statistics


def brute_force_p(ranked: list[tuple[float, ...]]) -> float:
    seen = friedman(ranked)
    orders = itertools.product(*(list(itertools.permutations(row)) for row in ranked))
    found = [friedman(list(rows)) >= seen - 1e-9 for rows in orders]
    return sum(found) / len(found)


@pytest.mark.parametrize(
    "values",
    [
        [[1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]],
        [[1, 2, 3, 4], [4, 3, 2, 1], [2, 1, 4, 3]],
        [[1, 2, 3, 4], [1, 2, 4, 3], [2, 1, 3, 4]],
        [[1, 1, 3, 4], [1, 2, 2, 2], [5, 5, 5, 5]],
    ],
)
def test_friedman_counts_all_orders(values: list[list[float]]) -> None:
    ranked = [ranks(row) for row in values]
    assert friedman_p(ranked) == pytest.approx(brute_force_p(ranked), abs=1e-12)
    assert friedman_p(ranked[:1]) == 1


def test_friedman_statistic() -> None:
    # Three rows that agree: 12/(3·4·5) · 3² · (1.5² + 0.5² + 0.5² + 1.5²) = 9, the largest there is.
    agreed = [ranks([1, 2, 3, 4])] * 3
    assert friedman(agreed) == pytest.approx(9)
    assert friedman_p(agreed) == pytest.approx(24 / 24**3)
    assert friedman([(1, 2, 3, 4), (4, 3, 2, 1)]) == 0


def test_binomial_tail_by_enumeration() -> None:
    for successes in range(5):
        ways = [
            math.prod(1 / 12 if hit else 11 / 12 for hit in hits)
            for hits in itertools.product([False, True], repeat=4)
            if sum(hits) >= successes
        ]
        assert binomial_tail(successes, 4, 1 / 12) == pytest.approx(sum(ways))


def with_factors(seed: int, **late: float) -> Row:
    """Two syncs before the second half of the controlled part, two in it."""
    factors = {group: [1.0, 5.0, late[group] * 0.5, late[group] * 2] for group in GROUPS}
    lrs = {group: [0.1] * 4 for group in GROUPS}
    return {"seed": seed, "lr_steps": [10, 59, 61, 80], "factors": factors, "lrs": lrs}


def test_order_of_groups_against_the_published_one() -> None:
    as_published = [
        with_factors(seed, embedding=1.0 + 0.01 * seed, no_decay=1.2, non_embedding=1.02, transformer=0.8)
        for seed in range(3)
    ]
    found = order(as_published, control_from=40, steps=80)
    assert found is not None
    assert found["by_seed"][0] == ["transformer", "embedding", "non_embedding", "no_decay"]
    assert found["mean_factors"][1]["transformer"] == pytest.approx(0.8)
    published = found["published"]
    assert (published["both"], published["of"], published["p"]) == (3, 3, pytest.approx(12**-3))
    assert found["median_abs_log_factor"]["no_decay"] == pytest.approx(math.log(1.2))
    assert "3 of 3 seeds" in found["sentence"]

    reverse = [with_factors(0, embedding=1.0, no_decay=0.9, non_embedding=1.0, transformer=1.1)]
    other = order(reverse, control_from=40, steps=80)
    assert other is not None
    assert (other["published"]["both"], other["published"]["p"]) == (0, pytest.approx(1))


def test_groups_that_nothing_moved_have_no_order() -> None:
    still = [with_factors(seed, **dict.fromkeys(GROUPS, 1.0)) for seed in range(3)]
    found = order(still, control_from=40, steps=80)
    assert found is not None
    assert [found["published"][name] for name in ("both", "transformer_lowest", "no_decay_highest")] == [
        0
    ] * 3
    assert (found["any_order"]["statistic"], found["any_order"]["p"]) == (0, 1)
    assert order([], control_from=40, steps=80) is None


# ---------------------------------------------------------------------- what is run


def made_up(run: Run, crash_from: float = 0.3) -> Row:
    """A loss that is lowest at 0.01; at ``crash_from`` and above a run crashes at step 80."""
    lr = run.lr or 0.01
    crashed = lr >= crash_from
    loss = 1.0 + 0.1 * abs(math.log10(lr) + 2) + 0.01 * run.seed
    row: Row = {
        **asdict(run),
        "train": None if crashed and run.seed == 1 else loss,
        "held_out": loss + 0.1,
        "by_answer": {"like": 0.5},
        "init": 2.0,
        "crashed": crashed,
        "crash_step": 80 + run.seed if crashed else None,
        "seconds": 1.5,
        "loss_steps": [50, 100],
        "loss": [2.0, None if crashed else loss],
    }
    if run.configuration.startswith("HDET"):
        factors = dict(zip(GROUPS, (1.0, 1.1, 1.05, 0.9), strict=True))
        row |= {
            "lr_steps": [40, 100],
            "factors": {group: [1.0, factor] for group, factor in factors.items()},
            "lrs": {group: [lr, factor * lr] for group, factor in factors.items()},
        }
    return row


def all_done(plan: Plan, crash_from: float = 0.3) -> dict[Run, Row]:
    finished: dict[Run, Row] = {}
    while todo := [run for run in planned(plan, finished) if run not in finished]:
        finished |= {run: made_up(run, crash_from) for run in todo}
    return finished


def test_the_sweep_goes_up_until_most_seeds_crash() -> None:
    finished: dict[Run, Row] = {}
    assert sweep(PLAN, finished) == [1e-4]
    assert [block.name for block in blocks(PLAN, finished)] == ["paper"]
    finished = all_done(PLAN)
    rates = [1e-4, 3.162e-4, 1e-3, 3.162e-3, 1e-2, 3.162e-2, 0.1, 0.3162]
    assert sweep(PLAN, finished) == rates
    assert (crash_lr(PLAN, finished), tuned_lr(PLAN, finished)) == (0.3162, 0.01)
    crash = blocks(PLAN, finished)[1]
    assert (crash.name, crash.high, crash.low) == ("crash", 0.3162, 0.03513)
    # One seed of three is no majority.
    for run in PLAN.over_seeds(PLAIN, 0.3162)[1:]:
        finished[run] = {**finished[run], "crashed": False}
    assert crash_lr(PLAN, finished) is None
    assert sweep(PLAN, finished) == [*rates, 1.0]


@pytest.mark.parametrize(
    ("seeds", "crashed", "most"), [(3, 1, False), (3, 2, True), (2, 1, False), (2, 2, True)]
)
def test_most_seeds_are_more_than_half(seeds: int, crashed: int, most: bool) -> None:
    plan = Plan("feed", "cpu", seeds=seeds, exponents=(-8, -7))
    finished = {
        run: {**made_up(run), "crashed": run.seed < crashed}
        for lr in (1e-4, 3.162e-4)
        for run in plan.over_seeds(PLAIN, lr)
    }
    assert sweep(plan, finished) == ([1e-4] if most else [1e-4, 3.162e-4])
    assert crash_lr(plan, finished) == (1e-4 if most else None)


def test_a_learning_rate_at_which_a_seed_crashed_is_not_the_tuned_one() -> None:
    finished = all_done(PLAN)
    lucky = PLAN.run(PLAIN, 0.01, 2)
    finished[lucky] = {**finished[lucky], "crashed": True}
    assert tuned_lr(PLAN, finished) in (0.003162, 0.03162)


def test_where_nothing_crashes_the_largest_learning_rate_is_taken_and_said() -> None:
    finished = all_done(PLAN, crash_from=math.inf)
    crash = blocks(PLAN, finished)[1]
    assert (crash_lr(PLAN, finished), crash.high) == (None, 10.0)
    assert "at 10, up to which the plain baseline never crashed" in crash.title


def test_every_line_of_both_blocks_is_run_once() -> None:
    finished = all_done(PLAN)
    runs = planned(PLAN, finished)
    assert len(runs) == len(set(runs)) == len(finished)
    # 8 of the sweep, 9e-4, the second block's low rate; 4 with replicas that differ, twice; AutoLR.
    assert len(runs) == 3 * (8 + 2 + 2 * 4 + 1)
    assert {run.configuration for run in runs} == {one.runs for one in CONFIGURATIONS.values()}


@pytest.mark.parametrize("name", ["figure2", "figure3"])
def test_a_figure_after_the_table_runs_nothing_anew(name: str) -> None:
    plan = replace(PLAN, lines=reproduce.NAMES[name])
    assert set(planned(plan, all_done(PLAN))) < set(all_done(PLAN))
    assert set(all_done(plan)) < set(all_done(PLAN))


def test_tables_of_other_sizes_and_seeds_are_kept_apart() -> None:
    run = PLAN.run(PLAIN, 1e-4, 2)
    assert PLAN.holds(run)
    assert not PLAN.holds(replace(run, seed=3))
    for change in ({"scale": "gpu"}, {"device": "cuda"}, {"task": "kuairand"}, {"data": "0123"}):
        assert not PLAN.holds(replace(run, **change))


# ---------------------------------------------------------------------- memory


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


# ---------------------------------------------------------------------- what is shown


@pytest.fixture
def result() -> dict[str, Any]:
    return with_head("table1", table(PLAN, all_done(PLAN)))


def with_head(name: str, made: Mapping[str, Any]) -> dict[str, Any]:
    head: dict[str, Any] = {"name": name, "title": "Table 1", "task": "feed", "seeds": 3, "loss_unit": "nats"}
    head |= {"reference": {"base_rate_loss": 1.3, "bayes_loss": None}, "missing_runs": 0, "failed": []}
    return {**head, "crash_rule": "Crashed is who crashed.", "caveats": ["It is made up."], **made}


def test_cells_of_the_table(result: dict[str, Any]) -> None:
    paper, crash = result["blocks"]
    assert [row["configuration"] for row in paper["rows"]] == list(CONFIGURATIONS)
    low, high = paper["rows"][:2]
    mean, half = interval([1.2, 1.21, 1.22])
    assert low["train"] == {"mean": pytest.approx(mean), "half_width": pytest.approx(half, rel=1e-5)}
    assert (low["paper"], high["paper"]) == (
        {"loss": 3.294, "crashed": False},
        {"loss": 4.169, "crashed": True},
    )
    crashed = crash["rows"][1]
    assert (crashed["lr"], crashed["crashed"], crashed["crash_step"]) == (0.3162, 3, 81)
    # One of the three is not finite: there is no mean.
    assert crashed["train"] == {"mean": None, "half_width": None}
    tuned = crash["rows"][-1]
    assert (tuned["lr"], tuned["train"]["mean"]) == (0.01, pytest.approx(1.01))
    assert paper["rows"][-2] == crash["rows"][-2]
    assert (paper["rows"][-2]["lr"], paper["rows"][-2]["paper"]) == (None, None)
    assert [row["crashed"] for row in result["sweep"]["rows"]] == [0] * 7 + [3]
    assert len(result["runs"]["rows"]) == len(all_done(PLAN))
    json.dumps(result, allow_nan=False)


def test_text_and_csv_hold_the_same_table(result: dict[str, Any]) -> None:
    text = as_text(result)
    lines = text.splitlines()
    assert sum(line.startswith("Baseline-High") for line in lines) == 2
    low = next(line for line in lines if line.startswith("Baseline-Low"))
    assert "3.294" in low
    assert "1.2100 ± 0.0248" in low
    assert "0 of 3" in low
    high = [line for line in lines if line.startswith("Baseline-High")][1]
    assert "4.169†" in high
    assert "not finite†" in high
    assert high.split("3 of 3")[1].strip() == "81"
    assert "It is made up." in text
    assert "Crashed is who crashed." in text
    rows = list(csv.DictReader(io.StringIO(as_csv(result))))
    assert len(rows) == 2 * len(CONFIGURATIONS)
    assert (rows[0]["block"], rows[0]["configuration"], float(rows[0]["train"])) == (
        "paper",
        "Baseline-Low",
        pytest.approx(1.21),
    )
    assert rows[9]["train"] == ""


def test_an_unfinished_table_says_so() -> None:
    some = dict(itertools.islice(all_done(PLAN).items(), 2))
    text = as_text({**with_head("table1", table(PLAN, some)), "missing_runs": 7})
    assert "7 runs are still missing" in text
    assert "no run" in text


def test_figures_have_the_curves_of_every_seed() -> None:
    finished = all_done(PLAN)
    for block in curves(PLAN, finished)["blocks"]:
        assert [curve["configuration"] for curve in block["curves"]] == list(CURVES)
        assert all([run["seed"] for run in curve["runs"]] == [0, 1, 2] for curve in block["curves"])
    crash = curves(PLAN, finished)["blocks"][1]["curves"][1]
    assert (crash["crashed"], crash["crash_step"], crash["runs"][0]["loss"]) == (3, 81, [2.0, None])

    found = learning_rates(PLAN, finished, steps=100, control_from=33)
    assert (found["groups"], found["control_from"]) == (list(GROUPS), 33)
    for block in found["blocks"]:
        assert max(block["plain"]["lr"]) == pytest.approx(block["high"], rel=1e-3)
        assert block["order"]["published"]["both"] == 3
        assert len(block["runs"]) == 3
    json.dumps(found, allow_nan=False)


def cells_of(text: str) -> list[list[str]]:
    """The rows of all Markdown tables in a text, headings included."""
    lines = [line for line in text.splitlines() if line.startswith("|") and not line.startswith("|---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_markdown_of_a_table(result: dict[str, Any]) -> None:
    text = markdown({**result, "missing_runs": 7})
    rows = cells_of(text)
    assert len(rows) == 2 * (1 + len(CONFIGURATIONS))
    assert len({len(row) for row in rows}) == 1
    assert sum(line.startswith("|---") for line in text.splitlines()) == 2
    found = dict(zip(rows[0], rows[1], strict=True))
    assert (found["configuration"], found["LR"], found["paper"]) == ("Baseline-Low", "0.0001", "3.294")
    assert (found["training loss"], found["crashed"], found["at step"]) == ("1.2100 ± 0.0248", "0 of 3", "–")
    crashed = dict(zip(rows[0], rows[len(CONFIGURATIONS) + 3], strict=True))
    assert (crashed["configuration"], crashed["training loss"]) == ("Baseline-High", "not finite†")
    assert (crashed["paper"], crashed["crashed"], crashed["at step"]) == ("4.169†", "3 of 3", "81")
    for block in result["blocks"]:
        assert f"{block['title'][1:]}:" in text
    assert text.endswith(
        "Who knows the base rates alone has a loss of 1.3000. 7 runs are still missing: start the command "
        "again. Crashed is who crashed. It is made up."
    )


def test_markdown_of_the_losses_says_who_crashed() -> None:
    text = markdown(with_head("figure2", curves(PLAN, all_done(PLAN))))
    paper, crash = text.split("\n\n")[1::2]
    assert paper.startswith("Baseline-Low at 0.0001 crashed in 0 of 3 seeds. Baseline-High at 0.0009 crashed")
    assert "3 of 3" not in paper
    for line in ("Baseline-High", "Warm-Init", "HDET (full)"):
        assert f"{line} at 0.3162 crashed in 3 of 3 seeds." in crash
    assert "Baseline-Low at 0.03513 crashed in 0 of 3 seeds." in crash
    assert cells_of(text) == []


def test_markdown_of_the_learning_rates_says_their_order() -> None:
    found = learning_rates(PLAN, all_done(PLAN), steps=100, control_from=33)
    text = markdown(with_head("figure3", found))
    assert text.count("stood in 3 of 3 seeds") == 2
    for block in found["blocks"]:
        assert block["order"]["sentence"] in text
    nothing = with_head("figure3", learning_rates(PLAN, {}, steps=100, control_from=33))
    assert markdown(nothing) == "At the paper's learning rates:\n\nThere is no run yet."
    assert "There is no run yet." in said(nothing)


def test_an_unfinished_figure_says_so() -> None:
    made = with_head("figure2", curves(PLAN, {}))
    assert "7 runs are still missing: start the command again." in said({**made, "missing_runs": 7})
    assert "missing" not in said(made)


# ---------------------------------------------------------------------- the command

command = CliRunner(env={"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}).invoke


def test_the_command_hands_its_options_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def run(name: str, **given: Any) -> dict[str, Any]:
        seen.update(given, name=name)
        return with_head(name, table(PLAN, all_done(PLAN)))

    monkeypatch.setattr(reproduce, "run", run)
    monkeypatch.setattr(reproduce, "_drawn", lambda result, folder: [folder / "reproduce.html"])
    monkeypatch.chdir(tmp_path)
    options = [
        "--scale",
        "gpu",
        "--device",
        "cpu",
        "--data",
        "feed.tsv",
        "--seeds",
        "2",
        "--rows",
        "kept.jsonl",
    ]
    more = ["--processes", "4", "--minutes", "1.5", "--output", "there"]
    done = command(app, ["reproduce", "table1", *options, *more])
    assert done.exit_code == 0, done.output
    assert seen.pop("on_progress")
    assert seen == {
        "name": "table1",
        "scale": "gpu",
        "device": "cpu",
        "data": Path("feed.tsv"),
        "seeds": 2,
        "rows": Path("kept.jsonl"),
        "processes": 4,
        "minutes": 1.5,
        "quick": False,
    }
    text = (tmp_path / "there" / "table1.txt").read_text()
    assert text in done.output
    assert json.loads((tmp_path / "there" / "table1.json").read_text())["name"] == "table1"
    assert (tmp_path / "there" / "table1.csv").exists()

    assert command(app, ["reproduce", "figure3"]).exit_code == 0
    assert (seen["scale"], seen["device"], seen["data"], seen["seeds"]) == ("cpu", None, None, 3)
    assert (tmp_path / "runs" / "reproduce" / "figure3.json").exists()
    (tmp_path / "docs" / "evidence").mkdir(parents=True)
    assert command(app, ["reproduce", "figure3"]).exit_code == 0
    assert command(app, ["reproduce", "table1", "--quick"]).exit_code == 0
    # What is committed as evidence is written over only where that is asked for.
    assert not list((tmp_path / "docs" / "evidence").glob("*"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["table2"], "table1"),
        (["table1", "--scale", "huge"], "gpu"),
        (["table1", "--data", "nowhere.tsv"], "got nowhere.tsv: there is no such file"),
        (["table1", "--data", "."], "the folder of kuairand_feed.tsv, got ."),
        (["pretraining", "--data", "feed.tsv"], "reads no feed"),
        (["table1", "--seeds", "0"], "seeds"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_reason(
    given: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command(app, ["reproduce", *given])
    assert done.exit_code == 2
    assert said in " ".join(done.output.replace("│", " ").split())


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"name": "table2"}, "name must be one of 'table1'.* got 'table2'"),
        ({"name": "table1", "scale": "tiny"}, "scale must be one of 'cpu', 'gpu', got 'tiny'"),
        ({"name": "table1", "seeds": 0}, "seeds must be at least 1, got 0"),
    ],
)
def test_run_refuses(given: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        reproduce.run(**given)


def test_a_figure_is_drawn_beside_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []

    def draw(result: dict[str, Any], path: Path) -> list[Path]:
        drawn.append((result["name"], path))
        return [path.with_suffix(".svg")]

    fake = types.SimpleNamespace(figure2=draw, figure3=draw)
    page = types.SimpleNamespace(page=lambda folder: folder / "reproduce.html")
    monkeypatch.setitem(sys.modules, "hdet.bench.reproduce.figures", fake)
    monkeypatch.setitem(sys.modules, "hdet.bench.reproduce.page", page)
    made = {**with_head("figure2", curves(PLAN, all_done(PLAN))), "task": "kuairand"}
    files = reproduce.write(made, tmp_path, "{}")
    assert drawn == [("figure2", tmp_path / "figure2-kuairand")]
    assert [file.name for file in files] == [
        "figure2-kuairand.json",
        "figure2-kuairand.svg",
        "reproduce.html",
    ]
