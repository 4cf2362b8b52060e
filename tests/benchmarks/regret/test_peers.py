"""Peers: that each is planned, that one which is not there says how to get it, and what GreedyLR is told."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.regret import analysis, arms, peers
from benchmarks.regret.plan import ARMS, Run


def test_every_peer_has_a_plan_and_a_column() -> None:
    assert set(peers.PEERS) == set(analysis.PEERS) <= set(ARMS)
    assert set(ARMS) == set(analysis.COLUMNS)


def test_a_missing_package_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for arm, words in [
        ("prodigy", "this arm needs prodigyopt: pip install -r benchmarks/requirements.txt"),
        ("prodigy-schedulefree", "this arm needs prodigyplus: pip install -r benchmarks/requirements.txt"),
        ("greedy", "this arm needs transformers: pip install 'transformers>=5.4'"),
    ]:

        def nothing(name: str) -> Any:
            raise ModuleNotFoundError(name)

        monkeypatch.setattr(peers, "import_module", nothing)
        found = arms.execute(Run("quadratic", "adamw", arm, None, ARMS[arm], 0, steps=2))
        assert found["error"] == f"ModuleNotFoundError: {words}"
