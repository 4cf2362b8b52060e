"""Who is lost, and who only does worse: by norms and losses alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import nn

from hdet.engine.converge import Converge
from hdet.engine.health import Health
from hdet.replicas import SoloReplica

NAN = math.nan


class Several(SoloReplica):
    def __init__(self, size: int, parts: int = 1) -> None:
        self.size, self.parts = size, parts


def health(size: int, parts: int = 1) -> Health:
    replicas = Several(size, parts)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    return Health("Cycle", replicas, Converge(replicas, optimizer, None))


@pytest.mark.parametrize(
    ("weights", "rest", "losses", "lost"),
    [
        ([1, 1, 1], [1, 1, 1], [0.5, 0.6, 0.4], []),
        ([1, NAN, 1], [1, 1, 1], [0.5, 0.6, 0.4], [1]),
        ([1, 1, 1], [1, 1, NAN], [0.5, 0.6, 0.4], [2]),
        ([1, 1, 1], [1, 1, 1], [0.5, math.inf, NAN], [1, 2]),
        ([1, 1, 1e4], [1, 1, 1], [0.5, 0.6, 0.4], [2]),
        ([1, 1e20, 1e20], [1, 1, 1], [0.5, 1e30, 1e30], [1, 2]),  # most have exploded
        ([1, 1.1, 1.2], [1, 1, 1], [1e-9, 1e-3, 1e-5], []),  # near zero any ratio is usual
        ([1, 3, 1], [1, 1, 1], [0.5, 6.9e20, 0.4], [1]),
        ([1, 3, 1], [1, 1, 1], [0.5, 50.0, 0.4], []),  # worse, and averaged: policies hear of it
        ([1, 1, 1], [1, 1e8, 1], [0.5, 0.6, 0.4], []),  # a gradient that spiked
        ([1, 1, 1], [1, 1e25, 1], [0.5, 0.6, 0.4], [1]),
        ([0, 0, 1], [0, 0, 1], [0.0, 0.0, 1.0], []),  # zeros are no measure
    ],
)
def test_who_is_lost(
    weights: Sequence[float], rest: Sequence[float], losses: Sequence[float], lost: Sequence[int]
) -> None:
    assert sorted(health(3).lost(list(zip(weights, rest, strict=True)), losses)) == lost


def test_a_loss_that_the_run_began_with_is_no_explosion() -> None:
    """Later, when all losses are tiny, one replica is thrown back to the beginning."""
    judged = health(2)
    assert not judged.lost([[1, 1], [1, 1]], [2.3, 2.4])
    assert not judged.lost([[1, 1], [2, 1]], [1e-6, 2.0])
    assert judged.lost([[1, 1], [2, 1]], [1e-6, 1e5]) == {1: "its loss is 1e+05, another's 1e-06"}


def test_one_part_speaks_for_its_replica() -> None:
    norms = [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [NAN, 1.0]]
    assert health(2, parts=2).lost(norms) == {1: "its weights are not finite"}


def test_the_same_one_in_a_row_ends_the_run_and_others_do_not() -> None:
    judged = health(2)
    for turn in range(20):
        judged.lost([[NAN, 1.0], [1.0, 1.0]][:: 1 if turn % 2 else -1])
    for _ in range(20):
        judged.lost([[NAN, 1.0], [NAN, 1.0]])  # nobody is left to take the mean of
    judged.lost([[1.0, 1.0], [1.0, 1.0]])
    for _ in range(7):
        judged.lost([[1.0, 1.0], [NAN, 1.0]])
    with pytest.raises(RuntimeError, match="replica 1 was lost at 8 syncs in a row"):
        judged.lost([[1.0, 1.0], [NAN, 1.0]])
