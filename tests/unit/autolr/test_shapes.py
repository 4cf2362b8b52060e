"""The shapes of a run: where each peaks, and that it ends at nothing."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from hdet.autolr.shapes import SHAPES, Cosine, OneCycle, WarmStableDecay


@pytest.mark.parametrize("steps", [40, 77, 1000])
def test_one_cycle_is_torchs(steps: int) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    torchs = OneCycleLR(optimizer, max_lr=1.0, total_steps=steps)
    shape = OneCycle(steps)
    for step in range(steps):
        assert shape(step) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
        optimizer.step()
        if step < steps - 1:
            torchs.step()


@pytest.mark.parametrize("steps", [40, 77, 1000])
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_peaks_at_one_and_ends_at_nothing(name: str, steps: int) -> None:
    shape = SHAPES[name](steps)
    values = [shape(step) for step in range(steps)]
    assert max(values) == pytest.approx(1.0, abs=0.01)
    assert max(values) <= 1.0
    assert all(value > 0 for value in values), "every step of the run is a step"
    assert shape(steps) == pytest.approx(0.0, abs=1e-5)
    assert shape(steps + 5) <= shape(steps), "and beyond it nothing rises again"
    peak = values.index(max(values))
    assert all(b <= a for a, b in pairwise(values[peak:]))


def test_wsd_is_constant_then_linear() -> None:
    shape = WarmStableDecay.of(200)
    assert [shape(step) for step in range(151)] == [1.0] * 151
    falls = [shape(step) - shape(step + 1) for step in range(150, 200)]
    assert falls == pytest.approx([1 / 50] * 50)
    assert shape.search_until == 150
    assert WarmStableDecay.of(None)(10**9) == 1.0
    assert WarmStableDecay.of(None).search_until is None


def test_cosine() -> None:
    assert Cosine(100)(0) == 1.0
    assert Cosine(100)(50) == pytest.approx(0.5)
