"""What users call an optimizer: torch's own beneath a framework's wrapping, and several of them as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from hdet.replicas import state_of

__all__ = ["JointOptimizer", "parts_of", "unwrapped"]


def unwrapped(caller: str, optimizer: object) -> Optimizer:
    """The torch optimizer itself, whose hooks are called whenever it steps.

    Wrappers (Accelerate's, Lightning's) keep it as ``.optimizer``, and some call themselves an Optimizer
    without having its hooks. Nothing can be compared among ranks before this is known.
    """
    found, seen = optimizer, set()
    while id(found) not in seen:
        seen.add(id(found))
        inner = None if isinstance(found, (LRScheduler, type)) else getattr(found, "optimizer", None)
        if inner is not None and (isinstance(inner, Optimizer) or hasattr(inner, "optimizer")):
            found = inner
    if not isinstance(found, Optimizer):
        raise TypeError(f"{caller}: optimizer must be a torch Optimizer, got {type(optimizer).__name__}")
    return found


class JointOptimizer(Optimizer):
    """Several optimizers, as the engine looks at one: their groups and what they remember, in order.

    It is a view: nothing is kept here, and it does not step. Groups that are added later come last, whichever
    optimizer they were added to, so that a group keeps its number.

    Args:
        caller: begins the errors.
        optimizers: no parameter may be in two of them.
    """

    def __init__(self, caller: str, optimizers: Sequence[Optimizer]) -> None:
        # Not Optimizer.__init__: the parameters are others' already.
        self.optimizers = list(optimizers)
        owners: dict[int, int] = {}
        for i, optimizer in enumerate(self.optimizers):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if owners.setdefault(id(parameter), i) != i:
                        raise ValueError(
                            f"{caller}: optimizers must train different parameters, and one of shape "
                            f"{tuple(parameter.shape)} is in optimizers {owners[id(parameter)]} and {i}; "
                            "leave it in one"
                        )
        #: How many groups each of them has.
        self.sizes = tuple(len(optimizer.param_groups) for optimizer in self.optimizers)
        self._known = [0 for _ in self.optimizers]
        self._places: list[tuple[int, int]] = []
        self.state = _States(self.optimizers)  # type: ignore[assignment]  # a view of them, too

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The groups of all; looked up every time, since ``load_state_dict`` replaces them."""
        for i, optimizer in enumerate(self.optimizers):
            count = len(optimizer.param_groups)
            if count > self._known[i]:
                self._places += [(i, k) for k in range(self._known[i], count)]
                self._known[i] = count
        return [self.optimizers[i].param_groups[k] for i, k in self._places]


class _States(Mapping[Tensor, Any]):
    """What several optimizers remember of their parameters."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers

    def __getitem__(self, parameter: Tensor) -> Any:
        for optimizer in self._optimizers:
            if parameter in state_of(optimizer):  # asked first: a state makes what it does not find
                return state_of(optimizer)[parameter]
        raise KeyError(parameter)

    def __iter__(self) -> Iterator[Tensor]:
        return (parameter for optimizer in self._optimizers for parameter in state_of(optimizer))

    def __len__(self) -> int:
        return sum(len(state_of(optimizer)) for optimizer in self._optimizers)


def parts_of(optimizer: Optimizer) -> list[Optimizer]:
    """Those that really step."""
    return optimizer.optimizers if isinstance(optimizer, JointOptimizer) else [optimizer]
