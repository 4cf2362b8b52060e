"""Ranks that share gradients are one replica."""

from __future__ import annotations

import math

import hdet
from hdet.engine.gradients import GradientSharing
from tests.fakes import Alike


def test_an_arm_with_a_rank_that_saw_nothing_is_unknown() -> None:
    """Its ranks are one replica: what one of them could not measure, the others did not measure for it."""
    arms = hdet.Arms(1)
    arms.count, arms.ranks = 2, 4
    sharing = GradientSharing("Ensemble", arms, Alike(0, 4), None)
    first, second = sharing.by_arm([1.0, 2.0, math.nan, 3.0])
    assert first == 1.5
    assert math.isnan(second)
