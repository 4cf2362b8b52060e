"""Lion against five lines of its formula."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.regret.lion import Lion


def twin(
    weight: Tensor, momentum: Tensor, gradient: Tensor, lr: float, decay: float
) -> tuple[Tensor, Tensor]:
    update = torch.sign(0.9 * momentum + 0.1 * gradient)
    weight = weight - lr * (update + decay * weight)
    return weight, 0.99 * momentum + 0.01 * gradient


def test_lion_is_its_formula() -> None:
    draw = torch.Generator().manual_seed(0)
    sizes = ((3, 4), (5,), (2, 1, 2))
    weights = [torch.nn.Parameter(torch.randn(size, generator=draw, dtype=torch.double)) for size in sizes]
    unused = torch.nn.Parameter(torch.ones(2))
    optimizer = Lion([*weights, unused], lr=0.03, weight_decay=0.1)
    slow = [(weight.detach().clone(), torch.zeros_like(weight)) for weight in weights]
    for step in range(20):
        # A schedule writes into the group, as it does into those of torch's own.
        optimizer.param_groups[0]["lr"] = lr = 0.03 / (1 + step)
        gradients = [torch.randn(size, generator=draw, dtype=torch.double) for size in sizes]
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient.clone()
        optimizer.step()
        slow = [twin(*pair, gradient, lr, 0.1) for pair, gradient in zip(slow, gradients, strict=True)]
    for weight, gradient, (expected, momentum) in zip(weights, gradients, slow, strict=True):
        torch.testing.assert_close(weight.data, expected)
        torch.testing.assert_close(optimizer.state[weight]["momentum"], momentum)
        assert torch.equal(weight.grad, gradient), "a gradient is only read"
    assert torch.equal(unused.data, torch.ones(2))
    assert unused not in optimizer.state
