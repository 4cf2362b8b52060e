"""Lion (Chen et al. 2023, Algorithm 2): the sign of an interpolated momentum, with decoupled weight decay.

torch has none, and the sweep should stand on something that can be read in a minute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.optim import Optimizer

__all__ = ["Lion"]

_Step = TypeVar("_Step", bound=Callable[..., Any])


class Lion(Optimizer):
    """θ ← θ − η(sign(β₁m + (1 − β₁)g) + λθ), then m ← β₂m + (1 − β₂)g.

    >>> weight = torch.nn.Parameter(torch.tensor([2.0, -3.0]))
    >>> weight.grad = torch.tensor([0.1, -9.0])
    >>> Lion([weight], lr=0.5).step()
    >>> weight.data
    tensor([ 1.5000, -2.5000])
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
    ) -> None:
        if not lr >= 0 or not weight_decay >= 0 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(
                "Lion: lr and weight_decay must be at least 0 and betas in [0, 1), "
                f"got {lr}, {weight_decay} and {betas}"
            )
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @cast("Callable[[_Step], _Step]", torch.no_grad())
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step of every parameter that has a gradient."""
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            gradients = [weight.grad for weight in weights]
            for weight in weights:
                if not self.state[weight]:
                    self.state[weight]["momentum"] = torch.zeros_like(weight)
            momenta = [self.state[weight]["momentum"] for weight in weights]
            lr, (for_sign, for_momentum) = group["lr"], group["betas"]
            # One kernel for many tensors, as in torch.optim's own; these functions have no public name.
            signs = torch._foreach_mul(momenta, for_sign)
            torch._foreach_add_(signs, gradients, alpha=1 - for_sign)
            torch._foreach_sign_(signs)
            torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
            torch._foreach_add_(weights, signs, alpha=-lr)
            torch._foreach_lerp_(momenta, gradients, 1 - for_momentum)
