"""Photographs: 24,000 images of CIFAR-10 in ten classes, and a small ResNet with BatchNorm.

19,000 images train the model, flipped and shifted at random; 1,000 are the probe's; 4,000 are held out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.workloads.base import Batch, Workload, at_scale, generator, in_parts, seeded, shuffled
from benchmarks.workloads.cifar import CLASSES, augmented, decoded, scaling

__all__ = ["BasicBlock", "ResNet", "loss", "make", "make_few", "on_device", "outputs"]

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
    #: To train on; all if None.
    images: int | None = None


_SIZES = {
    "cpu": _Size(steps=400, batch=16, stem_stride=2, channels=(8, 16, 32), pixels=16, shift=2),
    "gpu": _Size(steps=1500, batch=128, stem_stride=1, channels=(32, 64, 128), pixels=32, shift=4),
}


_FEW = {
    "cpu": replace(_SIZES["cpu"], images=1000),
    "gpu": replace(_SIZES["gpu"], images=4000),
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
    """A 3×3 stem, three stages of one block each at strides 1, 2, 2, global mean, one linear layer.

    With a ``dropout``, be it 0, there is a layer of it before the last one.
    """

    def __init__(
        self,
        channels: tuple[int, int, int],
        stem_stride: int = 1,
        classes: int = CLASSES,
        dropout: float | None = None,
    ) -> None:
        super().__init__()
        first, second, third = channels
        self.stem = _conv3x3(3, first, stem_stride)
        self.stages = nn.Sequential(
            BasicBlock(first, first, 1), BasicBlock(first, second, 2), BasicBlock(second, third, 2)
        )
        self.dropout = nn.Identity() if dropout is None else nn.Dropout(dropout)
        self.head = nn.Linear(third, classes)

    def forward(self, images: Tensor) -> Tensor:
        seen = self.stages(F.relu(self.stem(images))).mean((2, 3))
        logits: Tensor = self.head(self.dropout(seen))
        return logits


def make(scale: str = "cpu", device: str = "cpu", folder: str | Path | None = None) -> Workload:
    """The task, from the file that :func:`.cifar.decoded` reads."""
    return _make("images", at_scale(_SIZES, scale), device, folder)


def make_few(
    scale: str = "cpu",
    device: str = "cpu",
    folder: str | Path | None = None,
    *,
    dropout: float | None = None,
) -> Workload:
    """The same model on few of the images, over and over; with a layer of dropout if that is given."""
    return _make("images, few", at_scale(_FEW, scale), device, folder, dropout)


def _make(
    name: str, size: _Size, device: str, folder: str | Path | None, dropout: float | None = None
) -> Workload:
    parts = decoded(folder, size.pixels)
    order = torch.randperm(len(parts["train_label"]), generator=generator(0, "images split"))
    for_probe, for_training = order[:_PROBE_IMAGES], order[_PROBE_IMAGES:][: size.images]
    scaled = scaling(parts["train_image"][for_training], device)
    train = parts["train_image"][for_training].to(device), parts["train_label"][for_training].to(device)
    probe = scaled(parts["train_image"][for_probe].to(device)), parts["train_label"][for_probe].to(device)
    held_out = scaled(parts["test_image"].to(device)), parts["test_label"].to(device)

    def build(seed: int) -> nn.Module:
        with seeded(seed):
            return on_device(ResNet(size.channels, size.stem_stride, dropout=dropout), device)

    return Workload(
        name=name,
        steps=size.steps,
        build=build,
        loss=loss,
        batches=lambda seed: augmented(
            *train,
            size=size.batch,
            shift=size.shift,
            scaled=scaled,
            draw=generator(seed, "images batches"),
        ),
        probe=lambda seed: shuffled(probe, _PROBE_BATCH, generator(seed, "images probe")),
        held_out=in_parts(held_out, 500),
    )


def on_device(model: nn.Module, device: str) -> nn.Module:
    """There, and on an accelerator in the order of memory that its convolutions are quickest in."""
    model = model.to(device)
    if torch.device(device).type == "cuda":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy of images and labels, natural logarithm."""
    return F.cross_entropy(*outputs(model, batch))


def outputs(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits and labels, a row for each image."""
    images, labels = batch
    return model(images), labels


def _conv3x3(inputs: int, outputs: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs))
