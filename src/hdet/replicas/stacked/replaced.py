"""What a pass replaces in the model by one replica's own: parameters, buffers, and numbers in attributes.

Outside of a pass the attribute holds the number itself, the base. The values of the replicas are written in
place and stay where they are in memory, so that a recorded pass reads what was written since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn

from hdet.replicas.stacked.functions import ByRow

__all__ = ["Attributes", "LossFn", "ModelWithLoss", "ReplicaValues", "aliases_of"]

#: From (model, batch) to a scalar.
LossFn = Callable[[nn.Module, Any], Tensor]


class ModelWithLoss(nn.Module):
    """A model and its loss as one module, so that ``functional_call`` can replace the model's tensors."""

    def __init__(self, model: nn.Module, loss_fn: LossFn) -> None:
        super().__init__()
        self.model = model
        # In a tuple: a loss may be a module that holds the model, and must not become a submodule.
        self._loss_fn = (loss_fn,)

    def forward(self, batch: Any) -> Tensor:
        """The loss of a batch."""
        # No public name tells a buffer that is None from none, in torch 2.13 neither.
        held = [(name, module, dict(module._buffers)) for name, module in self.model.named_modules()]
        new: list[str] = []
        try:
            loss = self._loss_fn[0](self.model, batch)
        finally:
            for name, module, before in held:
                after = module._buffers
                odd = [key for key in {**before, **after} if before.get(key) is not after.get(key)]
                new += [f"{name}.{key}".lstrip(".") for key in odd]
                if odd:  # what stayed would be a slice of a pass that is over
                    after.clear()
                    after.update(before)
        if new:
            raise TypeError(
                f"StackedReplicas.losses: the forward pass must write buffers in place, got a new tensor in "
                f"{new[0]}, which would be lost; write self.{new[0].split('.')[-1]}.copy_(...)"
            )
        return loss


def aliases_of(model: nn.Module) -> dict[str, str]:
    """Every name of a parameter or buffer, tied ones included, and the first name of the same tensor."""
    first = {id(t): name for name, t in (*model.named_parameters(), *model.named_buffers())}
    aliases: dict[str, str] = {}
    for prefix, module in model.named_modules():  # each once, however many names it has
        own = (
            *module.named_parameters(prefix, recurse=False, remove_duplicate=False),
            *module.named_buffers(prefix, recurse=False, remove_duplicate=False),
        )
        aliases |= {name: first[id(tensor)] for name, tensor in own}
    return aliases


class ReplicaValues:
    """The values of all replicas for one attribute; :meth:`Attributes.of` makes it.

    Args:
        owner: the module, or another object whose attribute the loss reads.
        attribute: holds a number, or a tensor of one element.
        rows: a tensor with a first dimension for the replicas.
        is_buffer: whether the rows are those of a buffer, which the pass replaces anyway.
    """

    def __init__(self, owner: Any, attribute: str, rows: Tensor, *, is_buffer: bool) -> None:
        self.owner = owner
        self.attribute = attribute
        self.rows = rows
        self.is_buffer = is_buffer
        #: The number that all rows hold; None while each has its own.
        self._number: float | None = None
        self.reset_()

    @torch.no_grad()
    def set_(self, values: Tensor) -> None:
        """Give each replica its own value, until :meth:`reset_`."""
        self._number = None
        self._differ = True
        self.rows.copy_(values.view(-1, *[1] * (self.rows.dim() - 1)))

    @torch.no_grad()
    def reset_(self) -> None:
        """Give all replicas what the attribute holds."""
        self._differ = False
        held = getattr(self.owner, self.attribute)
        if isinstance(held, Tensor):
            self.rows.copy_(held.expand_as(self.rows))
        elif held != self._number:
            self.rows.fill_(held)
            self._number = held

    def refresh_(self) -> None:
        """Take a number that was written to the attribute since. A tensor is not read, since that could wait
        for a device."""
        if not self._differ and not isinstance(getattr(self.owner, self.attribute), Tensor):
            self.reset_()


class Attributes:
    """All attributes that replicas differ in. None is ever removed: a recorded pass goes on reading it.

    Args:
        size: how many replicas there are.
        matrices: what they train; numbers get their type and device.
    """

    def __init__(self, size: int, matrices: Sequence[Tensor]) -> None:
        self._size = size
        self._device = matrices[0].device
        self._dtype = reduce(torch.promote_types, (matrix.dtype for matrix in matrices), torch.float32)
        self._all: list[ReplicaValues] = []

    def __len__(self) -> int:
        return len(self._all)

    def of(self, owner: Any, attribute: str, rows: Tensor | None = None) -> ReplicaValues:
        """The values of an attribute; ``rows``: those of a buffer, which are there already."""
        for known in self._all:
            if known.owner is owner and known.attribute == attribute:
                return known
        made = self._new_rows(owner, attribute) if rows is None else rows
        self._all.append(ReplicaValues(owner, attribute, made, is_buffer=rows is not None))
        return self._all[-1]

    def _new_rows(self, owner: Any, attribute: str) -> Tensor:
        held = getattr(owner, attribute)
        if isinstance(held, nn.Parameter):
            raise TypeError(
                "StackedReplicas: what replicas differ in must be a number or a buffer, got an nn.Parameter "
                f"in {type(owner).__name__}.{attribute}; register it as a buffer, or keep a float"
            )
        if isinstance(held, Tensor):
            return torch.empty(self._size, *held.shape, dtype=held.dtype, device=held.device)
        # At least float32, as torch's own kernels have a number. Doubles would make doubles of a mean.
        return torch.empty(self._size, dtype=self._dtype, device=self._device)

    def refresh_(self) -> None:
        """Take the numbers that were written to attributes since."""
        for one in self._all:
            one.refresh_()

    @property
    def rows(self) -> list[Tensor]:
        """The values of those that are no buffers, for ``torch.vmap``."""
        return [one.rows for one in self._all if not one.is_buffer]

    @contextmanager
    def replaced(self, values: Sequence[Tensor]) -> Iterator[None]:
        """Inside, attributes hold one replica's values, and torch's functions accept them."""
        if not self._all:
            yield
            return
        numbers = [one for one in self._all if not one.is_buffer]
        before = [getattr(one.owner, one.attribute) for one in numbers]
        try:
            for one, value in zip(numbers, values, strict=True):
                setattr(one.owner, one.attribute, value)
            with ByRow():
                yield
        finally:
            for one, held in zip(numbers, before, strict=True):
                setattr(one.owner, one.attribute, held)
