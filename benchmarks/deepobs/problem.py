"""``quadratic_deep`` of DeepOBS (Schneider, Balles & Hennig, ICLR 2019), rebuilt from its definition.

A sample x ~ N(0, 0.6²) of 100 dimensions costs ½ (θ − x)ᵀ Q (θ − x). Nine tenths of Q's eigenvalues are below
1, the others between 30 and 60, as was found in deep networks (Chaudhari et al., arXiv 1611.01838). All that
is drawn is drawn by NumPy's old generator at fixed seeds: there is one such problem, and one test set.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import cycle, islice
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from benchmarks.workloads.base import Batch, generator, in_parts, shuffled

if TYPE_CHECKING:
    import numpy as np

__all__ = ["BATCH", "DIMENSIONS", "STEPS", "Quadratic", "batches", "hessian", "probe_batches", "test_loss"]

DIMENSIONS, BATCH = 100, 128
#: 100 epochs of seven batches.
STEPS = 700
_SMALL, _SAMPLES, _NOISE = 90, 1000, 0.6
_MATRIX_SEED, _TRAIN_SEED, _TEST_SEED, _PROBE_SEED = 42, 42, 43, 44


class Quadratic(nn.Module):
    """θ, which starts at ones, and the mean cost of samples there."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.ones(DIMENSIONS))
        self.hessian: Tensor
        self.register_buffer("hessian", hessian(), persistent=False)

    def forward(self, samples: Tensor) -> Tensor:
        apart = self.theta - samples
        return 0.5 * ((apart @ self.hessian) * apart).sum(1).mean()


@cache
def hessian() -> Tensor:
    """Q: the eigenvalues are drawn first, then the rotation, from one generator."""
    import numpy as np

    draw = np.random.RandomState(_MATRIX_SEED)
    small = draw.uniform(0.0, 1.0, _SMALL)
    values = np.concatenate([small, draw.uniform(30.0, 60.0, DIMENSIONS - _SMALL)])
    turn = _rotation(DIMENSIONS, draw)
    return torch.from_numpy((turn.T * values) @ turn).float()


def _rotation(size: int, draw: np.random.RandomState) -> np.ndarray:
    """A rotation from the uniform distribution, grown by one dimension at a time (Diaconis & Shahshahani)."""
    import numpy as np

    angle = 2 * np.pi * draw.uniform()
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
    for grown in range(3, size + 1):
        # The first axis is mirrored onto a direction that may be any.
        mirror = -draw.normal(size=grown)
        mirror /= np.linalg.norm(mirror)
        mirror[0] += 1.0
        mirror /= np.linalg.norm(mirror)
        inner = np.eye(grown)
        inner[1:, 1:] = turn
        turn = inner - 2 * np.outer(mirror, mirror @ inner)
    return -turn


@cache
def _samples(seed: int) -> Tensor:
    import numpy as np

    drawn = np.random.RandomState(seed).normal(0.0, _NOISE, (_SAMPLES, DIMENSIONS))
    return torch.from_numpy(drawn.astype(np.float32))


def batches(seed: int, *, reshuffled: bool = False) -> Iterator[Batch]:
    """Endless batches of the 1,000 training samples, in one order for all epochs.

    So it was when the baselines were made: the losses of their batches have a period of seven, since
    TensorFlow began its shuffling anew, from one seed, in every epoch. ``reshuffled`` draws new orders.
    """
    drawn = shuffled((_samples(_TRAIN_SEED),), BATCH, generator(seed, "deepobs batches"))
    return drawn if reshuffled else cycle(tuple(islice(drawn, _SAMPLES // BATCH)))


def probe_batches() -> list[Tensor]:
    """Seven batches of the samples that DeepOBS's PyTorch version validates on; nobody trains on them."""
    return _whole_batches(_PROBE_SEED)


def test_loss(model: Quadratic) -> float:
    """The mean over the test samples that fill whole batches."""
    with torch.no_grad():
        return float(torch.stack([model(part) for part in _whole_batches(_TEST_SEED)]).double().mean())


def _whole_batches(seed: int) -> list[Tensor]:
    return [part for (part,) in in_parts((_samples(seed),), BATCH) if len(part) == BATCH]
