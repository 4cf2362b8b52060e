"""What each constant of AutoLR is worth."""

import json
from dataclasses import asdict, fields

import pytest

from benchmarks.zoo import ablation
from benchmarks.zoo.ablation import AS_IT_IS, VARIANTS, compare, execute_variant
from benchmarks.zoo.plan import Plan, run_of
from hdet.autolr import best
from hdet.autolr.rule import HorizonController
from tests.benchmarks.zoo.rows import complete, row_of

TASK = "linear-layers-full-batch"
CELLS = [("letter-mlp", "adamw"), ("letter-mlp", "sgd"), ("clothes-autoencoder", "adamw")]


def test_every_constant_of_the_rule_has_a_variant_that_changes_it_alone():
    usual, changed = asdict(HorizonController()), []
    for given, constants in VARIANTS.values():
        if "rule" in given:
            (name,) = (name for name, value in asdict(given["rule"]).items() if value != usual[name])
            changed.append(name)
        assert all(getattr(*place) != value for place, value in constants.items())
    assert set(changed) == {field.name for field in fields(HorizonController)}


@pytest.mark.parametrize("name", [AS_IT_IS, "pull 0", "patience None", "max_restarts 0"])
def test_a_variant_runs(name):
    run = Plan([]).run("autolr", (TASK, "adamw"), 0)
    row = execute_variant((name, run), steps=40)
    assert "error" not in row
    assert row["variant"] == name
    assert run_of(row) == run
    assert row["test_chosen"] < row["start"]


def test_constants_are_changed_for_one_run_and_put_back(monkeypatch):
    seen = []
    monkeypatch.setattr(ablation, "execute", lambda run, steps: seen.append(best._BEHIND) or {})
    before = best._BEHIND
    execute_variant(("behind 3", None))
    assert (seen, best._BEHIND) == ([3], before)


def test_differences_are_between_the_same_runs():
    plan = Plan(CELLS, device="cuda")
    swept = complete(Plan(CELLS, methods=("sweep",), device="cuda"), lambda run: 1.0)

    def rows(name, losses, seeds):
        runs = [(plan.run("autolr", cell, seed), loss) for cell, loss in losses for seed in seeds]
        return {(name, run): row_of(run, loss) for run, loss in runs}

    finished = {
        **rows(AS_IT_IS, zip(CELLS, (1.1, 1.1, 1.1), strict=True), (0, 1)),
        # Of seed 2 nothing is known as it is: it does not count.
        **rows("pull 0", zip(CELLS, (1.2, 1.1, 9.0), strict=True), (0,)),
        **rows("pull 0", zip(CELLS, (9.0, 9.0, 9.0), strict=True), (2,)),
        **rows("lost 0.05", [(CELLS[0], 1.102)], (0,)),
    }
    found = compare(CELLS, finished, swept)["variants"]
    assert list(found) == [AS_IT_IS, "pull 0", "lost 0.05"]
    usual, off, halved = found.values()
    assert usual["mean_to_one"] == pytest.approx(0.1)
    assert (usual["runs"], usual["difference"], usual["lost"], usual["pays"]) == (6, 0, 0, False)
    assert off["mean_to_one"] == pytest.approx((0.2 + 0.1 + 1.0) / 3)
    assert off["difference"] == pytest.approx((0.1 + 0.0 + 0.9) / 3)
    # Two families: their cells are together as far below the mean as the other's one cell is above it.
    assert off["error"] == pytest.approx((2 * 2) ** 0.5 * (0.9 - 1 / 3) / 3, rel=1e-4)
    assert (off["runs"], off["lost"], off["lost_as_it_is"], off["pays"]) == (3, 1, 0, True)
    assert halved["difference"] == pytest.approx(0.002)
    assert (halved["error"], halved["pays"]) == (None, False)


def test_what_is_kept_is_compared_and_not_run_again(tmp_path, monkeypatch):
    output, kept = tmp_path / "found.json", tmp_path / "rows.jsonl"
    runs = [Plan([]).run("autolr", (TASK, optimizer), 0) for optimizer in ("adamw", "sgd")]
    rows = [row_of(run, 0.5, variant=name) for name in (AS_IT_IS, "least 1e+09") for run in runs]
    kept.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(ablation, "cells", lambda part: [(TASK, "adamw"), (TASK, "sgd")])
    options = ["--minutes", "0", "--seeds", "1", "--rows", str(kept), "--output", str(output)]
    monkeypatch.setattr("sys.argv", ["ablation", *options])
    ablation.main()
    found = json.loads(output.read_text())
    assert found["missing_runs"] == 2 * (len(VARIANTS) - 2)
    assert found["command"] == "python -m benchmarks.zoo.ablation --part dev --seeds 1 --device cpu"
    assert found["variants"]["least 1e+09"]["difference"] == 0
