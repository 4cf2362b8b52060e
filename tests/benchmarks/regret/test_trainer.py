"""The schedule that most arms share."""

from __future__ import annotations

import pytest

from benchmarks.regret.trainer import wsd


def test_wsd_warms_up_holds_and_decays() -> None:
    factors = [wsd(step, 100) for step in range(100)]
    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert set(factors[5:76]) == {1.0}
    assert factors[76:] == pytest.approx([(100 - step) / 25 for step in range(76, 100)])
