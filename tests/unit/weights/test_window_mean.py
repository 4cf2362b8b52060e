"""The mean of a window's weights: exact, in enough precision, and nothing of the window before."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from hdet.weights.window_mean import WindowMean


def walk(steps: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> list[list[Tensor]]:
    """The iterates of a window: two tensors, one of them a single number."""
    draw = torch.Generator().manual_seed(seed)
    return [
        [torch.randn(s, generator=draw, dtype=torch.float64).to(dtype) for s in ((3, 2), ())]
        for _ in range(steps)
    ]


def average(weights: list[Tensor], iterates: list[list[Tensor]], mean: WindowMean) -> list[Tensor]:
    mean.begin(len(iterates))
    for iterate in iterates:
        for weight, value in zip(weights, iterate, strict=True):
            weight.copy_(value)
        mean.add()
    return [tensor.clone() for tensor in mean.tensors]


@pytest.mark.parametrize("steps", [1, 2, 10, 32, 63])
def test_a_window_mean_is_the_arithmetic_mean(steps: int) -> None:
    weights = [torch.zeros(3, 2, dtype=torch.float64), torch.zeros((), dtype=torch.float64)]
    iterates = walk(steps)
    found = average(weights, iterates, WindowMean(weights))
    for k, tensor in enumerate(found):
        torch.testing.assert_close(
            tensor, torch.stack([i[k] for i in iterates]).mean(0), rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("steps", [64, 100, 1000, 1001])
def test_of_a_long_window_every_kth_iterate_counts_and_the_last_one_always(steps: int) -> None:
    weights = [torch.zeros(3, 2, dtype=torch.float64), torch.zeros((), dtype=torch.float64)]
    iterates = walk(steps)
    mean = WindowMean(weights)
    found = average(weights, iterates, mean)
    stride = steps // 32
    chosen = iterates[::-1][::stride]
    assert mean.count == len(chosen)
    assert 32 <= mean.count < 64
    for k, tensor in enumerate(found):
        torch.testing.assert_close(
            tensor, torch.stack([i[k] for i in chosen]).mean(0), rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("left", [math.nan, math.inf])
def test_a_window_owes_nothing_to_the_one_before(left: float) -> None:
    weights = [torch.zeros(3, 2, dtype=torch.float64), torch.zeros((), dtype=torch.float64)]
    fresh = average(weights, walk(10), WindowMean(weights))
    mean = WindowMean(weights)
    average(weights, [[torch.full_like(w, left) for w in weights]] * 5, mean)
    assert not mean.tensors[0].isfinite().any()
    for a, b in zip(average(weights, walk(10), mean), fresh, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_weights_have_a_float32_mean(dtype: torch.dtype) -> None:
    """In bfloat16 a running mean of 60 iterates around 1 would not move at all."""
    weights = [torch.zeros(3, 2, dtype=dtype), torch.zeros((), dtype=dtype)]
    iterates = [[1 + t / 50 for t in step] for step in walk(60, dtype)]
    found = average(weights, iterates, WindowMean(weights))
    for k, tensor in enumerate(found):
        assert tensor.dtype == torch.float32
        exact = torch.stack([i[k].double() for i in iterates]).mean(0)
        torch.testing.assert_close(tensor.double(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("at", [0, 1, 37, 100])
def test_a_window_broken_off_goes_on(at: int) -> None:
    weights = [torch.zeros(3, 2, dtype=torch.float64), torch.zeros((), dtype=torch.float64)]
    iterates = walk(100)
    whole = average(weights, iterates, WindowMean(weights))
    first, second = WindowMean(weights), WindowMean(weights)
    first.begin(100)
    for k, iterate in enumerate(iterates):
        if k == at:
            second.load_state_dict(first.state_dict())
        for weight, value in zip(weights, iterate, strict=True):
            weight.copy_(value)
        (first if k < at else second).add()
    for a, b in zip((second if at < 100 else first).tensors, whole, strict=True):
        assert torch.equal(a, b)


def test_weights_may_be_pointed_elsewhere_between_two_windows() -> None:
    weight = nn.Parameter(torch.zeros(2))
    mean = WindowMean([weight])
    weight.data = torch.full((2,), 3.0)
    mean.begin(1)
    mean.add()
    assert mean.tensors[0].tolist() == [3, 3]
