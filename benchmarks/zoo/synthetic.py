"""Tasks that need no file: their data are drawn from a fixed seed."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from benchmarks.workloads.base import generator, seeded
from benchmarks.zoo.data import split
from benchmarks.zoo.models import Recurrent, cross_entropy, mlp, squares
from benchmarks.zoo.task import Batch, Parts, Task, task

__all__ = ["TASKS"]

_MODULUS = 59


def _teacher() -> Parts:
    """Every row is seen once in 1,000 steps of 64."""
    with seeded(0), torch.no_grad():
        teacher = mlp(20, 32, 32, 1, act=nn.Tanh)
        for weight in teacher.parameters():
            weight.mul_(2.0)
        x = torch.randn(92_000, 20, generator=generator(0, "zoo teacher"))
        return split(x, teacher(x)[:, 0])


def _sums() -> Parts:
    """Half of the table of additions to train on; a number is five angles, on a circle of 59 and others."""
    pairs = torch.cartesian_prod(torch.arange(_MODULUS), torch.arange(_MODULUS))
    pairs = pairs[torch.randperm(len(pairs), generator=generator(0, "zoo sums"))]
    angles = (2 * math.pi / _MODULUS) * pairs[..., None] * torch.tensor([1, 2, 5, 11, 23])
    seen = torch.cat([angles.cos(), angles.sin()], 2).flatten(1)
    return split(seen, pairs.sum(1) % _MODULUS, probe=0.2, test=0.3)


def _heavy() -> Parts:
    """Columns of unequal spread, and noise from Student's t with 2.5 degrees of freedom."""
    with seeded(0):
        noise = torch.distributions.StudentT(2.5).sample((12_000,))
    draw = generator(0, "zoo heavy")
    x = torch.randn(12_000, 16, generator=draw) * torch.logspace(0, -1.5, 16)
    y = torch.sin(2 * x[:, 0]) + x[:, 1:] @ torch.randn(15, generator=draw)
    return split(x, y + 0.3 * noise, probe=0.2, test=0.3)


def _marked(length: int) -> Parts:
    """Numbers and two marks; the sum of the marked ones."""
    draw = generator(0, "zoo marked")
    numbers = torch.rand(60_000, length, generator=draw)
    half = length // 2
    places = torch.randint(half, (60_000, 2), generator=draw) + torch.tensor([0, half])
    marks = torch.zeros_like(numbers).scatter_(1, places, 1.0)
    return split(torch.stack([numbers, marks], 2), (numbers * marks).sum(1), probe=0.05, test=0.05)


def _plane(kind: str) -> Parts:
    """Points near two half circles, or near a spiral."""
    draw = generator(0, f"zoo {kind}")
    along = torch.rand(12_000, generator=draw)
    noise = 0.05 * torch.randn(12_000, 2, generator=draw)
    if kind == "moons":
        upper = torch.rand(12_000, generator=draw) < 0.5
        x = torch.where(upper, torch.cos(math.pi * along) - 0.5, 0.5 - torch.cos(math.pi * along))
        y = torch.where(upper, torch.sin(math.pi * along), -torch.sin(math.pi * along)) - 0.25
    else:
        turn = 4 * math.pi * along.sqrt()
        x, y = turn * torch.cos(turn) / 6, turn * torch.sin(turn) / 6
    return split(torch.stack([x, y], 1) + noise)


def _linear() -> Parts:
    """A linear map of low rank with uneven singular values, and a little noise."""
    draw = generator(0, "zoo linear")
    x = torch.randn(2000, 32, generator=draw)
    basis = torch.linalg.qr(torch.randn(32, 32, generator=draw))[0]
    target = x @ (basis * torch.logspace(0.5, -2, 32)) @ basis.T
    return split(x, target + 0.01 * torch.randn(target.shape, generator=draw))


def _zipf() -> Parts:
    """A word by Zipf's law, and the next one, which follows from it in one of four ways."""
    draw = generator(0, "zoo words")
    words, rows = 5000, 120_000
    chances = 1 / torch.arange(1, words + 1)
    first = torch.multinomial(chances, rows, replacement=True, generator=draw)
    follows = torch.multinomial(chances, 4 * words, replacement=True, generator=draw).view(words, 4)
    which = torch.multinomial(torch.tensor([0.6, 0.2, 0.1, 0.1]), rows, replacement=True, generator=draw)
    return split(first, follows[first, which], probe=0.1, test=0.1)


class _Flow(nn.Module):
    """Affine couplings of the plane (Dinh et al. 2017); returns the log-density of each point."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(mlp(1, width, width, 2, act=nn.Tanh) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.unbind(1)
        log_volume = torch.zeros_like(a)
        for layer in self.layers:
            log_scale, shift = layer(a[:, None]).unbind(1)
            log_scale = 2 * torch.tanh(log_scale)
            a, b = b * log_scale.exp() + shift, a
            log_volume = log_volume + log_scale
        return log_volume - 0.5 * (a.square() + b.square()) - math.log(2 * math.pi)


def _density(model: nn.Module, batch: Batch) -> Tensor:
    density: Tensor = model(*batch)
    return density.mean().neg()


TASKS: tuple[Task, ...] = (
    task(
        "teacher-one-pass",
        "teacher-networks",
        1000,
        data=_teacher,
        model=lambda: mlp(20, 64, 64, 1, act=nn.Tanh),
        loss=squares,
        batch=64,
        also=("lion",),
        floor=0.01,
    ),
    task(
        "sums-full-batch",
        "modular-addition",
        600,
        data=_sums,
        model=lambda: mlp(20, 128, 128, _MODULUS),
        loss=cross_entropy,
        batch=None,
        also=("muon",),
        floor=0.05,
    ),
    task(
        "tails-regression",
        "heavy-tails",
        800,
        data=_heavy,
        model=lambda: mlp(16, 64, 1),
        loss=squares,
        batch=32,
    ),
    task(
        "adding-recurrent",
        "adding-problem",
        800,
        data=partial(_marked, 30),
        model=lambda: Recurrent(2, 64, 1),
        loss=squares,
        batch=64,
        floor=0.01,
    ),
    task(
        "moons-flow",
        "flows",
        500,
        data=partial(_plane, "moons"),
        model=lambda: _Flow(6, 32),
        loss=_density,
        batch=256,
        floor=1.0,
    ),
    task(
        "spiral-flow",
        "flows",
        500,
        data=partial(_plane, "spiral"),
        model=lambda: _Flow(6, 32),
        loss=_density,
        batch=1024,
        floor=1.0,
    ),
    task(
        "linear-layers-full-batch",
        "deep-linear",
        500,
        data=_linear,
        model=lambda: nn.Sequential(*(nn.Linear(32, 32, bias=False) for _ in range(8))),
        loss=squares,
        batch=None,
        floor=0.01,
    ),
    task(
        "words-rarely-seen",
        "rare-words",
        600,
        data=_zipf,
        model=lambda: nn.Sequential(nn.Embedding(5000, 48), nn.Linear(48, 5000)),
        loss=cross_entropy,
        batch=128,
    ),
)
