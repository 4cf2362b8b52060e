"""What was recorded happens again, whole and from the middle."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from hdet.bench.regret import arms
from hdet.bench.regret.plan import run_of
from hdet.replicas.launch import LocalProcesses
from tests.recorded.machine import fingerprint
from tests.recorded.scenarios import SCENARIOS

HERE = Path(__file__).parent
RECORDED = json.loads((HERE / "runs.json").read_text(encoding="utf-8"))
#: On another processor, or with another torch, sums differ in their last bit.
EXACT = RECORDED["machine"] == fingerprint()


def near(value: Any) -> Any:
    """Equal but for rounding and what follows from it."""
    if isinstance(value, dict):
        return {name: near(item) for name, item in value.items()}
    if isinstance(value, list):
        return [near(item) for item in value]
    return pytest.approx(value, rel=1e-5, abs=1e-12) if isinstance(value, float) else value


def parsed(lines: list[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_run_goes_as_it_went(ranks: LocalProcesses, name: str) -> None:
    scenario = SCENARIOS[name]
    recorded = RECORDED["runs"][name]
    for rank, result in enumerate(ranks.run(scenario, size=scenario.ranks, timeout=120)):
        if EXACT:
            assert result["records"] == recorded["records"], f"rank {rank}"
            assert result["weights"] == recorded["weights"], f"rank {rank}"
        else:
            assert parsed(result["records"]) == near(parsed(recorded["records"])), f"rank {rank}"


@pytest.mark.parametrize("name", [name for name, s in SCENARIOS.items() if s.stop_at < s.steps])
def test_a_state_saved_before_loads_after(ranks: LocalProcesses, name: str) -> None:
    """Saved by an earlier version of the package, each rank its own; what follows is what followed then.

    But for the order in which DDP sums its first gradients, and the distance predicted within the interval
    that was interrupted, whose displacement is counted from the resume on.
    """
    scenario = SCENARIOS[name]
    results = ranks.run(resumed, name, size=scenario.ranks, timeout=120)
    rest = [line for line in parsed(RECORDED["runs"][name]["records"]) if line["step"] > scenario.stop_at]
    assert rest
    for result in results:
        found = parsed(result["records"])
        found[0]["distance_predicted"] = rest[0]["distance_predicted"]
        assert found == near(rest)


def resumed(rank: int, name: str, folder: str = ".") -> dict[str, Any]:
    saved = torch.load(HERE / folder / f"{name}.pt", weights_only=True)[rank]
    return SCENARIOS[name](rank, saved=saved)


@pytest.mark.parametrize("name", [path.stem for path in sorted((HERE / "before").glob("*.pt"))])
def test_a_state_saved_before_there_were_policies_loads(ranks: LocalProcesses, name: str) -> None:
    """``before`` holds such states. Their horizon judged by another rule, and a regression's values were
    dealt otherwise, so that what follows is another run; everything else goes on as it went then."""
    scenario = SCENARIOS[name]
    otherwise = name.startswith("auto_lr") or "horizon" in name or name == "regression"
    results = ranks.run(resumed, name, "before", size=scenario.ranks, timeout=120)
    whole = parsed(RECORDED["runs"][name]["records"])
    for result in results:
        found = parsed(result["records"])
        assert found[-1]["step"] == whole[-1]["step"]
        assert all(math.isfinite(float.fromhex(total)) for total in result["weights"])
        assert result["weights"] == results[0]["weights"]
        if not otherwise:
            rest = [line for line in whole if line["step"] > scenario.stop_at]
            found[0]["distance_predicted"] = rest[0]["distance_predicted"]
            assert found == near(rest)


@pytest.mark.parametrize("recorded", parsed((HERE / "regret.jsonl").read_text(encoding="utf-8").splitlines()))
def test_a_run_of_the_regret_ends_where_it_ended(recorded: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    row = arms.execute(run_of({"scale": "cpu", "device": "cpu", "steps": None, **recorded}))
    found = {name: row[name] for name in ("held_out", "train", "reached")}
    kept = {name: recorded[name] for name in found}
    assert found == (kept if EXACT else pytest.approx(kept, rel=0.05))
