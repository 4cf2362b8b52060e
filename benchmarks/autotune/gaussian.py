"""PB2's Gaussian process, and minima between bounds: what Ray takes from scikit-learn and scipy, in torch."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["Process", "minimum"]

#: Logarithms of the kernel's variance, length and forgetting: where their fit starts, and its bounds.
_START, _LOW, _HIGH = torch.tensor([[1, 1, 0.1], [1e-5] * 3, [1e5, 1e5, 0.5]], dtype=torch.float64).log()


class Process:
    """Values over rows, whose first column is time; the kernel is fitted by its likelihood, without noise."""

    def __init__(self, rows: Tensor, values: Tensor) -> None:
        self._rows = rows

        def unlikely(theta: Tensor) -> Tensor:
            root = self._root(theta)
            weights = torch.cholesky_solve(values[:, None], root)[:, 0]
            return values @ weights / 2 + root.diagonal().log().sum()

        self._theta, _ = minimum(unlikely, _START, _LOW, _HIGH)
        self._fitted = self._root(self._theta)
        self._weights = torch.cholesky_solve(values[:, None], self._fitted)[:, 0]

    def mean(self, row: Tensor) -> Tensor:
        """What is expected there."""
        return self._weights @ _kernel(self._rows, row[None], self._theta)[:, 0]

    def variance(self, row: Tensor) -> Tensor:
        """How little is known there."""
        near = _kernel(self._rows, row[None], self._theta)
        told: Tensor = torch.linalg.solve_triangular(self._fitted, near, upper=False)
        return (self._theta[0].exp() - told.square().sum()).clamp(min=0)

    def _root(self, theta: Tensor) -> Tensor:
        """The Cholesky factor of the kernel's matrix, with as little added to it as will do."""
        matrix = _kernel(self._rows, self._rows, theta)
        one = torch.eye(len(matrix), dtype=matrix.dtype)
        for power in range(-10, 6):
            root: Tensor
            root, failed = torch.linalg.cholesky_ex(matrix + 10.0**power * one)
            if not failed:
                return root
        raise ValueError("PB2: losses and settings must be finite")


def _kernel(rows: Tensor, others: Tensor, theta: Tensor) -> Tensor:
    variance, length, forgetting = theta.exp().unbind()
    apart = (rows[:, None] - others[None]).abs()
    near: Tensor = variance * (-apart[..., 1:].square().sum(-1) / length).exp()
    return near * torch.pow(1 - forgetting, apart[..., 0] / 2)


def minimum(
    function: Callable[[Tensor], Tensor], x: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, float]:
    """A local minimum between bounds, and its value: BFGS, begun anew when a bound takes hold or lets go.

    >>> low, start, high = torch.tensor([[0.0], [0.3], [1.0]])
    >>> minimum(lambda x: ((x - 2) ** 2).sum(), start, low, high)
    (tensor([1.]), 1.0)
    """
    value, slope = _graded(function, x)
    inverse, free = None, torch.ones_like(x, dtype=torch.bool)
    for _ in range(100):
        before, free = free, ~(((x <= low) & (slope > 0)) | ((x >= high) & (slope < 0)))
        downhill = -slope * free
        if downhill.abs().max() < 1e-5:
            break
        if inverse is None or not torch.equal(free, before):
            inverse, way = None, downhill / max(1.0, float(downhill.norm()))
        else:
            way = (inverse @ downhill) * free
        moved, new, new_slope = _along(function, (x, value, slope), way, low, high)
        if not value - new > 2e-9 * max(abs(value), 1.0):
            break
        by, turn = (moved - x) * free, (new_slope - slope) * free
        if (bent := by @ turn) > 1e-9 * by.norm() * turn.norm():
            one = torch.eye(len(x), dtype=x.dtype)
            side = one - torch.outer(by, turn) / bent
            inverse = one * bent / turn.square().sum() if inverse is None else inverse
            inverse = side @ inverse @ side.T + torch.outer(by, by) / bent
        x, value, slope = moved, new, new_slope
    return x, value


def _along(
    function: Callable[[Tensor], Tensor],
    start: tuple[Tensor, float, Tensor],
    way: Tensor,
    low: Tensor,
    high: Tensor,
) -> tuple[Tensor, float, Tensor]:
    """A step that goes down enough and not too little (Wolfe), halved or doubled until then."""
    x, value, slope = start
    short, long, step = 0.0, math.inf, 1.0
    for _ in range(20):
        moved = torch.minimum(torch.maximum(x + step * way, low), high)
        new, new_slope = _graded(function, moved)
        foreseen = float(slope @ (moved - x))
        if new > value + 1e-4 * foreseen:
            long = step
        elif new_slope @ (moved - x) < 0.9 * foreseen:
            short = step
        else:
            break
        step = 2 * step if long == math.inf else (short + long) / 2
    return moved, new, new_slope


def _graded(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[float, Tensor]:
    x = x.detach().requires_grad_()
    value = function(x)
    (slope,) = torch.autograd.grad(value, x)
    return float(value.detach()), slope
