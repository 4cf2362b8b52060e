"""Every arm of the regret benchmark trains, and the command does what it is asked."""

from __future__ import annotations

import json
import sys
import types
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.cli import app
from benchmarks.regret import arms
from benchmarks.regret import command as regret
from benchmarks.regret.plan import ARMS, OPTIMIZERS, Run, _applies
from benchmarks.regret.steps import EagerStep, GraphedStep
from benchmarks.workloads import WORKLOADS, Workload

PACKAGES = {
    "prodigy": "prodigyopt",
    "prodigy-schedulefree": "prodigyplus",
    "schedule-free": "schedulefree",
    "greedy": "transformers",
}


# Muon multiplies in bfloat16, which some CPUs lack; torch says so once.
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.parametrize(
    ("arm", "optimizer"),
    [
        *((arm, "adamw") for arm in ("sweep", *ARMS)),
        *(("autolr", one) for one in OPTIMIZERS if one != "adamw"),
    ],
)
def test_every_arm_trains(arm: str, optimizer: str) -> None:
    if not _applies(arm, optimizer):
        pytest.skip(f"{arm} has no variant of {optimizer}")
    if arm in PACKAGES:
        pytest.importorskip(PACKAGES[arm], reason=f"pip install -r benchmarks/requirements.txt for {arm}")
    pytest.importorskip("sklearn")
    lr = 1e-3 if arm in ("sweep", "default-onecycle") else None
    workload, steps = "digits-mlp" if optimizer == "muon" else "digits-cnn", 40 if arm == "autolr" else 5
    run = Run(workload, optimizer, arm, lr, ARMS.get(arm, "onecycle"), 0, steps=steps)
    if optimizer == "muon":
        # At its first product torch may turn, for good, from a library that the CPU cannot use it with.
        arms.execute(Run(workload, optimizer, "sweep", 1e-3, "wsd", 0, steps=1))
    one, same = arms.execute(run), arms.execute(run)
    assert "error" not in one, one["error"]
    assert not one["diverged"]
    assert one["held_out"] != one["init"], "nothing was trained"
    assert one["reached"] > 0
    assert one | {"seconds": 0} == same | {"seconds": 0}, "a run is a function of itself"
    json.dumps(one, allow_nan=False)


def test_a_run_that_diverges_is_a_result() -> None:
    found = arms.execute(Run("quadratic", "sgd", "sweep", 1e6, "wsd", 0, steps=60))
    assert found["diverged"] is True
    assert found["held_out"] is None
    assert found["init"] > 0
    json.dumps(found, allow_nan=False)


def small_steps(step: Any, workload: Workload, model: torch.nn.Module) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for batch in islice(workload.batches(0), 4):
        losses.append(float(step(batch)))
        optimizer.step()
    return losses


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_graphed_step_is_the_eager_one() -> None:
    for name in list(WORKLOADS):
        workload = WORKLOADS[name]("gpu", "cuda")
        plain, model = workload.build(0), workload.build(0)
        before = {key: value.clone() for key, value in model.state_dict().items()}
        graphed = GraphedStep(workload, model, next(workload.batches(0)))
        assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
        expected = small_steps(EagerStep(workload, plain), workload, plain)
        assert small_steps(graphed, workload, model) == pytest.approx(expected, rel=1e-3)
        for key, value in plain.state_dict().items():
            torch.testing.assert_close(model.state_dict()[key], value, rtol=1e-2, atol=1e-3)


def test_the_command_hands_its_options_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def measure(**options: Any) -> dict[str, Any]:
        seen.update(options)
        return {"rows": [["a", 1], ["b [", 2]]}

    fake = types.SimpleNamespace(run=measure, table=lambda result: "a table")
    monkeypatch.setitem(sys.modules, "benchmarks.regret.command", fake)
    path, other = tmp_path / "regret.json", tmp_path / "other.jsonl"
    other.write_text("")
    words = "--workloads quadratic,charlm --seeds 5 --scale gpu --processes 3 --minutes 1.5"
    words += f" --optimizers lion,muon --merge {other} --merge {other}"
    done = CliRunner().invoke(app, ["regret", *words.split(), "--output", str(path)])
    assert done.exit_code == 0, done.output
    assert "a table" in done.output
    seen.pop("on_progress")
    assert seen == {
        **{"quick": False, "device": "cpu", "scale": "gpu", "workloads": ["quadratic", "charlm"]},
        **{"seeds": 5, "processes": 3, "minutes": 1.5},
        **{"optimizers": ["lion", "muon"], "merge": [other, other]},
    }
    assert json.loads(path.read_text()) == {"rows": [["a", 1], ["b [", 2]]}
    assert '[ "a", 1 ]' in path.read_text(), "a run takes one line"
    for wrong in (
        ["step", "--seeds", "2"],
        ["regret", "--workloads", "moon"],
        ["regret", "--optimizers", "moon"],
        ["regret", "--merge", str(tmp_path / "none.jsonl")],
    ):
        refused = CliRunner().invoke(app, [*wrong])
        assert refused.exit_code == 2, refused.output


def test_quick_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    result = regret.run(quick=True, on_progress=said.append, processes=1)
    assert result["command"] == "python -m benchmarks regret --quick"
    assert not list(tmp_path.iterdir()), "quick leaves no rows behind"
    pairs = result["excess"]["pairs"]
    assert [pair["workload"] for pair in pairs] == ["digits-mlp", "quadratic"]
    assert all(pair["arms"]["default-onecycle"]["ends"]["excess"] > 10 for pair in pairs)
    assert len(said) == 10
    assert not result["failed"]
    assert not result["missing_runs"]
    assert all("autolr" in pair["arms"] for pair in pairs)
