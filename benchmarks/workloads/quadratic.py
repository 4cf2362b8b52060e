"""A noisy, ill-conditioned quadratic: the one task whose expected loss is known in closed form.

A sample z ~ N(0, s²) costs ½ Σ hᵢ (xᵢ − zᵢ)², with curvatures hᵢ log-spaced over four decades. In expectation
that is ½ Σ hᵢ xᵢ² plus the constant ½ s² Σ hᵢ, which no x can mend and the held-out loss leaves out.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.workloads.base import Batch, Workload, at_scale, generator, seeded

__all__ = ["DIMENSIONS", "NOISE", "Point", "curvatures", "expected_loss", "make"]

DIMENSIONS = 64
#: s, the standard deviation of every coordinate of a sample.
NOISE = 3.0
_BATCH, _PROBE_BATCH = 16, 256
_STEPS = {"cpu": 1000, "gpu": 2000}
# So many samples are drawn at once: a step does not wait for the generator, nor for the copy to the device.
_CHUNK = 1024


class Point(nn.Module):
    """The point x that is trained, drawn from N(0, 1); its output is how far it lies from each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.randn(DIMENSIONS))

    def forward(self, samples: Tensor) -> Tensor:
        return self.x - samples


def curvatures() -> Tensor:
    """The hᵢ, from 10⁻⁴ to 1: plain gradient descent is stable below a learning rate of 2."""
    return torch.logspace(-4, 0, DIMENSIONS)


def expected_loss(x: Tensor) -> Tensor:
    """½ Σ hᵢ xᵢ², the mean loss over all samples less the part that the noise alone makes.

    >>> expected_loss(torch.zeros(DIMENSIONS))
    tensor(0.)
    """
    return 0.5 * (curvatures().to(x.device) * x**2).sum()


def make(scale: str = "cpu", device: str = "cpu", folder: str | Path | None = None) -> Workload:
    """The task; the held-out loss is :func:`expected_loss` of the trained point. ``folder`` is not read."""
    del folder
    curvature = curvatures().to(device)

    def build(seed: int) -> nn.Module:
        with seeded(seed):
            return Point().to(device)

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        apart: Tensor = model(batch[0])
        return 0.5 * (apart.square() @ curvature).mean()

    return Workload(
        name="quadratic",
        steps=at_scale(_STEPS, scale),
        build=build,
        loss=loss,
        batches=partial(_samples, purpose="batches", size=_BATCH, device=device),
        probe=partial(_samples, purpose="probe", size=_PROBE_BATCH, device=device),
        # At z = 0 the loss is the expected loss without its constant.
        held_out=((torch.zeros(1, DIMENSIONS, device=device),),),
    )


def _samples(seed: int, *, purpose: str, size: int, device: str) -> Iterator[Batch]:
    draw = generator(seed, f"quadratic {purpose}")
    while True:
        chunk = NOISE * torch.randn(_CHUNK // size, size, DIMENSIONS, generator=draw)
        for samples in chunk.to(device):
            yield (samples,)
