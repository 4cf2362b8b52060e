"""The weights that replicas begin with."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn

from hdet.engine.starts import Starts, distance, sample
from hdet.replicas import Replicas


class Two:
    """What of the replicas is asked; rank 1 has ``other``."""

    size, here, parts, elastic = 2, 1, 1, False

    def __init__(self, other: list[float] | None = None) -> None:
        self.other = other

    def gather_ranks(self, row: list[float]) -> list[list[float]]:
        return [row, row if self.other is None else self.other]


def two(other: list[float] | None = None) -> Replicas:
    return cast(Replicas, Two(other))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_a_look_reads_no_value() -> None:
    """Read at the first step, it would be a wait for the device. On meta there is nothing to read."""
    starts = Starts("Here", sgd(nn.Linear(3, 3, device="meta")), two(), own_gradients=False)
    starts.look()


def test_what_was_seen_is_not_what_the_weights_became() -> None:
    model = nn.Linear(3, 3)
    optimizer = sgd(model)
    seen = sample(optimizer)
    before = seen.tolist()
    with torch.no_grad():
        model.weight.add_(1.0)
    assert seen.tolist() == before
    assert distance(two(before), sample(optimizer)) > 0.5
    assert distance(two(), sample(optimizer)) == 0.0


def test_as_many_numbers_whatever_the_model() -> None:
    sizes: Any = {len(sample(sgd(model))) for model in (nn.Linear(1, 1), nn.Linear(50, 50), nn.LayerNorm(2))}
    assert len(sizes) == 1
