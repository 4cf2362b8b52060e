"""The outer step of islands that train by themselves for a round (DiLoCo): Nesterov's, on their displacement.

With θ the weights that all replicas began the round with and θ̄ the mean of their ends, the outer gradient is
g = θ − θ̄, and

    v ← μ v + g,    θ ← θ − η (g + μ v).

It is computed from the mean, θ̄ + (1 − η) g − η μ v: the same number, and at η = 1, μ = 0 the mean itself, bit
for bit. Everything here is pure but for the tensors it is told to write.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["apart", "nesterov_", "outer_gradient", "wide"]


def wide(tensor: Tensor) -> Tensor:
    """With float32's precision at least."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def outer_gradient(start: Tensor, mean: Tensor) -> Tensor:
    """g = θ − θ̄, the way that the replicas have gone on average, backwards."""
    return wide(start) - wide(mean)


def nesterov_(mean: Tensor, gradient: Tensor, velocity: Tensor | None, lr: float, momentum: float) -> Tensor:
    """The next θ; ``velocity`` is written over. None stands for one that no momentum ever reads."""
    point = wide(mean).add(gradient, alpha=1 - lr)
    if velocity is None:
        return point
    velocity.mul_(momentum).add_(gradient)
    return point.add_(velocity, alpha=-lr * momentum)


def apart(lrs: Sequence[float], momenta: Sequence[float], arm: int) -> tuple[float, float]:
    """How far from θ one of several arms begins the next round: by −a·g − b·v.

    Arm r has stepped by η_r (g + μ_r v) instead of η (g + μ v). What all arms have in common is taken off:
    the mean of their starts is θ whatever the scale on which they are spread, and wherever bounds cut it off.

    >>> apart([0.5, 1.0], [0.5, 0.5], 1)
    (0.25, 0.125)
    """
    steps = [(lr, lr * mu) for lr, mu in zip(lrs, momenta, strict=True)]
    own = steps[arm]  # differences first: of arms that are alike exactly 0 is left
    a, b = (math.fsum(own[k] - other[k] for other in steps) / len(steps) for k in (0, 1))
    return a, b
