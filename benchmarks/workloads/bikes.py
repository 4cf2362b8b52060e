"""Bicycles rented in an hour, foretold from calendar and weather by an MLP: the raw count, by mean squares.

The targets (1…977, mean 189) are neither centred nor scaled, so that most of the untrained loss is a missing
bias. Of 17,379 hours 3,000 are held out and 1,024 are the probe's, all drawn at random.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.workloads.base import (
    Batch,
    Workload,
    at_scale,
    data_file,
    generator,
    in_parts,
    seeded,
    shuffled,
)

__all__ = ["FILE", "load", "make"]

FILE = "bike_sharing_hour.csv"
#: One column of zeros and ones for each of their values.
_KINDS = ("season", "yr", "mnth", "hr", "holiday", "weekday", "workingday", "weathersit")
_NUMBERS = ("temp", "atemp", "hum", "windspeed")
_TARGET = "cnt"
_HELD_OUT, _PROBE = 3000, 1024
_PROBE_BATCH = 256


@dataclass(frozen=True)
class _Size:
    steps: int
    batch: int
    width: int


_SIZES = {
    "cpu": _Size(steps=2000, batch=64, width=64),
    "gpu": _Size(steps=5000, batch=128, width=256),
}


def load(path: Path) -> tuple[Tensor, Tensor, Tensor]:
    """Of every hour the kinds as zeros and ones, the numbers, the count; hours alike in all of it are one."""
    with path.open(encoding="utf-8", newline="") as file:
        names = (*_KINDS, *_NUMBERS, _TARGET)
        read = [tuple(float(row[name]) for name in names) for row in csv.DictReader(file)]
    rows = torch.tensor(list(dict.fromkeys(read)))
    columns = rows.T[: len(_KINDS)]
    kinds = [F.one_hot(torch.unique(column, return_inverse=True)[1]) for column in columns]
    return torch.cat(kinds, 1).float(), rows[:, len(_KINDS) : -1], rows[:, -1]


def make(scale: str = "cpu", device: str = "cpu", folder: str | Path | None = None) -> Workload:
    """The task, from ``bike_sharing_hour.csv`` (:func:`.base.data_file` says where it is sought)."""
    size = at_scale(_SIZES, scale)
    kinds, numbers, counts = load(data_file(FILE, folder))
    order = torch.randperm(len(counts), generator=generator(0, "bikes split"))
    held_out, probe, train = torch.split(order, [_HELD_OUT, _PROBE, len(order) - _HELD_OUT - _PROBE])
    inputs = torch.cat([kinds, (numbers - numbers[train].mean(0)) / numbers[train].std(0)], 1)

    def part(rows: Tensor) -> Batch:
        return inputs[rows].to(device), counts[rows].to(device)

    train_part, probe_part = part(train), part(probe)

    def build(seed: int) -> nn.Module:
        with seeded(seed):
            model = nn.Sequential(
                nn.Linear(inputs.shape[1], size.width),
                nn.ReLU(),
                nn.Linear(size.width, size.width),
                nn.ReLU(),
                nn.Linear(size.width, 1),
                nn.Flatten(0),
            )
        return model.to(device)

    return Workload(
        name="bikes",
        steps=size.steps,
        build=build,
        loss=_loss,
        batches=lambda seed: shuffled(train_part, size.batch, generator(seed, "bikes batches")),
        probe=lambda seed: shuffled(probe_part, _PROBE_BATCH, generator(seed, "bikes probe")),
        held_out=in_parts(part(held_out), 1000),
    )


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    inputs, counts = batch
    return F.mse_loss(model(inputs), counts)
