"""ZeroRedundancyOptimizer: an optimizer whose state for a parameter lies on one rank, in an optimizer within.

Known by its name: who has not imported it has none.
"""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

__all__ = ["is_zero", "state_of"]


def is_zero(optimizer: Optimizer) -> bool:
    """Whether it is one."""
    return any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(optimizer).__mro__)


def state_of(optimizer: Optimizer) -> Any:
    """What an optimizer remembers of its parameters, of those that this rank updates."""
    return optimizer.optim.state if is_zero(optimizer) else optimizer.state  # type: ignore[attr-defined]
