"""Peers: that each is planned, that one which is not there says how to get it, and what GreedyLR is told."""

from __future__ import annotations

import types
from typing import Any

import pytest

from hdet.bench.regret import analysis, arms, peers
from hdet.bench.regret.chart import _STYLES
from hdet.bench.regret.plan import ARMS, Run


def test_every_peer_has_a_plan_a_column_and_a_mark() -> None:
    assert set(peers.PEERS) == set(analysis.PEERS) <= set(ARMS)
    assert set(ARMS) <= set(analysis.COLUMNS) == set(_STYLES)


@pytest.mark.parametrize(
    ("arm", "words"),
    [
        ("prodigy", "this arm needs prodigyopt: pip install 'hdet[bench]'"),
        ("prodigy-schedulefree", "this arm needs prodigyplus: pip install 'hdet[bench]'"),
        ("greedy", "this arm needs transformers: pip install 'transformers>=5.4'"),
    ],
)
def test_a_missing_package_says_how_to_get_it(arm: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(peers, "import_module", nothing)
    found = arms.execute(Run("quadratic", "adamw", arm, None, ARMS[arm], 0, steps=2))
    assert found["error"] == f"ModuleNotFoundError: {words}"


def test_greedy_is_told_the_loss_of_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[float] = []

    class GreedyLR:
        def __init__(self, optimizer: Any, **settings: Any) -> None:
            self.optimizer, self.settings = optimizer, settings

        def step(self, loss: float) -> None:
            told.append(loss)
            self.optimizer.param_groups[0]["lr"] *= 2

    monkeypatch.setattr(peers, "import_module", lambda name: types.SimpleNamespace(GreedyLR=GreedyLR))
    found = arms.execute(Run("quadratic", "lion", "greedy", None, "own", 0, steps=4))
    assert "error" not in found, found
    assert len(told) == 4
    assert all(isinstance(loss, float) for loss in told)
    # From Lion's default, doubled after each step but the last.
    assert found["reached"] == pytest.approx(1e-4 * 2**3)
    monkeypatch.setattr(peers, "import_module", lambda name: types.SimpleNamespace())
    old = arms.execute(Run("quadratic", "lion", "greedy", None, "own", 0, steps=4))
    assert old["error"] == "ModuleNotFoundError: this arm needs GreedyLR: pip install 'transformers>=5.4'"
