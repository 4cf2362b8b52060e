"""DeepOBS's quadratic: what is fixed by its definition, and what was published of it."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from hdet.bench.deepobs import problem
from hdet.bench.deepobs.command import START
from hdet.bench.deepobs.problem import BATCH, DIMENSIONS, Quadratic, batches, hessian, probe_batches


def test_the_spectrum_is_that_of_the_definition() -> None:
    matrix = hessian()
    assert torch.equal(matrix, matrix.T) or (matrix - matrix.T).abs().max() < 1e-5
    values = torch.linalg.eigvalsh(matrix.double())
    assert ((values > 0) & (values < 1)).sum() == 90
    assert ((values > 30) & (values < 60)).sum() == 10


def test_the_loss_at_the_start_is_the_published_one() -> None:
    """It depends on every number drawn: eigenvalues, rotation and test set."""
    assert problem.test_loss(Quadratic()) == pytest.approx(START, abs=1e-4)


def test_every_epoch_has_the_same_order_unless_it_is_reshuffled() -> None:
    first = [batch for (batch,) in islice(batches(0), 14)]
    assert all(batch.shape == (BATCH, DIMENSIONS) for batch in first)
    assert all(torch.equal(a, b) for a, b in zip(first[:7], first[7:], strict=True))
    new = [batch for (batch,) in islice(batches(0, reshuffled=True), 14)]
    assert torch.equal(new[0], first[0])
    assert not torch.equal(new[0], new[7])
    (other,) = next(batches(1))
    assert not torch.equal(other, first[0])


def test_no_sample_of_the_probe_is_trained_on() -> None:
    drawn = islice(batches(0, reshuffled=True), 70)
    trained = {row.numpy().tobytes() for (batch,) in drawn for row in batch}
    probed = {row.numpy().tobytes() for batch in probe_batches() for row in batch}
    assert len(trained) == 1000
    assert len(probed) == 7 * BATCH
    assert not trained & probed
