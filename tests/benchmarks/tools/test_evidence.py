"""What the documents say is what the JSON files hold."""

from __future__ import annotations

import html
import json
import re
import statistics
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest

from benchmarks.paper.verdicts import CLAIMS
from benchmarks.regret.analysis import interval
from benchmarks.regret.command import recomputed
from benchmarks.reproduce import figures as reproduce_figures
from benchmarks.reproduce.analysis import table
from benchmarks.reproduce.crash import crash_step
from benchmarks.reproduce.plan import CONFIGURATIONS, PLAIN, SWEPT, Plan, Run
from benchmarks.speed import autolr
from benchmarks.speed.stacked import _ratios
from benchmarks.tools.quote import fill, pages
from tests import ROOT

EVIDENCE = ROOT / "docs" / "evidence"
PAGES = pages(ROOT)


def test_pages_quote_the_evidence() -> None:
    texts = {page: (ROOT / page).read_text(encoding="utf-8") for page in PAGES}
    changed = [page for page, text in texts.items() if fill(text, EVIDENCE, page) != text]
    assert changed == [], "run: python -m benchmarks.tools.quote"


def test_the_pages_are_the_readme_and_all_of_docs() -> None:
    assert {"README.md", "docs/evidence.md", "docs/evidence/sweep.md", "docs/log.md"} <= set(PAGES)
    for page in ("README.md", "docs/evidence.md"):
        assert "<!-- number: " in (ROOT / page).read_text(encoding="utf-8"), page


def measurements() -> list[Path]:
    return sorted(EVIDENCE.glob("*.json"))


def test_every_file_is_quoted_and_says_how_it_was_made() -> None:
    texts = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    judging = {name for claim in CLAIMS for name in claim.files}
    assert measurements()
    for file in measurements():
        result = json.loads(file.read_text(encoding="utf-8"))
        made = r"python -m (benchmarks[ .]|tests\.chaos)"
        assert re.match(made, result["command"])
        assert "--quick" not in result["command"]
        assert {"torch", "cpu", "cores", "date"} <= result["machine"].keys()
        quoted = re.search(rf"<!-- (quote|number|source): {file.stem}[ \n]", texts)
        assert quoted or file.stem in judging, f"{file.name} is quoted nowhere"


def test_a_changed_number_is_noticed(tmp_path: Path) -> None:
    result = json.loads((EVIDENCE / "converge.json").read_text(encoding="utf-8"))
    result["rows"][0]["ratio_to_limit"]["hdet"] += 0.5
    for file in measurements():
        (tmp_path / file.name).write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "converge.json").write_text(json.dumps(result), encoding="utf-8")
    text = (ROOT / "docs" / "evidence" / "cost.md").read_text(encoding="utf-8")
    assert fill(text, tmp_path) != text


@pytest.mark.parametrize("name", ["excess", "excess-optimizers"])
def test_the_excess_follows_from_the_runs_beside_it(name: str) -> None:
    result = json.loads((EVIDENCE / f"{name}.json").read_text(encoding="utf-8"))
    assert json.loads(json.dumps(recomputed(result))) == result


def test_the_cost_of_auto_lr_is_measured() -> None:
    result = autolr.run(quick=True)
    assert result["command"] == "python -m benchmarks autolr --quick"
    for row in result["rows"]:
        plain, auto = row["seconds"]
        assert row["overhead"] == pytest.approx(auto / plain - 1, rel=0.01, abs=0.01)
        assert row["overhead_in_calls"] > row["overhead_in_passes"] > 0
    assert [row["groups"] for row in result["quiet"]] == [1, 4]
    (beside_ddp,) = result["ddp"]
    assert beside_ddp["overhead"].keys() == {"AutoLR", "AutoTune"}
    # The mean, and a sketch that of so small a model is a copy; with the host the best, the beginning, and
    # weights and optimizer state again in the snapshot.
    adamw, sgd = (row["extra_memory_in_weights"] for row in result["rows"])
    assert adamw == pytest.approx(7, abs=0.1)
    assert sgd == pytest.approx(6, abs=0.1)


# ---------------------------------------------------------------------- the paper's experiments

TABLES = ("table1", "table1-kuairand", "pretraining")
FIGURES = ("figure2", "figure3")
#: What drew the figures; another version may place a tick or a line otherwise.
DRAWN_BY = "3.11"


def evidence(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((EVIDENCE / f"{name}.json").read_text(encoding="utf-8"))
    return found


def runs_of(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(zip(result["runs"]["header"], row, strict=True)) for row in result["runs"]["rows"]]


def nearly(value: Any) -> Any:
    """Equal but for what is lost where single runs are kept in six digits."""
    if isinstance(value, dict):
        return {name: nearly(item) for name, item in value.items()}
    if isinstance(value, list):
        return [nearly(item) for item in value]
    return pytest.approx(value, rel=1e-5, abs=2e-5) if isinstance(value, float) else value


@pytest.mark.parametrize("name", TABLES)
def test_a_table_follows_from_the_runs_beside_it(name: str) -> None:
    result = evidence(name)
    device = result["machine"]["device"]
    plan = Plan(result["task"], result["scale"], result["seeds"], device)
    finished = {
        Run(plan.task, plan.scale, row["configuration"], row["lr"], row["seed"], device): row
        for row in runs_of(result)
    }
    made = table(plan, finished)
    assert {part: made[part] for part in ("sweep", "blocks")} == nearly(
        {part: result[part] for part in ("sweep", "blocks")}
    )
    assert result["missing_runs"] == 0
    assert result["failed"] == []


@pytest.mark.parametrize("name", TABLES)
def test_a_line_of_a_table_is_the_mean_of_its_runs(name: str) -> None:
    """The same by hand: it is arithmetic that a reader can do."""
    result = evidence(name)
    swept = [{**row, "configuration": "Tuned baseline"} for row in result["sweep"]["rows"]]
    for line in chain(swept, *(block["rows"] for block in result["blocks"])):
        who = CONFIGURATIONS[line["configuration"]].runs
        runs = [run for run in runs_of(result) if (run["configuration"], run["lr"]) == (who, line["lr"])]
        assert len(runs) == line["seeds"] == result["seeds"]
        assert {run["seed"] for run in runs} == set(range(result["seeds"]))
        assert sum(run["crashed"] for run in runs) == line["crashed"]
        for part in ("train", "held_out"):
            mean, half = interval([run[part] for run in runs])
            assert line[part] == nearly({"mean": mean, "half_width": half})
        assert line["seconds"] == pytest.approx(statistics.fmean(run["seconds"] for run in runs), rel=1e-4)


@pytest.mark.parametrize("task", ["", "-kuairand"])
def test_who_crashed_follows_from_the_curves(task: str) -> None:
    result, curves = evidence(f"table1{task}"), evidence(f"figure2{task}")
    swept = [run for run in runs_of(result) if run["configuration"] == PLAIN and run["lr"] in SWEPT]
    best = {
        seed: min((run for run in swept if run["seed"] == seed), key=lambda run: run["train"])
        for seed in range(result["seeds"])
    }
    blind = result["reference"]["base_rate_loss"]
    assert [block["high"] for block in curves["blocks"]] == [block["high"] for block in result["blocks"]]
    crashed = 0
    for block, of_table in zip(curves["blocks"], result["blocks"], strict=True):
        lines = {row["configuration"]: row for row in of_table["rows"]}
        for curve in block["curves"]:
            for run in curve["runs"]:
                row = {
                    "lr": curve["lr"],
                    "train": run["final"],
                    "loss_steps": run["steps"],
                    "loss": run["loss"],
                }
                # At which step, only the curve of the best plain run would tell, which is not drawn.
                step = crash_step(row, {**best[run["seed"]], "loss": run["loss"]}, blind)
                assert run["crashed"] == (step is not None) == (run["crash_step"] is not None)
            line = lines[curve["configuration"]]
            assert sum(run["crashed"] for run in curve["runs"]) == curve["crashed"] == line["crashed"]
            crashed += curve["crashed"]
    assert crashed, "else there is nothing to see here"


def labels(drawing: str) -> set[str]:
    return {html.unescape(text) for text in re.findall(r"<text [^>]*>([^<]*)</text>", drawing)}


def outlines(drawing: str) -> list[float]:
    paths = re.findall(r' d="([^"]*)"', drawing)
    return [float(number) for path in paths for number in re.findall(r"-?\d+(?:\.\d+)?", path)]


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_drawn_from_its_numbers(name: str) -> None:
    kept = (EVIDENCE / f"{name}.svg").read_text(encoding="utf-8")
    drawn = reproduce_figures.svg(evidence(name))
    assert labels(drawn) == labels(kept)
    assert len(labels(kept)) > 10
    if mpl.__version__.startswith(f"{DRAWN_BY}."):
        # To a thousandth of a point: the last digit is the processor's.
        assert outlines(drawn) == pytest.approx(outlines(kept), abs=1e-3)


def test_stacked_over_processes_is_the_ratio_of_the_rows() -> None:
    result = evidence("stacked")
    found = {
        f"{model}: stacked at least 3 × {way}, {gradients}": ratio
        for (model, way, gradients), ratio in _ratios(result["rows"], 8).items()
    }
    assert found == {
        name: pytest.approx(goal["measured"], rel=1e-3) for name, goal in result["goals"].items()
    }
    assert all(goal["met"] == (goal["measured"] >= 3) for goal in result["goals"].values())
