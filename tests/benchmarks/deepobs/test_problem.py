"""DeepOBS's quadratic: what is fixed by its definition, and what was published of it."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from benchmarks.deepobs import problem
from benchmarks.deepobs.command import START
from benchmarks.deepobs.problem import BATCH, Quadratic, batches, hessian, probe_batches


def test_the_spectrum_is_that_of_the_definition() -> None:
    matrix = hessian()
    assert torch.equal(matrix, matrix.T) or (matrix - matrix.T).abs().max() < 1e-5
    values = torch.linalg.eigvalsh(matrix.double())
    assert ((values > 0) & (values < 1)).sum() == 90
    assert ((values > 30) & (values < 60)).sum() == 10


def test_the_loss_at_the_start_is_the_published_one() -> None:
    """It depends on every number drawn: eigenvalues, rotation and test set."""
    assert problem.test_loss(Quadratic()) == pytest.approx(START, abs=1e-4)


def test_no_sample_of_the_probe_is_trained_on() -> None:
    drawn = islice(batches(0, reshuffled=True), 70)
    trained = {row.numpy().tobytes() for (batch,) in drawn for row in batch}
    probed = {row.numpy().tobytes() for batch in probe_batches() for row in batch}
    assert len(trained) == 1000
    assert len(probed) == 7 * BATCH
    assert not trained & probed
