"""Handwritten digits: the 1,797 images of 8×8 pixels that scikit-learn brings along, and a small MLP.

Nothing is downloaded, and everything is a function of a seed. The global random state is never read, and
left as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["Digits", "batches", "build_model", "cross_entropy", "load"]

_TEST_SHARE = 0.25

#: The loss of the task: mean over the batch, natural logarithm.
cross_entropy = nn.functional.cross_entropy


@dataclass(frozen=True, slots=True)
class Digits:
    """Images as rows of 64 values in [0, 1], labels 0…9."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load(seed: int = 0) -> Digits:
    """All images, split at random into 1,348 to train on and 449 held out."""
    try:
        from sklearn.datasets import load_digits
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "hdet.workloads.digits needs scikit-learn, which brings the images: pip install 'hdet[cli]'"
        ) from error
    raw = load_digits()
    order = torch.randperm(len(raw.target), generator=torch.Generator().manual_seed(seed))
    images = torch.from_numpy(raw.data).to(torch.float32)[order] / 16
    labels = torch.from_numpy(raw.target).to(torch.int64)[order]
    held_out = int(len(labels) * _TEST_SHARE)
    return Digits(images[held_out:], labels[held_out:], images[:held_out], labels[:held_out])


def build_model(seed: int = 0, width: int = 64) -> nn.Module:
    """An MLP of two hidden layers whose weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)
        )


def batches(
    images: Tensor, labels: Tensor, *, rank: int, size: int, per_replica: int, seed: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """One replica's part of every global batch, without end.

    A global batch has ``size * per_replica`` images. All ranks shuffle each epoch alike and take disjoint
    parts; the images that do not fill a last batch wait for the next epoch.

    >>> images, labels = torch.zeros(8, 64), torch.arange(8)
    >>> both = [next(batches(images, labels, rank=r, size=2, per_replica=4))[1] for r in (0, 1)]
    >>> sorted(torch.cat(both).tolist())
    [0, 1, 2, 3, 4, 5, 6, 7]
    """
    together = size * per_replica
    if not 1 <= together <= len(labels):
        raise ValueError(
            f"batches: size * per_replica must be in 1…{len(labels)}, the number of images, got {together}"
        )
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(labels), generator=generator)
        for start in range(rank * per_replica, len(labels) - len(labels) % together, together):
            chosen = order[start : start + per_replica]
            yield images[chosen], labels[chosen]
