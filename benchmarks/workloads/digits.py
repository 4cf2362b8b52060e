"""Handwritten digits: the 1,797 images of 8×8 pixels that scikit-learn brings along, and two small models.

Nothing is downloaded, and everything is a function of a seed. The global random state is never read, and
left as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.workloads.base import Batch, Workload, at_scale, generator, in_parts, seeded, shuffled

__all__ = [
    "Digits",
    "batches",
    "build_cnn",
    "build_model",
    "cross_entropy",
    "load",
    "make_cnn",
    "make_mlp",
    "make_noisy",
    "outputs",
]

_TEST_SHARE = 0.25
_STEPS = {"cpu": 600, "gpu": 1000}
_BATCH, _PROBE_IMAGES, _PROBE_BATCH = 64, 256, 128
_FEW_IMAGES, _FEW_BATCH = 150, 32
_FEW_STEPS, _FEW_WIDTH = {"cpu": 1000, "gpu": 2000}, {"cpu": 128, "gpu": 512}
_NOISY_SHARE, _CLASSES = 0.2, 10

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
            "the digits need scikit-learn, which brings the images: pip install scikit-learn"
        ) from error
    raw = load_digits()
    order = torch.randperm(len(raw.target), generator=torch.Generator().manual_seed(seed))
    images = torch.from_numpy(raw.data).to(torch.float32)[order] / 16
    labels = torch.from_numpy(raw.target).to(torch.int64)[order]
    held_out = int(len(labels) * _TEST_SHARE)
    return Digits(images[held_out:], labels[held_out:], images[:held_out], labels[:held_out])


def build_model(seed: int = 0, width: int = 64, dropout: float | None = None) -> nn.Module:
    """An MLP of two hidden layers whose weights depend on the seed alone.

    With a ``dropout``, be it 0, there is a layer of it behind each hidden one.
    """
    drops = [[] if dropout is None else [nn.Dropout(dropout)] for _ in range(2)]
    with seeded(seed):
        return nn.Sequential(
            *(nn.Linear(64, width), nn.ReLU(), *drops[0]),
            *(nn.Linear(width, width), nn.ReLU(), *drops[1]),
            nn.Linear(width, 10),
        )


def build_cnn(seed: int = 0, channels: int = 8) -> nn.Module:
    """Two convolutions, the first with BatchNorm, and a linear layer; weights depend on the seed alone."""
    with seeded(seed):
        return nn.Sequential(
            nn.Unflatten(1, (1, 8, 8)),
            nn.Conv2d(1, channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2 * channels * 4 * 4, 10),
        )


def make_mlp(scale: str = "cpu", device: str = "cpu", folder: str | Path | None = None) -> Workload:
    """The MLP as a workload; ``folder`` is not read."""
    del folder
    return _make("digits-mlp", build_model, scale, device)


def make_cnn(scale: str = "cpu", device: str = "cpu", folder: str | Path | None = None) -> Workload:
    """The convolutional model as a workload; ``folder`` is not read."""
    del folder
    return _make("digits-cnn", build_cnn, scale, device)


def make_noisy(device: str = "cpu", *, scale: str = "cpu", dropout: float | None = None) -> Workload:
    """150 images to train on, and in all parts a fifth of the labels drawn at random: they cannot be learned.

    Learned by heart they can be, which is what label smoothing is against. The probe and what is held out
    are as noisy, so that the best model is one that is in doubt as often as it should be.
    """
    steps, width = at_scale(_FEW_STEPS, scale), at_scale(_FEW_WIDTH, scale)
    data = load()
    draw = generator(0, "digits label noise")
    labels = _with_noise(data.train_labels, draw).to(device)
    held_out = data.test_images.to(device), _with_noise(data.test_labels, draw).to(device)
    images, end = data.train_images.to(device), _PROBE_IMAGES + _FEW_IMAGES
    probe = images[:_PROBE_IMAGES], labels[:_PROBE_IMAGES]
    train = images[_PROBE_IMAGES:end], labels[_PROBE_IMAGES:end]
    return Workload(
        name="digits, few and noisy",
        steps=steps,
        build=lambda seed: build_model(seed, width, dropout).to(device),
        loss=_loss,
        batches=lambda seed: shuffled(train, _FEW_BATCH, generator(seed, "digits batches")),
        probe=lambda seed: shuffled(probe, _PROBE_BATCH, generator(seed, "digits probe")),
        held_out=(held_out,),
    )


def _with_noise(labels: Tensor, draw: torch.Generator) -> Tensor:
    others = torch.randint(_CLASSES, labels.shape, generator=draw)
    return torch.where(torch.rand(labels.shape, generator=draw) < _NOISY_SHARE, others, labels)


def outputs(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits and labels, a row for each image."""
    images, labels = batch
    return model(images), labels


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


def _make(name: str, build: Callable[[int], nn.Module], scale: str, device: str) -> Workload:
    """1,092 images to train on, 256 for the probe, 449 held out: the same for every seed."""
    steps = at_scale(_STEPS, scale)
    data = load()
    images, labels = data.train_images.to(device), data.train_labels.to(device)
    probe = images[:_PROBE_IMAGES], labels[:_PROBE_IMAGES]
    train = images[_PROBE_IMAGES:], labels[_PROBE_IMAGES:]
    held_out = data.test_images.to(device), data.test_labels.to(device)
    return Workload(
        name=name,
        steps=steps,
        build=lambda seed: build(seed).to(device),
        loss=_loss,
        batches=lambda seed: shuffled(train, _BATCH, generator(seed, "digits batches")),
        probe=lambda seed: shuffled(probe, _PROBE_BATCH, generator(seed, "digits probe")),
        held_out=in_parts(held_out, len(held_out[1])),
    )


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    return cross_entropy(*outputs(model, batch))
