"""A saved state in two halves: plain values, and the tensors that belong to parameters.

``torch.distributed.checkpoint`` fills a template, and takes every entry by its key. So the tensors have one
key each, which follows from the run's set-up and not from how far it has come: what is not there yet has
*spare* room. All else is one value that it neither looks into nor cuts, whatever its shape. A tensor of a
sharded parameter is a DTensor, which a checkpoint can cut for other ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from hdet.replicas import is_dtensor, local, sharded_like

__all__ = ["Own", "Parcel", "Piece", "pieces_of"]

_REFERS = "hdet: tensor"
_MAY_MISS = "hdet: may miss"
_GONE = object()


@dataclass(frozen=True, slots=True)
class Piece:
    """This rank's part of a tensor that is sharded as a parameter is.

    Args:
        tensor: the part, as it lies here; it is not copied.
        of: the parameter.
        spare: whether there is nothing in it yet: a checkpoint finds the key, and nobody reads the values.
        may_miss: whether a run can go on without it, where a checkpoint has no place for it.
    """

    tensor: Tensor
    of: Tensor
    spare: bool = False
    may_miss: bool = False


@dataclass(frozen=True, slots=True)
class Own:
    """A tensor of this rank's part of a sharded model, of which nobody knows how to cut it otherwise."""

    tensor: Tensor


@dataclass(frozen=True, slots=True)
class Parcel:
    """A state on its way to a file, or back.

    Args:
        values: everything but the pieces.
        tensors: the pieces, by key.
        bound: whether some of it is this rank's own, and means nothing to others.
        whose: the parameters of the pieces that somebody will read.
    """

    values: Any
    tensors: dict[str, Tensor]
    bound: bool = False
    whose: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Parcel:
        """Take a state apart. Tensors that are no pieces stay among the values: all ranks have the same."""
        tensors: dict[str, Tensor] = {}
        whose: dict[str, Tensor] = {}
        bound = False

        def walk(value: Any, path: tuple[str, ...]) -> Any:
            nonlocal bound
            if isinstance(value, Piece):
                key = "/".join(path)
                tensors[key] = sharded_like(value.of, value.tensor)
                bound = bound or (is_dtensor(value.of) and not is_dtensor(tensors[key]))
                if value.spare:
                    return _GONE
                whose[key] = value.of
                return {_REFERS: key, _MAY_MISS: value.may_miss}
            if isinstance(value, Own):
                bound = True
                return _with_the_host(value.tensor)
            if isinstance(value, Mapping):
                every = {key: walk(one, (*path, str(key))) for key, one in value.items()}
                return {key: one for key, one in every.items() if one is not _GONE}
            if type(value) in (list, tuple):
                return type(value)(walk(one, (*path, str(i))) for i, one in enumerate(value))
            return _with_the_host(value) if isinstance(value, Tensor) else value

        return cls(walk(state, ()), tensors, bound, whose)

    def opened(self) -> tuple[Any, list[str], list[str]]:
        """The state, its pieces as this rank's tensors again; the keys of pieces that are missing, and of
        those that may."""
        missing: list[str] = []
        dropped: list[str] = []

        def walk(value: Any) -> Any:
            if isinstance(value, Mapping):
                if _REFERS not in value:
                    every = {key: walk(one) for key, one in value.items()}
                    return {key: one for key, one in every.items() if one is not _GONE}
                if (key := value[_REFERS]) in self.tensors:
                    return local(self.tensors[key])
                (dropped if value[_MAY_MISS] else missing).append(key)
                return _GONE
            if type(value) in (list, tuple):
                return type(value)(walk(one) for one in value)
            return value

        return walk(self.values), missing, dropped


def pieces_of(
    tensors: Mapping[int, Tensor], parameters: Sequence[Tensor], *, spare: bool = False
) -> dict[int, Piece]:
    """Tensors as large as their parameters, by the parameters' numbers."""
    return {i: Piece(tensor, parameters[i], spare) for i, tensor in tensors.items()}


def _with_the_host(tensor: Tensor) -> Tensor:
    """Values travel as they are: what lies on a device would come back on the same one, on any rank.

    What is made of several tensors (quantised state) may have no other place to go.
    """
    if tensor.is_cpu or hasattr(tensor, "__tensor_flatten__"):
        return tensor.detach() if type(tensor) is torch.Tensor else tensor
    return tensor.detach().cpu()
