"""Photographs: 24,000 images of CIFAR-10 in ten classes, and a small ResNet with BatchNorm.

19,000 images train the model, flipped and shifted at random; 1,000 are the probe's; 4,000 are held out. The
images come as JPEG and are decoded once for each machine, into the system's folder for temporary files.
"""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hdet.bench.workloads.base import (
    Batch,
    Workload,
    at_scale,
    data_file,
    generator,
    in_parts,
    seeded,
    shuffled,
)

__all__ = ["BasicBlock", "ResNet", "decoded", "make"]

_FILE = "cifar10_24k.npz"
_CLASSES = 10
_PIXELS = 32
_PROBE_IMAGES = 1000
_PROBE_BATCH = 256


@dataclass(frozen=True)
class _Size:
    steps: int
    batch: int
    stem_stride: int
    channels: tuple[int, int, int]
    pixels: int
    shift: int


_SIZES = {
    "cpu": _Size(steps=400, batch=16, stem_stride=2, channels=(8, 16, 32), pixels=16, shift=2),
    "gpu": _Size(steps=1500, batch=128, stem_stride=1, channels=(32, 64, 128), pixels=32, shift=4),
}


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with BatchNorm, added to what came in.

    Where shapes part, what came in is thinned out and filled up with channels of zeros, which takes no
    parameters (the "option A" of the paper on residual networks).
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = _conv3x3(inputs, outputs, stride)
        self.second = _conv3x3(outputs, outputs, 1)
        self.stride, self.new_channels = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        kept = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))
        return F.relu(self.second(F.relu(self.first(x))) + kept)


class ResNet(nn.Module):
    """A 3×3 stem, three stages of one block each at strides 1, 2, 2, global mean, one linear layer."""

    def __init__(self, channels: tuple[int, int, int], stem_stride: int = 1) -> None:
        super().__init__()
        first, second, third = channels
        self.stem = _conv3x3(3, first, stem_stride)
        self.stages = nn.Sequential(
            BasicBlock(first, first, 1), BasicBlock(first, second, 2), BasicBlock(second, third, 2)
        )
        self.head = nn.Linear(third, _CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.stages(F.relu(self.stem(images))).mean((2, 3)))
        return logits


def make(scale: str = "cpu", device: str = "cpu", folder: str | Path | None = None) -> Workload:
    """The task, from ``cifar10_24k.npz`` (:func:`.base.data_file` says where it is sought)."""
    size = at_scale(_SIZES, scale)
    parts = decoded(data_file(_FILE, folder), size.pixels)
    order = torch.randperm(len(parts["train_label"]), generator=generator(0, "images split"))
    for_probe, for_training = order[:_PROBE_IMAGES], order[_PROBE_IMAGES:]

    train = parts["train_image"][for_training]
    mean = train.float().mean((0, 1, 2)).to(device)
    std = train.float().std((0, 1, 2)).to(device)

    def normalised(images: Tensor) -> Tensor:
        # Stored as (image, row, column, channel): the permuted view is what torch calls channels_last.
        return ((images - mean) / std).permute(0, 3, 1, 2)

    padded = F.pad(train, (0, 0, size.shift, size.shift, size.shift, size.shift)).to(device)
    train_labels = parts["train_label"][for_training].to(device)
    probe = (
        normalised(parts["train_image"][for_probe].to(device)),
        parts["train_label"][for_probe].to(device),
    )
    held_out = (normalised(parts["test_image"].to(device)), parts["test_label"].to(device))
    pixels = torch.arange(size.pixels, device=device)

    def build(seed: int) -> nn.Module:
        with seeded(seed):
            model = ResNet(size.channels, size.stem_stride).to(device)
        if torch.device(device).type == "cuda":
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model

    def batches(seed: int) -> Iterator[Batch]:
        draw = generator(seed, "images batches")
        rows = len(train_labels)
        while True:
            order = torch.randperm(rows, generator=draw).to(device)
            down, right = torch.randint(2 * size.shift + 1, (2, rows, 1), generator=draw).to(device)
            flip = (torch.rand(rows, 1, generator=draw) < 0.5).to(device)
            down = down + pixels
            right = right + torch.where(flip, pixels.flip(0), pixels)
            for start in range(0, rows - size.batch + 1, size.batch):
                part = slice(start, start + size.batch)
                chosen = order[part]
                images = padded[chosen[:, None, None], down[part, :, None], right[part, None, :]]
                yield normalised(images), train_labels[chosen]

    return Workload(
        name="images",
        steps=size.steps,
        build=build,
        loss=_loss,
        batches=batches,
        probe=lambda seed: shuffled(probe, _PROBE_BATCH, generator(seed, "images probe")),
        held_out=in_parts(held_out, 500),
    )


def decoded(path: Path, pixels: int = _PIXELS) -> dict[str, Tensor]:
    """``{train,test}_image``, uint8 of shape (images, pixels, pixels, 3), and ``_label``.

    Smaller images are means over squares. The result is kept under the system's temporary folder, named by
    the size of the file, since decoding takes seconds and a benchmark starts many processes.
    """
    import numpy as np

    cache = Path(tempfile.gettempdir()) / f"hdet_{path.stem}_{path.stat().st_size}_{pixels}px.npz"
    if not cache.exists():
        arrays = {name: part.numpy() for name, part in _decode(path, pixels).items()}
        # Written aside and renamed: a process that starts meanwhile sees the whole file or none.
        handle, aside = tempfile.mkstemp(dir=cache.parent, prefix=cache.stem)
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        os.replace(aside, cache)
    with np.load(cache, allow_pickle=False) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}


def _decode(path: Path, pixels: int) -> dict[str, Tensor]:
    import numpy as np

    try:
        pillow: Any = import_module("PIL.Image")
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "hdet.bench.workloads.images needs Pillow, which decodes the images: pip install pillow"
        ) from error
    parts: dict[str, Tensor] = {}
    with np.load(path, allow_pickle=False) as file:
        for part in ("train", "test"):
            jpeg, offset = file[f"{part}_jpeg"].tobytes(), file[f"{part}_offset"].tolist()
            images = np.stack(
                [
                    np.asarray(pillow.open(io.BytesIO(jpeg[start:end])).convert("RGB"))
                    for start, end in pairwise(offset)
                ]
            )
            square = _PIXELS // pixels
            grouped = torch.from_numpy(images).view(-1, pixels, square, pixels, square, 3)
            parts[f"{part}_image"] = grouped.float().mean((2, 4)).round().to(torch.uint8)
            parts[f"{part}_label"] = torch.from_numpy(file[f"{part}_label"]).long()
    return parts


def _conv3x3(inputs: int, outputs: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs))


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    images, labels = batch
    return F.cross_entropy(model(images), labels)
