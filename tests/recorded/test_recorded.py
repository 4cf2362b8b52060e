"""What was recorded happens again, whole and from the middle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.regret import arms
from benchmarks.regret.plan import run_of
from hdet.loop.state import FORMAT
from hdet.replicas.launch import LocalProcesses
from tests.recorded.machine import fingerprint
from tests.recorded.scenarios import SAVED, SCENARIOS, STATES, kept

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


def loosely(result: dict[str, Any]) -> dict[str, Any]:
    """What can be compared on any machine: all but hashes."""
    lines = parsed(result["records"])
    for line in lines:
        if "horizon" not in line:
            line.pop("weights", None)
    return {"records": lines, "events": result["events"], "handed": result["handed"]}


def assert_same(found: dict[str, Any], expected: dict[str, Any], *, exactly: bool) -> None:
    if exactly:
        assert found == expected
    else:
        assert loosely(found) == near(loosely(expected))


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_run_goes_as_it_went(ranks: LocalProcesses, name: str) -> None:
    scenario = SCENARIOS[name]
    for result in ranks.run(scenario, size=scenario.ranks, timeout=120):
        assert scenario.shows is None or scenario.shows(result)
        assert_same(kept(result), RECORDED["runs"][name], exactly=EXACT)


@pytest.mark.parametrize("name", [name for name, s in SCENARIOS.items() if s.stop_at < s.steps])
def test_a_resumed_run_is_the_unbroken_one(ranks: LocalProcesses, name: str) -> None:
    """But for the order in which DDP sums its first gradients, where more than two ranks do, and the distance
    predicted within the interval that was interrupted, whose displacement is counted from the resume on."""
    scenario = SCENARIOS[name]
    assert_goes_on(ranks, name, ranks.run(scenario, scenario.stop_at, size=scenario.ranks, timeout=120))


@pytest.mark.parametrize(
    "file", sorted(STATES.glob("*/*.pt")), ids=lambda file: f"{file.parent.name}/{file.stem}"
)
def test_a_state_that_an_earlier_version_saved_goes_on(ranks: LocalProcesses, file: Path) -> None:
    """Every format from 0.3.0 on, of each door."""
    assert_goes_on(ranks, file.stem, torch.load(file, weights_only=True))


def test_a_state_of_each_door_is_recorded() -> None:
    for folder in (STATES / str(FORMAT), *STATES.iterdir()):
        assert {file.stem for file in folder.glob("*.pt")} == set(SAVED), "python -m tests.recorded states"


def assert_goes_on(ranks: LocalProcesses, name: str, halves: list[dict[str, Any]]) -> None:
    """From the first half of a run, of each rank, to the end that was recorded."""
    scenario, recorded = SCENARIOS[name], RECORDED["runs"][name]
    states = [half["saved"] for half in halves]
    rests = ranks.run(resumed_from, name, states, size=scenario.ranks, timeout=120)
    for half, rest in zip(halves, rests, strict=True):
        assert half["records"]
        assert rest["records"]
        interrupted = json.loads(recorded["records"][len(half["records"])])
        first = json.loads(rest["records"][0])
        if "distance_predicted" in first:
            first["distance_predicted"] = interrupted["distance_predicted"]
        records = [*half["records"], json.dumps(first), *rest["records"][1:]]
        found = {**kept(rest), "records": records, "events": half["events"] + rest["events"]}
        assert_same(found, recorded, exactly=EXACT and scenario.resumes_exactly)


def resumed_from(rank: int, name: str, states: list[dict[str, Any]]) -> dict[str, Any]:
    return SCENARIOS[name](rank, saved=states[rank])


@pytest.mark.parametrize("recorded", parsed((HERE / "regret.jsonl").read_text(encoding="utf-8").splitlines()))
def test_a_run_of_the_regret_ends_where_it_ended(recorded: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    row = arms.execute(run_of({"scale": "cpu", "device": "cpu", "steps": None, **recorded}))
    if EXACT:
        names = "held_out", "train", "reached"
        assert {name: row[name] for name in names} == {name: recorded[name] for name in names}
        return
    # Rounding grows over a run. One weight changed by its last bit makes the held-out loss of digits by SGD
    # 0.6 to 1.4 times what is recorded, as another processor does; all others change by less than 1 %.
    factor = 2 if (recorded["workload"], recorded["optimizer"]) == ("digits-mlp", "sgd") else 1.05
    assert 1 / factor < row["held_out"] / recorded["held_out"] < factor
    assert row["reached"] == pytest.approx(recorded["reached"], rel=0.05)
