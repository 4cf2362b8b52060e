"""The mean of a window's weights: exact, in enough precision, and nothing of the window before."""

from __future__ import annotations

import math
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hdet.autolr.window_mean import WindowMean


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


@pytest.mark.parametrize("shape", [(3, 5), (4,), (), (0,), (2, 3, 4)])
def test_bfloat16_weights_and_their_mean_change_places_without_a_loss(shape: tuple[int, ...]) -> None:
    """The mean is rounded to the nearest; both come back bit for bit, and what is not finite stays so."""
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(shape, generator=draw).bfloat16()]
    mean = WindowMean(weights)
    mean.tensors[0].copy_(
        torch.randn(shape, generator=draw) * 10.0 ** torch.randint(-8, 8, shape, generator=draw)
    )
    if mean.tensors[0].dim() == 1 and mean.tensors[0].numel() > 2:
        nan = torch.tensor([0x7FFFFFFF, -1], dtype=torch.int32).view(torch.float32)
        mean.tensors[0][:3] = torch.tensor([math.inf, nan[0], nan[1]])
    before, exact = weights[0].clone(), mean.tensors[0].clone()
    mean.swap_()
    torch.testing.assert_close(weights[0].float(), exact, rtol=2**-8, atol=0, equal_nan=True)
    error = (weights[0].double() - exact.double()).abs()
    assert bool(
        (
            error[error.isfinite()] <= (exact.bfloat16().double() - exact.double()).abs()[error.isfinite()]
        ).all()
    )
    mean.swap_()
    assert torch.equal(weights[0], before)
    assert torch.equal(mean.tensors[0].view(torch.int32), exact.view(torch.int32))


class Alive(TorchDispatchMode):
    """Counts the bytes of what is made within and has not been let go."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        given = function(*args, **(kwargs or {}))
        for made in given if isinstance(given, (list, tuple)) else [given]:
            if isinstance(made, Tensor) and not any(_same_memory(made, one) for one in tree_leaves(args)):
                size = made.numel() * made.element_size()
                self.bytes += size
                self.peak = max(self.peak, self.bytes)
                weakref.finalize(made, self._gone, size)
        return given

    def _gone(self, size: int) -> None:
        self.bytes -= size


def _same_memory(made: Tensor, given: object) -> bool:
    return (
        isinstance(given, Tensor) and made.untyped_storage().data_ptr() == given.untyped_storage().data_ptr()
    )


def test_averaging_and_swapping_low_precision_take_no_second_copy() -> None:
    """Whole copies would be 2 × the weights for each iterate, and 1 × at the end of a window."""
    weights = [torch.randn(64, 64).bfloat16() for _ in range(32)]
    mean = WindowMean(weights)
    mean.begin(3)
    with Alive() as alive:
        for _ in range(3):
            mean.add()
        mean.swap_()
        mean.swap_()
    of_one = weights[0].numel() * weights[0].element_size()
    assert 0 < alive.peak <= 8 * of_one
