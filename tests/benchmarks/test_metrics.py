"""AUC and normalised entropy against slow twins."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from benchmarks.metrics import auc, normalised_entropy


def slow_auc(scores: Tensor, labels: Tensor) -> float:
    """Every pair of a positive and a negative sample."""
    pairs = [
        (a > b) + (a == b) / 2
        for a, yes in zip(scores.tolist(), labels.tolist(), strict=True)
        for b, other in zip(scores.tolist(), labels.tolist(), strict=True)
        if yes and not other
    ]
    return sum(pairs) / len(pairs)


def test_auc_counts_pairs_and_ties_for_half() -> None:
    draw = torch.Generator().manual_seed(0)
    for kinds in (2, 5, 1000):  # the fewer, the more ties
        scores = torch.randint(kinds, (4, 60, 3), generator=draw).float()
        labels = torch.randint(2, (60, 3), generator=draw)
        found = auc(scores, labels)
        assert found.shape == (4, 3)
        for run in range(4):
            for answer in range(3):
                twin = slow_auc(scores[run, :, answer], labels[:, answer])
                assert float(found[run, answer]) == pytest.approx(twin, abs=1e-12)
        assert torch.equal(found[0], auc(scores[0], labels)), "any number of leading dimensions"


def test_auc_is_not_a_number_where_it_is_not_defined() -> None:
    scores = torch.tensor([[0.1, 0.1, 0.1], [0.2, 0.2, math.nan]])
    labels = torch.tensor([[0, 1, 0], [1, 1, 1]])
    assert auc(scores, labels).nan_to_num(-1).tolist() == [1, -1, -1]


def test_normalised_entropy_is_1_for_who_knows_the_rate_alone() -> None:
    labels = torch.tensor([[1.0, 1.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    rate = torch.full((4, 2), math.log(1 / 3))
    found = normalised_entropy(torch.stack([rate, rate + 4 * labels]), labels)
    assert found.shape == (2, 2)
    assert float(found[0, 0]) == pytest.approx(1)
    assert float(found[1, 0]) < 1
    assert found[:, 1].isnan().all(), "without a negative there is no entropy to divide by"
    by_hand = -(math.log(0.9) + math.log(0.8)) / 2 / math.log(2)
    logits = torch.tensor([[math.log(9)], [-math.log(4)]])
    assert float(normalised_entropy(logits, torch.tensor([[1], [0]]))) == pytest.approx(by_hand)
