"""A batch keeps its form: each replica's loss sees its part as the loader makes the whole."""

from __future__ import annotations

import math
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from hdet.replicas.stacked.batches import flatten
from tests.stacks import loss_fn, mlp, stack

Pair = namedtuple("Pair", ["x", "y"])


class Encoding(UserDict):  # type: ignore[type-arg]
    """As tokenizers return it: a mapping, with attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self.data[name]
        except KeyError:
            raise AttributeError(name) from None


class Stack(list):  # type: ignore[type-arg]
    pass


X, Y = torch.arange(8.0), torch.arange(16.0).view(8, 2)

BATCHES: dict[str, Any] = {
    "tensor": X,
    "tuple": (X, Y),
    "list": [X, Y],
    "list of one's own": Stack([X, Y]),
    "named tuple": Pair(X, Y),
    "dict": {"x": X, "y": Y},
    "ordered": OrderedDict(y=Y, x=X),
    "default": defaultdict(list, x=X, y=Y),
    "encoding": Encoding(x=X, y=Y),
    "proxy": MappingProxyType({"x": X}),
    "empty": (X, [], {}, ()),
    "deep": {"a": [Pair(X, {"b": (Y,)})], 3: "name", "none": None, "n": 2, "p": 0.5, "t": True, "b": b"b"},
    "types": (X, torch.float32, torch.device("cpu"), torch.Size([2, 3])),
    "no tensor": {"n": 2},
}


def leaves(batch: Any) -> list[Any]:
    if isinstance(batch, (tuple, list)):
        return [leaf for item in batch for leaf in leaves(item)]
    return [pair for k in batch for pair in (k, *leaves(batch[k]))] if hasattr(batch, "keys") else [batch]


def kinds(batch: Any) -> Any:
    if isinstance(batch, (tuple, list)):
        return type(batch), [kinds(item) for item in batch]
    return (type(batch), [kinds(batch[k]) for k in batch]) if hasattr(batch, "keys") else type(batch)


@pytest.mark.parametrize("name", list(BATCHES))
def test_the_loss_sees_the_batch_as_the_loader_makes_it(name: str) -> None:
    batch = BATCHES[name]
    seen: list[Any] = []

    def fn(model: nn.Module, part: Any) -> Tensor:
        seen.append(kinds(part))
        assert [x for x in leaves(part) if not isinstance(x, Tensor)] == [
            x for x in leaves(batch) if not isinstance(x, Tensor)
        ]
        tensors = [x for x in leaves(part) if isinstance(x, Tensor)]
        return sum((t.sum() for t in tensors), torch.zeros(())) + 0 * model[0].bias.sum()

    losses = stack(mlp(), 4).losses(fn, batch)
    assert seen == [kinds(batch)]
    whole = [x for x in leaves(batch) if isinstance(x, Tensor)]
    expected = [sum(float(t[2 * r : 2 * r + 2].sum()) for t in whole) for r in range(4)]
    assert losses.tolist() == expected


def test_batches_of_one_form_differ_in_their_tensors_alone() -> None:
    nan = flatten({"p": math.nan}).form
    assert flatten((X, 1)).form == flatten((X + 1, 1)).form
    assert nan == flatten({"p": float("nan")}).form
    different = [
        *((X, value) for value in (1, 2, 1.0, True, "1", b"1", None, 0.0, -0.0, torch.float16)),
        [X, 1],
        Pair(X, 1),
        (1, X),
        {"x": X, "y": 1},
        {"y": 1, "x": X},
        {"x": X, "z": 1},
        Encoding(x=X, y=1),
        (X, (1,)),
        (X, "a" * 5000 + "b"),
        (X, "a" * 5000 + "c"),
    ]
    assert len({flatten(batch).form for batch in different}) == len(different)


@dataclass
class Sample:
    x: Tensor


class Awkward(dict):  # type: ignore[type-arg]
    def __init__(self, *, made: Any) -> None:
        super().__init__(made)


@pytest.mark.parametrize(
    ("batch", "reason"),
    [
        (torch.randn(6, 3), r"multiple of the 4 replicas, got a shape of \(6, 3\)"),
        (torch.tensor(1.0), r"got a shape of \(\)"),
        (torch.zeros(0, 3), r"got a shape of \(0, 3\)"),
        ({"x": [torch.randn(8, 3), torch.randn(3)]}, r"got a shape of \(3,\)"),
        (Sample(torch.randn(8, 3)), "got a Sample; pass a dict"),
        ({"x": np.zeros((8, 3))}, r"got a ndarray; pass a dict.*torch\.as_tensor"),
        ([object()], "got a object"),
        ({X}, "got a set"),
        (pack_sequence([torch.zeros(8, 3)]), "got a PackedSequence"),
        (torch.randn(8, 3).to_sparse(), r"must be dense, got a torch\.sparse_coo one"),
        (Awkward(made={"x": X}), "an? Awkward must be made by a call with its items.*pass a dict or a list"),
    ],
)
def test_batches_that_cannot_be_divided(batch: Any, reason: str) -> None:
    with pytest.raises((ValueError, TypeError), match=f"StackedReplicas.losses: .*{reason}"):
        stack(mlp()).losses(loss_fn, batch)
