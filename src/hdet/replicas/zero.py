"""ZeroRedundancyOptimizer: an optimizer whose state for a parameter lies on one rank, in an optimizer within.

Known by its name: who has not imported it has none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch.optim import Optimizer

__all__ = ["is_zero", "state_of", "zero_groups"]


def is_zero(optimizer: Optimizer) -> bool:
    """Whether it is one."""
    return any(kind.__name__ == "ZeroRedundancyOptimizer" for kind in type(optimizer).__mro__)


def zero_groups(optimizers: Iterable[Optimizer]) -> list[Any]:
    """The process groups over which state is spread. Their ranks hold the same weights and are one replica:
    what one of them updates, all others get."""
    return [one.process_group for one in optimizers if is_zero(one)]  # type: ignore[attr-defined]


def state_of(optimizer: Optimizer) -> Any:
    """What an optimizer remembers of its parameters, of those that this rank updates."""
    return optimizer.optim.state if is_zero(optimizer) else optimizer.state  # type: ignore[attr-defined]
