"""Denoising diffusion: a small U-Net with GroupNorm finds the noise in noisy photographs of CIFAR-10.

An image x becomes a·x + s·ε with a = cos(πt/2), s = sin(πt/2); the model is given that and t, and the loss is
the mean squared error of ε. Noise ε and time t, uniform in [0, 1), belong to the batch: they are drawn anew
for every image seen, and once and for all for those held out. The parts are 19,000, 1,000 and 4,000 images.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.workloads.base import Batch, Workload, at_scale, generator, in_parts, seeded, shuffled
from benchmarks.workloads.cifar import decoded, scaling

__all__ = ["UNet", "make"]

_PROBE_IMAGES = 1000
_GROUPS = 4
_FREQUENCIES = 8


@dataclass(frozen=True)
class _Size:
    steps: int
    batch: int
    probe_batch: int
    pixels: int
    width: int
    held_out: int


_SIZES = {
    "cpu": _Size(steps=400, batch=16, probe_batch=128, pixels=8, width=16, held_out=2000),
    "gpu": _Size(steps=1500, batch=128, probe_batch=256, pixels=32, width=64, held_out=4000),
}


class _Block(nn.Module):
    """Two 3×3 convolutions behind GroupNorms, added to what came in; time shifts the channels between."""

    def __init__(self, inputs: int, outputs: int, times: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.GroupNorm(_GROUPS, inputs), nn.GroupNorm(_GROUPS, outputs)
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(times, outputs)
        self.past = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        changed = self.first(F.silu(self.first_norm(x))) + self.time(time)[:, :, None, None]
        changed = self.second(F.silu(self.second_norm(changed)))
        both: Tensor = self.past(x) + changed
        return both


class UNet(nn.Module):
    """Two levels, the lower of half the size and twice the channels; what was above is seen on the way up."""

    def __init__(self, width: int) -> None:
        super().__init__()
        times = 4 * width
        self.time = nn.Sequential(
            nn.Linear(2 * _FREQUENCIES, times), nn.SiLU(), nn.Linear(times, times), nn.SiLU()
        )
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.above = _Block(width, width, times)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.below = _Block(2 * width, 2 * width, times)
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.again = _Block(2 * width, width, times)
        self.norm = nn.GroupNorm(_GROUPS, width)
        self.head = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, images: Tensor, t: Tensor) -> Tensor:
        """The noise in images of times t, each in [0, 1)."""
        angles = t[:, None] * (math.pi / 2 * 2.0 ** torch.arange(_FREQUENCIES, device=t.device))
        time = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        above = self.above(self.stem(images), time)
        below = self.below(self.down(above), time)
        x = self.again(torch.cat([self.up(below), above], 1), time)
        noise: Tensor = self.head(F.silu(self.norm(x)))
        return noise


def make(scale: str = "cpu", device: str = "cpu", folder: str | Path | None = None) -> Workload:
    """The task, from the file that :func:`.cifar.decoded` reads."""
    size = at_scale(_SIZES, scale)
    parts = decoded(folder, size.pixels)
    order = torch.randperm(len(parts["train_image"]), generator=generator(0, "diffusion split"))
    for_probe, for_training = order[:_PROBE_IMAGES], order[_PROBE_IMAGES:]
    scaled = scaling(parts["train_image"][for_training], device)
    train, probe, held_out = (
        scaled(images.to(device)).contiguous()
        for images in (
            parts["train_image"][for_training],
            parts["train_image"][for_probe],
            parts["test_image"][: size.held_out],
        )
    )

    def build(seed: int) -> nn.Module:
        with seeded(seed):
            return UNet(size.width).to(device)

    return Workload(
        name="diffusion",
        steps=size.steps,
        build=build,
        loss=_loss,
        batches=lambda seed: _noisy(train, size.batch, seed, "diffusion batches"),
        probe=lambda seed: _noisy(probe, size.probe_batch, seed, "diffusion probe"),
        held_out=in_parts(_with_noise(held_out, generator(0, "diffusion held out", device)), 500),
    )


def _noisy(images: Tensor, size: int, seed: int, purpose: str) -> Iterator[Batch]:
    draw = generator(seed, f"{purpose}, noise", images.device)
    for (some,) in shuffled((images,), size, generator(seed, purpose)):
        yield _with_noise(some, draw)


def _with_noise(images: Tensor, draw: torch.Generator) -> Batch:
    device = images.device
    noise = torch.randn(images.shape, generator=draw, device=device)
    return images, noise, torch.rand(len(images), generator=draw, device=device)


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    images, noise, t = batch
    angle = (math.pi / 2 * t)[:, None, None, None]
    return F.mse_loss(model(angle.cos() * images + angle.sin() * noise, t), noise)
