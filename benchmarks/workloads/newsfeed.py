"""A feed of short videos: from what a user did before, what will the user do with the next one?

Three answers are trained jointly, as in the paper: contribution (comment, forward or follow), like, long
dwell. A transformer reads the user's last impressions and the candidate. The rows are split by time: the
first 80 % train the model, less 1,024 of them drawn for the probe, and the last 20 % are held out.
"""

from __future__ import annotations

import zlib
from collections import defaultdict
from dataclasses import dataclass
from itertools import groupby
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
from benchmarks.workloads.charlm import Block, init_weights

__all__ = [
    "BUCKETS",
    "CAVEAT",
    "HISTORY",
    "NO_ITEM",
    "TASKS",
    "Feed",
    "FeedModel",
    "Impression",
    "load",
    "loss",
    "make",
    "make_few",
    "outputs",
    "parameter_groups",
]

CAVEAT = "KuaiRand rows are restricted to explicit like or hate: base rates are not those of a whole feed."
TASKS = ("contribution", "like", "long_dwell")
#: So many of a user's impressions before the candidate are seen.
HISTORY = 16
# Item 0 fills up a short history; videos are hashed into the others. An id for each video would give the
# like away: of the training rows, those whose video comes once are hated (99.8 %), the others liked (98 %).
# A model that learns this fails on the held-out rows, 56 % of which show a video that training never did.
NO_ITEM, BUCKETS = 0, 1024

_FILE = "kuairand_feed.tsv"
_FLAGS = ("is_comment", "is_forward", "is_follow", "label", "long_view")
_COLUMNS = ("user_id", "video_id", "time_ms", *_FLAGS)
_TRAIN_SHARE = 0.8
_PROBE_ROWS = 1024
_PROBE_BATCH = 256
_ITEMS = 1 + BUCKETS
# Action 0 is none (no item, or the candidate, whose actions are asked for), else 1 + three bits.
_ACTIONS = 1 + 2 ** len(TASKS)


@dataclass(frozen=True)
class _Size:
    steps: int
    batch: int
    width: int
    heads: int
    #: Of the training rows all, or so many; and of the held-out rows each so-manieth.
    train_rows: int | None = None
    held_out_every: int = 1


_SIZES = {
    "cpu": _Size(steps=400, batch=32, width=16, heads=2),
    "gpu": _Size(steps=1500, batch=64, width=64, heads=4),
}
_FEW = {
    "cpu": _Size(steps=1000, batch=32, width=16, heads=2, train_rows=4000, held_out_every=2),
    "gpu": _Size(steps=2000, batch=64, width=64, heads=4, train_rows=8000),
}


@dataclass(frozen=True, slots=True)
class Impression:
    """One video shown to one user, and whether the user did each of :data:`TASKS`."""

    time_ms: int
    user: int
    video: int
    targets: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Feed:
    """One row for each impression, by time; the first ``train_rows`` are to train on.

    ``history_items`` and ``history_actions`` hold the user's impressions before this one, the latest last.
    A probe row is no training sample, yet it stands in the history of its user's later rows.
    """

    history_items: Tensor
    history_actions: Tensor
    candidate: Tensor
    targets: Tensor
    train_rows: int


class FeedModel(nn.Module):
    """Embeddings of item, action and position; two causal blocks; a head for each task on the candidate."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.item = nn.Embedding(_ITEMS, width)
        self.action = nn.Embedding(_ACTIONS, width)
        self.position = nn.Embedding(HISTORY + 1, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.heads = nn.Linear(width, len(TASKS))
        self.apply(init_weights)

    def forward(self, history_items: Tensor, history_actions: Tensor, candidate: Tensor) -> Tensor:
        """One logit for each of :data:`TASKS`."""
        items = torch.cat([history_items, candidate[:, None]], dim=1)
        actions = F.pad(history_actions, (0, 1))
        x = self.item(items) + self.action(actions) + self.position.weight
        length = items.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=items.device).tril()
        # A place without an item sees itself, since a softmax over nothing is not a number.
        itself = torch.eye(length, dtype=torch.bool, device=items.device)
        visible = causal & ((items != NO_ITEM)[:, None, None, :] | itself)
        for block in self.blocks:
            x = block(x, visible)
        last = self.norm(x[:, -1])
        logits: Tensor = self.heads(last)
        return logits


def load(path: Path) -> Feed:
    """Read, sort and split the impressions; an error names the file and the line."""
    # The file writes some impressions twice: the answer to the one would stand in the history of the other.
    rows = sorted(dict.fromkeys(_read(path)), key=lambda row: row.time_ms)
    none = [(NO_ITEM, 0)] * HISTORY
    past: dict[int, list[tuple[int, int]]] = defaultdict(lambda: list(none))
    history, candidate = [], []
    for _, moment in groupby(rows, key=lambda row: row.time_ms):
        shown = [(row, 1 + zlib.crc32(str(row.video).encode()) % BUCKETS) for row in moment]
        # Many impressions share a moment: none of them may see what the user did with another.
        for row, item in shown:
            history.append(past[row.user][-HISTORY:])
            candidate.append(item)
        for row, item in shown:
            action = 1 + sum(target << bit for bit, target in enumerate(row.targets))
            past[row.user].append((item, action))
    items, actions = torch.tensor(history).unbind(-1)
    return Feed(
        history_items=items.contiguous(),
        history_actions=actions.contiguous(),
        candidate=torch.tensor(candidate),
        targets=torch.tensor([row.targets for row in rows], dtype=torch.float32),
        train_rows=int(len(rows) * _TRAIN_SHARE),
    )


def parameter_groups(model: nn.Module) -> dict[str, list[nn.Parameter]]:
    """Every parameter once: tables, what takes no weight decay, other matrices, the blocks' matrices."""
    groups: dict[str, list[nn.Parameter]] = {
        "embedding": [],
        "no_decay": [],
        "non_embedding": [],
        "transformer": [],
    }
    in_blocks = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, Block)
        for parameter in module.parameters()
    }
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    for parameter in model.parameters():
        if id(parameter) in tables:
            groups["embedding"].append(parameter)
        elif parameter.ndim < 2:
            groups["no_decay"].append(parameter)
        elif id(parameter) in in_blocks:
            groups["transformer"].append(parameter)
        else:
            groups["non_embedding"].append(parameter)
    return groups


def make(scale: str = "cpu", device: str = "cpu", folder: str | Path | None = None) -> Workload:
    """The task, from ``kuairand_feed.tsv``, sought where :func:`benchmarks.workloads.base.data_file` says."""
    return _make("newsfeed", at_scale(_SIZES, scale), device, folder)


def make_few(device: str = "cpu", folder: str | Path | None = None, *, scale: str = "cpu") -> Workload:
    """The same model on few rows, over and over: without weight decay it learns them by heart."""
    return _make("newsfeed, few rows", at_scale(_FEW, scale), device, folder)


def outputs(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits and targets, a row for each impression and a column for each of :data:`TASKS`."""
    *seen, targets = batch
    return model(*seen), targets


def _make(name: str, size: _Size, device: str, folder: str | Path | None) -> Workload:
    feed = load(data_file(_FILE, folder))
    samples = (feed.history_items, feed.history_actions, feed.candidate, feed.targets)
    order = torch.randperm(feed.train_rows, generator=generator(0, "newsfeed split"))
    probe = tuple(part[order[:_PROBE_ROWS]].to(device) for part in samples)
    train = tuple(part[order[_PROBE_ROWS:][: size.train_rows]].to(device) for part in samples)
    held_out = tuple(part[feed.train_rows :: size.held_out_every].to(device) for part in samples)

    def build(seed: int) -> nn.Module:
        with seeded(seed):
            return FeedModel(size.width, size.heads).to(device)

    return Workload(
        name=name,
        steps=size.steps,
        build=build,
        loss=loss,
        batches=lambda seed: shuffled(train, size.batch, generator(seed, "newsfeed batches")),
        probe=lambda seed: shuffled(probe, _PROBE_BATCH, generator(seed, "newsfeed probe")),
        held_out=in_parts(held_out, 512),
        caveat=CAVEAT,
    )


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """The sum over tasks of the mean binary cross-entropy."""
    return F.binary_cross_entropy_with_logits(*outputs(model, batch)) * len(TASKS)


def _read(path: Path) -> list[Impression]:
    # What is no text is refused by the line that it makes, with its number.
    with path.open(encoding="utf-8", errors="replace") as file:
        header = file.readline().rstrip("\n").split("\t")
        if header == [""]:
            raise ValueError(f"{path}: line 1: expected a header of tab-separated names, got an empty file")
        missing = [name for name in _COLUMNS if name not in header]
        if missing:
            raise ValueError(f"{path}: line 1: missing column {', '.join(missing)}, got {', '.join(header)}")
        places = [header.index(name) for name in _COLUMNS]
        rows = []
        for line, text in enumerate(file, start=2):
            fields = text.rstrip("\n").split("\t")
            if len(fields) != len(header):
                raise ValueError(f"{path}: line {line}: expected {len(header)} fields, got {len(fields)}")
            rows.append(_impression([fields[place] for place in places], path, line))
    if not rows:
        raise ValueError(f"{path}: line 2: expected at least one impression, got a header alone")
    return rows


def _impression(fields: list[str], path: Path, line: int) -> Impression:
    numbers = []
    for name, field in zip(_COLUMNS, fields, strict=True):
        allowed = field in ("0", "1") if name in _FLAGS else field.isascii() and field.isdigit()
        if not allowed:
            rule = "0 or 1" if name in _FLAGS else "a whole number"
            raise ValueError(f"{path}: line {line}: {name} must be {rule}, got {field!r}")
        numbers.append(int(field))
    user, video, time_ms, comment, forward, follow, like, long_view = numbers
    return Impression(time_ms, user, video, (comment | forward | follow, like, long_view))
