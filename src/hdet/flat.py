"""A state for files that hold tensors by name and text beside them, as safetensors does.

``flatten`` takes a state apart, ``unflatten`` puts it together; what lies between is plain tensors and JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["flatten", "unflatten"]

_TENSOR, _PAIRS = "hdet: tensor", "hdet: pairs"


def flatten(state: Mapping[str, Any]) -> tuple[dict[str, Tensor], str]:
    """The tensors of any door's state by name, each with memory of its own, and the rest as JSON.

    >>> tensors, text = flatten({"a": [torch.ones(2), 0.5], "b": {3: None}})
    >>> list(tensors), unflatten(tensors, text)
    (['a/0'], {'a': [tensor([1., 1.]), 0.5], 'b': {3: None}})
    """
    tensors: dict[str, Tensor] = {}

    def walk(value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, Tensor):
            if type(value) is not Tensor:
                raise TypeError(
                    f"flatten: {'/'.join(path)} must be a plain tensor, got {type(value).__name__}; sharded "
                    "and quantised state is for torch.save or torch.distributed.checkpoint"
                )
            # Some refer to one memory, which such files refuse.
            tensors["/".join(path)] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
            return {_TENSOR: "/".join(path)}
        if isinstance(value, Mapping):
            pairs = [[key, walk(one, (*path, str(key)))] for key, one in value.items()]
            return dict(pairs) if all(isinstance(key, str) for key in value) else {_PAIRS: pairs}
        if isinstance(value, (list, tuple)):
            return [walk(one, (*path, str(i))) for i, one in enumerate(value)]
        return value

    return tensors, json.dumps(walk(state, ()))


def unflatten(tensors: Mapping[str, Tensor], text: str) -> Any:
    """The state that :func:`flatten` took apart; lists stand for tuples, as every door takes them."""

    def walk(value: Any) -> Any:
        if isinstance(value, list):
            return [walk(one) for one in value]
        if not isinstance(value, dict):
            return value
        if value.keys() == {_TENSOR}:
            return tensors[value[_TENSOR]]
        if value.keys() == {_PAIRS}:
            return {key: walk(one) for key, one in value[_PAIRS]}
        return {key: walk(one) for key, one in value.items()}

    return walk(json.loads(text))
