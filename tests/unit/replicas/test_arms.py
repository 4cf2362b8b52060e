"""Which ranks share an arm where no number of arms is given: those of one machine."""

from __future__ import annotations

import pytest

from hdet.replicas.arms import _machines


def test_an_arm_is_a_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert _machines(8, None) == 2


@pytest.mark.parametrize("each", ["", "0", "3", "four"])
def test_machines_that_cannot_be_counted_raise(monkeypatch: pytest.MonkeyPatch, each: str) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", each)
    with pytest.raises(ValueError, match=f"LOCAL_WORLD_SIZE='{each}' does not divide the 8 ranks"):
        _machines(8, None)


def test_one_rank_needs_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert _machines(1, None) == 1
