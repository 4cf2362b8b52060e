"""A variational autoencoder: photographs of CIFAR-10 in grey, through a few Gaussian numbers and back.

The loss is the negative evidence bound in nats per image, less a constant: half the squared error, summed
over the pixels, whose deviation is 1, and the divergence of the code from the standard normal. The noise ε of
the code belongs to the batch: drawn anew for every image seen, and once and for all for those held out. The
parts are 19,000, 1,000 and 4,000 images. No layer is normalised.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.workloads.base import Batch, Workload, at_scale, generator, in_parts, seeded, shuffled
from benchmarks.workloads.cifar import decoded, scaling

__all__ = ["VAE", "make"]

_PROBE_IMAGES, _PROBE_BATCH = 1000, 256


@dataclass(frozen=True)
class _Size:
    steps: int
    batch: int
    pixels: int
    width: int
    code: int


_SIZES = {
    "cpu": _Size(steps=600, batch=32, pixels=16, width=8, code=16),
    "gpu": _Size(steps=2000, batch=128, pixels=32, width=64, code=64),
}


class VAE(nn.Module):
    """Two convolutions that halve the image, a linear layer to mean and log-variance, and the way back."""

    def __init__(self, pixels: int, width: int, code: int) -> None:
        super().__init__()
        side = pixels // 4
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 4, stride=2, padding=1),
            nn.SiLU(),
            nn.Conv2d(width, 2 * width, 4, stride=2, padding=1),
            nn.SiLU(),
            nn.Flatten(),
            nn.Linear(2 * width * side**2, 2 * code),
        )
        self.decoder = nn.Sequential(
            nn.Linear(code, 2 * width * side**2),
            nn.SiLU(),
            nn.Unflatten(1, (2 * width, side, side)),
            nn.ConvTranspose2d(2 * width, width, 4, stride=2, padding=1),
            nn.SiLU(),
            nn.ConvTranspose2d(width, 1, 4, stride=2, padding=1),
        )

    def forward(self, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Images as they come back, and mean and log-variance of their codes."""
        mean, log_variance = self.encoder(images).chunk(2, 1)
        return self.decoder(mean + (log_variance / 2).exp() * noise), mean, log_variance


def make(scale: str = "cpu", device: str = "cpu", folder: str | Path | None = None) -> Workload:
    """The task, from the file that :func:`.cifar.decoded` reads."""
    size = at_scale(_SIZES, scale)
    parts = decoded(folder, size.pixels)
    grey = {part: parts[f"{part}_image"].float().mean(3, keepdim=True) for part in ("train", "test")}
    order = torch.randperm(len(grey["train"]), generator=generator(0, "vae split"))
    for_probe, for_training = order[:_PROBE_IMAGES], order[_PROBE_IMAGES:]
    scaled = scaling(grey["train"][for_training], device)
    train, probe, held_out = (
        scaled(images.to(device)).contiguous()
        for images in (grey["train"][for_training], grey["train"][for_probe], grey["test"])
    )

    def build(seed: int) -> nn.Module:
        with seeded(seed):
            return VAE(size.pixels, size.width, size.code).to(device)

    def noisy(images: Tensor, rows: int, seed: int, purpose: str) -> Iterator[Batch]:
        draw = generator(seed, f"{purpose}, noise", device)
        for (some,) in shuffled((images,), rows, generator(seed, purpose)):
            yield some, torch.randn(rows, size.code, generator=draw, device=device)

    fixed = torch.randn(
        len(held_out), size.code, generator=generator(0, "vae held out", device), device=device
    )
    return Workload(
        name="vae",
        steps=size.steps,
        build=build,
        loss=_loss,
        batches=lambda seed: noisy(train, size.batch, seed, "vae batches"),
        probe=lambda seed: noisy(probe, _PROBE_BATCH, seed, "vae probe"),
        held_out=in_parts((held_out, fixed), 500),
    )


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    images, noise = batch
    back, mean, log_variance = model(images, noise)
    squared = (images - back).square().sum((1, 2, 3))
    divergence = (mean.square() + log_variance.exp() - log_variance - 1).sum(1)
    bound: Tensor = (squared + divergence).mean() / 2
    return bound
