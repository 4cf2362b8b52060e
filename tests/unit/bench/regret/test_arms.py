"""Every arm of the regret benchmark trains, and the command does what it is asked."""

from __future__ import annotations

import json
import sys
import types
import xml.etree.ElementTree as ElementTree
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import hdet
from hdet.bench.regret import arms
from hdet.bench.regret import command as regret
from hdet.bench.regret.plan import ARMS, Run
from hdet.bench.regret.steps import EagerStep, GraphedStep
from hdet.bench.workloads import WORKLOADS, Workload
from hdet.cli import app

PACKAGES = {
    "prodigy": "prodigyopt",
    "dadaptation": "dadaptation",
    "schedule-free": "schedulefree",
    "mechanic": "mechanic_pytorch",
}


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("arm", ["sweep", *ARMS])
def test_every_arm_trains(arm: str, optimizer: str) -> None:
    if arm == "prodigy" and optimizer == "sgd":
        pytest.skip("Prodigy is a variant of Adam")
    if arm in PACKAGES:
        pytest.importorskip(PACKAGES[arm], reason=f"pip install 'hdet[bench]' for {arm}")
    if arm == "autolr" and not hasattr(hdet, "AutoLR"):
        pytest.skip("hdet.AutoLR is not there yet")
    pytest.importorskip("sklearn")
    lr = 1e-3 if arm in ("sweep", "default", "default-onecycle") else None
    run = Run(
        "digits-cnn", optimizer, arm, lr, ARMS.get(arm, "onecycle"), 0, steps=40 if arm == "autolr" else 5
    )
    one, same = arms.execute(run), arms.execute(run)
    assert "error" not in one, one["error"]
    assert not one["diverged"]
    assert one["held_out"] != one["init"], "nothing was trained"
    assert one["reached"] > 0
    assert one | {"seconds": 0} == same | {"seconds": 0}, "a run is a function of itself"
    json.dumps(one, allow_nan=False)


def test_a_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(arms, "import_module", nothing)
    found = arms.execute(Run("quadratic", "adamw", "prodigy", None, "cosine", 0, steps=2))
    assert found["error"] == "ModuleNotFoundError: this arm needs prodigyopt: pip install 'hdet[bench]'"


def test_a_run_that_diverges_is_a_result() -> None:
    found = arms.execute(Run("quadratic", "sgd", "sweep", 1e6, "wsd", 0, steps=60))
    assert found["diverged"] is True
    assert found["held_out"] is None
    assert found["init"] > 0
    json.dumps(found, allow_nan=False)


def test_wsd_warms_up_holds_and_decays() -> None:
    factors = [arms.wsd(step, 100) for step in range(100)]
    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert set(factors[5:76]) == {1.0}
    assert factors[76:] == pytest.approx([(100 - step) / 25 for step in range(76, 100)])


def test_probe_batches_can_be_asked_by_number() -> None:
    workload = WORKLOADS["quadratic"]("cpu")
    by_number, drawn = arms._ByNumber(workload.probe(0)), list(islice(workload.probe(0), 4))
    for k in (2, 0, 3, 2):
        assert torch.equal(by_number(k)[0], drawn[k][0])


def small_steps(step: Any, workload: Workload, model: torch.nn.Module) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for batch in islice(workload.batches(0), 4):
        losses.append(float(step(batch)))
        optimizer.step()
    return losses


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", list(WORKLOADS))
def test_the_graphed_step_is_the_eager_one(name: str) -> None:
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

    fake = types.SimpleNamespace(run=measure, table=lambda result: "a table", chart=lambda result: "<svg/>")
    monkeypatch.setitem(sys.modules, "hdet.bench.regret.command", fake)
    path = tmp_path / "regret.json"
    words = "--workloads quadratic,charlm --seeds 5 --scale gpu --processes 3 --minutes 1.5 --published"
    done = CliRunner().invoke(app, ["bench", "regret", *words.split(), "--output", str(path)])
    assert done.exit_code == 0, done.output
    seen.pop("on_progress")
    assert seen == {
        **{"quick": False, "device": "cpu", "scale": "gpu", "workloads": ["quadratic", "charlm"]},
        **{"seeds": 5, "processes": 3, "minutes": 1.5, "with_published": True},
    }
    assert json.loads(path.read_text()) == {"rows": [["a", 1], ["b [", 2]]}
    assert '[ "a", 1 ]' in path.read_text(), "a run takes one line"
    assert path.with_suffix(".svg").read_text() == "<svg/>"
    for wrong in (["step", "--seeds", "2"], ["regret", "--workloads", "moon"]):
        refused = CliRunner().invoke(app, ["bench", *wrong])
        assert refused.exit_code == 2, refused.output


def test_unknown_workloads_are_refused() -> None:
    with pytest.raises(ValueError, match=r"workloads must be some of digits-mlp, .*, got digits, moon"):
        regret.run(workloads=("digits", "moon"))


def test_quick_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    result = regret.run(quick=True, on_progress=said.append, processes=1)
    assert result["command"] == "hdet bench regret --quick"
    assert not list(tmp_path.iterdir()), "quick leaves no rows behind"
    assert [pair["workload"] for pair in result["pairs"]] == ["digits-mlp", "quadratic"]
    assert all(pair["arms"]["default"]["held_out"]["regret"] > 10 for pair in result["pairs"])
    assert len(said) == 10
    if hasattr(hdet, "AutoLR"):
        assert not result["failed"]
        assert not result["missing_runs"]
        assert all("autolr" in pair["arms"] for pair in result["pairs"])
    else:
        assert {row["arm"] for row in result["failed"]} == {"autolr"}
    ElementTree.fromstring(regret.chart(result))
