"""The cost model as properties, and one small run in which it is held against this machine."""

from __future__ import annotations

import json

import pytest

from benchmarks.scale import command, memory
from benchmarks.scale import model as cost
from tests.benchmarks.screen import shown

LINK = cost.Link("made up", 10e9, 5e-6)


def test_a_fit_finds_the_link_that_made_the_times() -> None:
    for ranks in (2, 4, 8):
        times = [(n, cost.ring_seconds(n, ranks, LINK)) for n in (1e4, 1e6, 1e8)]
        found = cost.fit("", ranks, times)
        assert found.bytes_per_second == pytest.approx(LINK.bytes_per_second)
        assert found.seconds_per_message == pytest.approx(LINK.seconds_per_message)


def test_seconds_follow_the_bytes_and_latency_the_replicas() -> None:
    fast = cost.Link("", 10e9, 0.0)
    assert cost.converge_seconds(7e9, 8, fast) == pytest.approx(2 * 7 / 8 * 28e9 / 10e9)
    slow = [cost.converge_seconds(1e9, n, cost.Link("", 1e30, 1e-6)) for n in (64, 128)]
    assert slow[1] == pytest.approx(slow[0] * 127 / 63 / 2, rel=0.05), "buckets grow with the replicas"
    assert cost.converge_seconds(1e9, 1, LINK) == 0


def test_what_is_said_of_other_machines() -> None:
    said = command.extrapolated()
    rows = said["rows"]
    assert {row["replicas"] for row in rows} >= {8, 4096}
    assert {row["model"] for row in rows} == {"1B", "7B", "70B", "405B"}
    assert all(row["devices"] <= 8 for row in rows if row["link"] == "NVLink"), "one machine"
    for row in rows:
        # A converge in float32 is twice a bf16 gradient's bytes, and its messages.
        assert row["converge_seconds"] >= 2 * row["gradient_seconds"] * 0.99 - 1e-9 or (row["replicas"] > 64)
        assert row["step_seconds"] >= row["gradient_seconds"]
    seven = next(r for r in rows if (r["model"], r["link"], r["replicas"]) == ("7B", "InfiniBand", 8))
    assert seven["devices"] == 16
    assert seven["converge_share_of_step"] < 0.005


def test_a_small_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "DOORS", {"AutoLR": 1, "Ensemble, own gradients": 2})
    said: list[str] = []
    result = command.run(quick=True, on_progress=said.append)
    assert json.loads(json.dumps(result)) == result
    (link,) = result["measured"]["links"]
    assert link["ranks"] == 2
    assert link["converge"]["measured_ms"] > 0
    for row in result["measured"]["memory"]:
        assert abs(row["error"]) < 0.02, row
    assert result["goals"]["memory"]["met"]
    for text in (shown(command.table(result)), command.markdown(result)):
        assert "Measured here: memory beyond training" in text
        assert "Extrapolated: seconds of a step" in text
    assert "nobody has run it" in command.markdown(result)
    with pytest.raises(ValueError, match="device must be 'cpu'"):
        command.run(device="cuda")
