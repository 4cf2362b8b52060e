"""Eight bits a value: how far off, what is exact, and what becomes of what is not finite."""

from __future__ import annotations

import math

import pytest
import torch

from hdet.replicas.quantise import BLOCK, blocks_of, dequantise, quantise


@pytest.mark.parametrize("values", [1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 5])
def test_a_value_is_off_by_half_a_step_of_its_block_at_most(values: int) -> None:
    torch.manual_seed(0)
    rows = torch.randn(3, values) * torch.logspace(-3, 3, values)
    codes, scales = quantise(rows)
    assert codes.shape == rows.shape
    assert codes.dtype == torch.int8
    assert scales.shape == (3, blocks_of(values))
    step = scales.repeat_interleave(BLOCK, dim=1)[:, :values]
    assert bool(((dequantise(codes, scales) - rows).abs() <= 0.5001 * step).all())


def test_zeros_and_the_largest_value_are_exact() -> None:
    rows = torch.zeros(2, 2 * BLOCK)
    rows[1, 3], rows[1, BLOCK] = -127.0, 127.0
    assert torch.equal(dequantise(*quantise(rows)), rows)


@pytest.mark.parametrize("lost", [math.nan, math.inf, -math.inf])
def test_a_block_that_is_not_finite_is_lost_as_a_whole_and_alone(lost: float) -> None:
    rows = torch.ones(1, 3 * BLOCK)
    rows[0, BLOCK + 5] = lost
    back = dequantise(*quantise(rows))[0].view(3, BLOCK)
    assert bool(back[1].isnan().all())
    torch.testing.assert_close(back[[0, 2]], torch.ones(2, BLOCK))
