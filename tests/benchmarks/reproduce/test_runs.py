"""Tiny versions of every configuration, trained for real from end to end."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.reproduce import command as reproduce
from benchmarks.reproduce import runs
from benchmarks.reproduce.plan import CONFIGURATIONS, PLAIN, Row, Rows, Run, Settings
from benchmarks.reproduce.tasks import REPLICAS, data_file, language, make
from benchmarks.reproduce.text import said
from benchmarks.workloads.newsfeed import parameter_groups

GROUPS = ["embedding", "no_decay", "non_embedding", "transformer"]


@pytest.fixture(scope="module")
def in_this_process() -> Any:
    """Runs are done in a thread of this process: to start others takes longer than the runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduce, "workers", lambda *_: ThreadPoolExecutor(1))
        yield


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("reproduce") / "rows.jsonl"
    return path


@pytest.fixture(scope="module")
def table(rows: Path, in_this_process: None) -> dict[str, Any]:
    return reproduce.run("table1", quick=True, seeds=1, rows=rows)


def test_all_configurations_run_and_fill_every_cell(table: dict[str, Any]) -> None:
    assert (table["missing_runs"], table["failed"]) == (0, [])
    assert [block["name"] for block in table["blocks"]] == ["paper", "crash"]
    for block in table["blocks"]:
        assert [row["configuration"] for row in block["rows"]] == list(CONFIGURATIONS)
        for row in block["rows"]:
            assert row["seeds"] == 1
            # On some processors a run that crashes ends in NaN, which is told as None.
            crashes = block["name"] == "crash" and row["crashed"] == 1
            assert all(crashes or math.isfinite(row[of]["mean"]) for of in ("train", "held_out"))
            assert row["seconds"] > 0
    text = said(table)
    for name in CONFIGURATIONS:
        assert sum(line.startswith(name) for line in text.splitlines()) == 4, "losses and AUC, in both blocks"
    assert "no run" not in text
    assert all(caveat in text for caveat in table["caveats"])
    json.dumps(table, allow_nan=False)
    assert table["command"] == "python -m benchmarks reproduce table1 --scale cpu --seeds 1 --quick"
    assert table["settings"]["decay"] == "schedule"
    assert 0.3 < table["blocks"][0]["rows"][-2]["auc"]["mean"]["mean"] < 1
    assert any("nothing can be concluded" in caveat for caveat in table["caveats"])


def test_a_loss_far_above_the_base_rates_is_never_called_sound(table: dict[str, Any]) -> None:
    far = 2 * table["reference"]["base_rate_loss"]
    rows = [*table["sweep"]["rows"], *(row for block in table["blocks"] for row in block["rows"])]
    lost = [row for row in rows if row["train"]["mean"] is None or row["train"]["mean"] > far]
    assert lost
    assert all(row["crashed"] == 1 for row in lost)


@pytest.mark.parametrize("decay", ["literal", "geometric"])
def test_with_eq_8_the_rate_is_what_its_decay_leaves_where_no_vote_moves_it(decay: str) -> None:
    """At so large a σ all replicas weigh the same."""
    settings = Settings(decay, sigma=1e12, sync_every=5, final_div=5.0)
    row = runs.execute(Run("feed", "tiny", "HDET w/o warm init", 9e-4, 0, settings=settings))
    assert row["lr_steps"] == list(range(5, 41, 5))
    for group in GROUPS:
        assert row["factors"][group] == pytest.approx([1.0] * 8, rel=1e-6)
    residual = row["lrs"]["embedding"][-1] / max(row["lrs"]["embedding"])
    # Eq. 8 over six syncs from step 15 on: a fifth is left of 25/5, 1/125 if the logarithm is corrected.
    assert residual == pytest.approx({"literal": 5, "geometric": 125}[decay] ** (-6 / (27 / 5)), rel=0.3)
    assert row["settings"]["decay"] == decay


def test_what_trained_has_learned_at_the_papers_learning_rates(table: dict[str, Any]) -> None:
    losses = {row["configuration"]: row["train"]["mean"] for row in table["blocks"][0]["rows"]}
    # Untrained it is 2.08. Warm starts begin where a checkpoint ends; AutoLR finds more than 9e-4.
    assert losses["Baseline-High"] < losses["Baseline-Low"] < 2.05
    assert losses["HDET (full)"] < losses["HDET w/o warm init"]
    assert losses["AutoLR"] < losses["Baseline-High"]


def test_the_figures_are_made_of_the_same_runs(
    table: dict[str, Any], rows: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce, "execute", lambda run, data: pytest.fail(f"{run} was run again"))
    kept = rows.read_text()
    second = reproduce.run("figure2", quick=True, seeds=1, rows=rows)
    third = reproduce.run("figure3", quick=True, seeds=1, rows=rows)
    assert rows.read_text() == kept
    assert second["missing_runs"] == third["missing_runs"] == 0
    for block in second["blocks"]:
        for curve in block["curves"]:
            (run,) = curve["runs"]
            assert run["steps"] == list(range(1, 41))
            assert len(run["loss"]) == 40
    assert (third["groups"], third["control_from"]) == (GROUPS, 13)
    for block in third["blocks"]:
        (run,) = block["runs"]
        assert run["steps"] == list(range(4, 41, 4))
        # Nothing moves before auto-LR acts; then the groups part.
        assert all(run["factors"][group][:3] == [1.0] * 3 for group in GROUPS)
        assert len({run["factors"][group][-1] for group in GROUPS}) == 4
        assert block["order"]["seeds"] == 1
    assert "published order" in reproduce.said(third)
    assert again(table) == again(reproduce.run("table1", quick=True, seeds=1, rows=rows))


def again(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name != "machine"}


def timeless(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "seconds"}


def test_a_run_alone_is_the_same_as_among_others(table: dict[str, Any], rows: Path) -> None:
    run = Run("feed", "tiny", "HDET (full)", 9e-4, 0)
    runs._checkpoint.cache_clear()
    assert timeless(runs.execute(run)) == timeless(Rows(rows).finished[run])


def test_data_parallelism_is_one_model_on_the_whole_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight replicas that do not differ train as the one model does that stands for them."""
    recipe = runs._Recipe(warm=False, spread=False, auto_lr=False)
    monkeypatch.setitem(runs._RECIPES, "eight alike", recipe)
    eight = runs.execute(Run("feed", "tiny", "eight alike", 3e-3, 0))
    one = runs.execute(Run("feed", "tiny", PLAIN, 3e-3, 0))
    assert eight["loss"] == pytest.approx(one["loss"], rel=1e-4)
    assert eight["held_out"] == pytest.approx(one["held_out"], rel=1e-4)


# ---------------------------------------------------------------------- tasks


def test_the_run_and_its_checkpoint_share_no_batch() -> None:
    task = make("feed", "tiny")
    ours, theirs = next(task.workload.batches(0)), next(task.pretraining(0))
    assert len(ours[0]) == REPLICAS * task.batch_per_replica == 32
    assert not torch.equal(ours[0], theirs[0])
    assert list(parameter_groups(task.workload.build(0))) == GROUPS


def written(path: Path, impressions: int) -> Path:
    """A feed in which video n is shown at time n, so that a batch tells which rows it is made of."""
    names = ["user_id", "video_id", "time_ms", "is_comment", "is_forward", "is_follow", "label", "long_view"]
    lines = [[n % 7, n, n, n % 11 == 0, 0, 0, n % 3 == 0, n % 2 == 0] for n in range(impressions)]
    text = ["\t".join(names), *("\t".join(str(int(value)) for value in line) for line in lines)]
    path.write_text("\n".join(text) + "\n")
    return path


def test_kuairand_is_one_epoch_in_the_order_of_time(tmp_path: Path) -> None:
    file = written(tmp_path / "kuairand_feed.tsv", impressions=3200)
    assert data_file(tmp_path) == data_file(file) == file
    task = make("kuairand", "tiny", "cpu", file)
    feed_rows = [tuple(map(tuple, row)) for row in _histories(task.pretraining(0))]
    run_rows = [tuple(map(tuple, row)) for row in _histories(task.workload.batches(0))]
    assert task.workload.steps == 40
    assert task.pretraining_steps == int(0.4 * (2560 - 1024)) // 16
    assert len(run_rows) == 640
    # Histories of items tell rows apart: none comes twice, in either part or in both.
    assert len(set(feed_rows) | set(run_rows)) == len(feed_rows) + len(run_rows)
    assert all(torch.equal(*pair) for pair in _same(task.workload.batches(0), task.workload.batches(1)))
    assert any("explicit like or hate" in caveat for caveat in task.caveats)
    assert 0 < task.blind_loss < 3 * math.log(2)


def _histories(batches: Any) -> list[Any]:
    return [(row, [last]) for items, _, last_of, _ in batches for row, last in _listed(items, last_of)]


def _listed(items: torch.Tensor, candidates: torch.Tensor) -> Any:
    return zip(items.tolist(), candidates.tolist(), strict=True)


def _same(one: Any, other: Any) -> Any:
    return zip(next(one), next(other), strict=True)


def test_the_language_model_runs_on_any_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HDET_DATA", raising=False)
    assert language() == "helptexts"
    assert any("help of Python" in caveat for caveat in make("helptexts", "tiny").caveats)
    row = runs.execute(Run("helptexts", "tiny", "HDET w/o warm init", 1e-2, 0))
    assert "error" not in row
    assert list(row["factors"]) == GROUPS
    assert row["train"] < row["init"] - 0.5
    assert "auc" not in row
    (tmp_path / "tinyshakespeare.txt").write_text("To be, or not to be. ")
    monkeypatch.setenv("HDET_DATA", str(tmp_path))
    assert language() == "charlm"


def test_warm_runs_of_a_seed_start_from_one_checkpoint_whoever_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run("feed", "tiny", "checkpoint", runs.PRETRAINING_LR, 3)
    made: list[int] = []

    def pretrained(run: Run, data: Path | None) -> dict[str, torch.Tensor]:
        made.append(run.seed)
        return {"weight": torch.full((2,), float(len(made)))}

    monkeypatch.setattr(runs, "_pretrained", pretrained)
    checkpoint = runs._checkpoint.__wrapped__  # as another process would call it
    first, again = (checkpoint(run, None, tmp_path / "kept")["weight"].tolist() for _ in range(2))
    assert (first, again, made) == ([1.0, 1.0], [1.0, 1.0], [3])
    # One that was slower keeps nothing, and starts from the other's.
    (tmp_path / "kept").rename(tmp_path / "aside")

    def overtaken(run: Run, data: Path | None) -> dict[str, torch.Tensor]:
        for file in (tmp_path / "aside").iterdir():
            (tmp_path / "kept" / file.name).write_bytes(file.read_bytes())
        return {"weight": torch.zeros(2)}

    monkeypatch.setattr(runs, "_pretrained", overtaken)
    assert checkpoint(run, None, tmp_path / "kept")["weight"].tolist() == [1.0, 1.0]
    assert len(list((tmp_path / "kept").iterdir())) == 1
