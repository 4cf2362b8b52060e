"""Norms that tell whether anything is not finite, and nothing else by it."""

from __future__ import annotations

import math

import pytest
import torch

from hdet.replicas.norms import norm_of, row_norms


def test_the_norm_of_all_together() -> None:
    tensors = [torch.full((4,), 3.0), torch.full((2, 2), 4.0, dtype=torch.bfloat16), torch.empty(0)]
    assert norm_of(tensors) == pytest.approx(10.0)
    assert norm_of([]) == 0.0
    assert norm_of([torch.tensor([3 + 4j])]) == pytest.approx(5.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_one_value_that_is_not_finite(dtype: torch.dtype, poison: float) -> None:
    tensors = [torch.ones(5, dtype=dtype), torch.ones(3, 7, dtype=dtype)]
    assert math.isfinite(norm_of(tensors))
    tensors[1][2, 6] = poison
    assert math.isnan(norm_of(tensors))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_squares_that_overflow_are_no_poison(dtype: torch.dtype) -> None:
    largest = torch.finfo(dtype).max
    assert math.isfinite(norm_of([torch.full((3,), largest, dtype=dtype)]))
    rows = row_norms([torch.full((2, 3), largest, dtype=dtype)], 2)
    assert torch.isfinite(rows).all()


def test_rows_are_told_apart() -> None:
    one, two = torch.ones(3, 4), torch.ones(3, 2, 2, dtype=torch.bfloat16)
    two[1, 0, 1] = math.inf
    norms = row_norms([one, two, torch.empty(3, 0)], 3)
    assert torch.isnan(norms).tolist() == [False, True, False]
    assert float(norms[0]) == pytest.approx(math.sqrt(8))
