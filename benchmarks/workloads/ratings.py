"""For how long will this user watch this video? Embeddings of both and an MLP, by mean squares.

The target is log(1 + seconds), not centred: its mean is 2.4, its deviation 1.1. The impressions are those in
KuaiRand of videos that were shown five times or more; 6,000 of them are held out and 1,024 are the probe's,
all drawn at random.
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
from benchmarks.workloads.newsfeed import CAVEAT

__all__ = ["FILE", "RatingModel", "load", "make"]

FILE = "kuairand_feed.tsv"
_COLUMNS = ("user_id", "video_id", "play_time_ms")
_HELD_OUT, _PROBE = 6000, 1024
_PROBE_BATCH = 256
#: Times that a video was shown.
_OFTEN = 5


@dataclass(frozen=True)
class _Size:
    steps: int
    batch: int
    width: int


_SIZES = {
    "cpu": _Size(steps=1500, batch=64, width=16),
    "gpu": _Size(steps=4000, batch=128, width=64),
}


class RatingModel(nn.Module):
    """A table for users, one for videos; an MLP with one hidden layer on the two rows and their product."""

    def __init__(self, users: int, videos: int, width: int) -> None:
        super().__init__()
        self.user = nn.Embedding(users, width)
        self.video = nn.Embedding(videos, width)
        self.mlp = nn.Sequential(nn.Linear(3 * width, 4 * width), nn.ReLU(), nn.Linear(4 * width, 1))

    def forward(self, users: Tensor, videos: Tensor) -> Tensor:
        """One number for each pair."""
        user, video = self.user(users), self.video(videos)
        rating: Tensor = self.mlp(torch.cat([user, video, user * video], 1)).squeeze(1)
        return rating


def load(path: Path) -> Tensor:
    """User, video (both numbered from 0) and milliseconds; impressions alike in all three are one."""
    with path.open(encoding="utf-8", newline="") as file:
        read = [tuple(int(row[name]) for name in _COLUMNS) for row in csv.DictReader(file, delimiter="\t")]
    rows = torch.tensor(list(dict.fromkeys(read)))
    _, video, shown = torch.unique(rows[:, 1], return_inverse=True, return_counts=True)
    rows = rows[shown[video] >= _OFTEN]
    user, video = (torch.unique(column, return_inverse=True)[1] for column in rows.T[:2])
    return torch.stack([user, video, rows[:, 2]], 1)


def make(scale: str = "cpu", device: str = "cpu", folder: str | Path | None = None) -> Workload:
    """The task, from ``kuairand_feed.tsv`` (:func:`.base.data_file` says where it is sought)."""
    size = at_scale(_SIZES, scale)
    users, videos, played = load(data_file(FILE, folder)).unbind(1)
    order = torch.randperm(len(played), generator=generator(0, "ratings split"))
    held_out, probe, train = torch.split(order, [_HELD_OUT, _PROBE, len(order) - _HELD_OUT - _PROBE])

    target = torch.log1p(played / 1000)

    def part(rows: Tensor) -> Batch:
        return users[rows].to(device), videos[rows].to(device), target[rows].to(device)

    train_part, probe_part = part(train), part(probe)

    def build(seed: int) -> nn.Module:
        with seeded(seed):
            return RatingModel(int(users.max()) + 1, int(videos.max()) + 1, size.width).to(device)

    return Workload(
        name="ratings",
        steps=size.steps,
        build=build,
        loss=_loss,
        batches=lambda seed: shuffled(train_part, size.batch, generator(seed, "ratings batches")),
        probe=lambda seed: shuffled(probe_part, _PROBE_BATCH, generator(seed, "ratings probe")),
        held_out=in_parts(part(held_out), 1000),
        caveat=CAVEAT,
    )


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    users, videos, target = batch
    return F.mse_loss(model(users, videos), target)
