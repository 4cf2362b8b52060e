"""What the paper's experiments are repeated on: a news feed, synthetic or real, and a language model.

A batch holds the samples of all N replicas, replica after replica, and in a feed no sample comes twice.
Beside the run's own batches a task has those of the warm starts' checkpoint, and the loss of who knows the
base rates and nothing else: what a model falls back to when it crashes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.workloads import Batch, Workload, charlm, feedstream, newsfeed
from benchmarks.workloads.base import at_scale, generator, in_parts, seeded, shuffled
from benchmarks.workloads.base import data_file as sought

__all__ = ["FEEDS", "REPLICAS", "SCALES", "TASKS", "Task", "data_file", "digest", "language", "make"]

#: N of the paper.
REPLICAS = 8
#: What the command line offers; the tests know a smaller one.
SCALES = ("cpu", "gpu")
FEEDS = ("feed", "kuairand")
TASKS = (*FEEDS, "charlm", "helptexts")
#: The paper averages every 1000 steps of some 300,000 and lets auto-LR act from step 100,000 on.
_SYNCS, _WARM_UP = 120, 1 / 3
_LEAST_INTERVAL = 4
#: The checkpoint's batches are those of other seeds than any run's.
_OTHER_SEEDS = 10_000
_FILE = "kuairand_feed.tsv"
_PRETRAINING_SHARE = 0.4
_PROBE_ROWS, _PROBE_BATCH = 1024, 256
_UNIGRAM_BATCHES = 64


@dataclass(frozen=True)
class Task:
    """One training task at one scale, on one device; ``workload.batches`` are of all replicas together."""

    workload: Workload
    #: Seed → the batches of the warm starts' checkpoint, none of which the run sees again in a feed.
    pretraining: Callable[[int], Iterator[Batch]]
    pretraining_steps: int
    #: The loss of who knows the base rates and nothing else.
    blind_loss: float
    loss_unit: str
    bayes_loss: float | None = None
    #: The model's logits of all held-out samples, and their labels, a column for each answer.
    outputs: Callable[[nn.Module], tuple[Tensor, Tensor]] | None = None
    caveats: tuple[str, ...] = ()

    @property
    def batch_per_replica(self) -> int:
        """Rows of a batch that one replica sees."""
        return len(next(self.workload.batches(0))[0]) // REPLICAS

    @property
    def sync_every(self) -> int:
        """T, such that a run has about as many syncs as it takes for the controller to get anywhere."""
        return max(_LEAST_INTERVAL, self.workload.steps // _SYNCS)

    @property
    def warm_up(self) -> int:
        """S_w, a third of the run."""
        return int(self.workload.steps * _WARM_UP)


@dataclass(frozen=True)
class _Size:
    """So many steps of ``joined`` batches of a workload at its ``scale``; of those held out so many."""

    steps: int
    scale: str
    joined: int
    held_out: int | None = None


_FEED = {
    "cpu": _Size(steps=600, scale="cpu", joined=4),
    "gpu": _Size(steps=3000, scale="gpu", joined=2),
    "tiny": _Size(steps=40, scale="cpu", joined=1, held_out=1),
}
_CHARLM = {
    "cpu": _Size(steps=1000, scale="cpu", joined=8),
    "gpu": _Size(steps=2000, scale="gpu", joined=2),
    "tiny": _Size(steps=40, scale="cpu", joined=2, held_out=1),
}


@dataclass(frozen=True)
class _KuaiRandSize:
    """The number of steps follows from the rows; ``run_rows`` are all, or the first so many."""

    rows_per_replica: int
    width: int
    heads: int
    run_rows: int | None = None


_KUAIRAND = {
    "cpu": _KuaiRandSize(rows_per_replica=4, width=16, heads=2),
    "gpu": _KuaiRandSize(rows_per_replica=4, width=64, heads=4),
    "tiny": _KuaiRandSize(rows_per_replica=2, width=16, heads=2, run_rows=640),
}


@cache
def make(task: str, scale: str = "cpu", device: str = "cpu", data: Path | None = None) -> Task:
    """The task by its name; ``data`` is kuairand's file. Made once in a process."""
    if task not in TASKS:
        raise ValueError(f"task must be one of {', '.join(map(repr, TASKS))}, got {task!r}")
    if task == "kuairand":
        if data is None:
            raise ValueError("task 'kuairand' needs data, the path of its file, got None")
        return _kuairand(at_scale(_KUAIRAND, scale), device, data)
    return _feed(scale, device) if task == "feed" else _language(task, scale, device)


def language() -> str:
    """The task of pre-training: on tinyshakespeare or, where that file is not, on Python's help texts."""
    try:
        sought(charlm.FILE)
    except FileNotFoundError:
        return "helptexts"
    return "charlm"


def data_file(path: Path) -> Path:
    """The file at ``path``, or ``kuairand_feed.tsv`` in the folder there, or that in ``$HDET_DATA``."""
    file = path / _FILE if path.is_dir() else path
    return file if file.is_file() else sought(file.name, file.parent)


def digest(file: Path) -> str:
    """Twelve digits by which the content of a file is known, wherever it lies."""
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


# ---------------------------------------------------------------------- the synthetic feed


def _feed(scale: str, device: str) -> Task:
    size = at_scale(_FEED, scale)
    workload = _resized(feedstream.make(size.scale, device), size)
    return Task(
        workload=workload,
        pretraining=lambda seed: workload.batches(seed + _OTHER_SEEDS),
        pretraining_steps=size.steps,
        blind_loss=feedstream.BASE_RATE_LOSS,
        bayes_loss=feedstream.bayes_loss(size.scale),
        loss_unit=_FEED_UNIT,
        outputs=partial(_outputs, workload.held_out),
        caveats=(feedstream.CAVEAT,),
    )


_FEED_UNIT = "sum over the three tasks of the mean binary cross-entropy, in nats"


def _resized(workload: Workload, size: _Size) -> Workload:
    def batches(seed: int) -> Iterator[Batch]:
        parts = workload.batches(seed)
        while True:
            some = zip(*islice(parts, size.joined), strict=True)
            yield tuple(torch.cat(same) for same in some)

    held_out = workload.held_out[: size.held_out]
    return replace(workload, steps=size.steps, batches=batches, held_out=held_out)


def _outputs(held_out: tuple[Batch, ...], model: nn.Module) -> tuple[Tensor, Tensor]:
    logits, labels = zip(*(newsfeed.outputs(model, batch) for batch in held_out), strict=True)
    return torch.cat(logits), torch.cat(labels)


# ---------------------------------------------------------------------- KuaiRand


def _kuairand(size: _KuaiRandSize, device: str, path: Path) -> Task:
    """One epoch in the order of time: rows for the checkpoint, rows for the run, rows held out."""
    feed = newsfeed.load(path)
    samples = (feed.history_items, feed.history_actions, feed.candidate, feed.targets)
    order = torch.randperm(feed.train_rows, generator=generator(0, "reproduce kuairand probe"))
    of_probe, of_training = order[:_PROBE_ROWS], order[_PROBE_ROWS:].sort().values
    before = int(len(of_training) * _PRETRAINING_SHARE)
    batch = REPLICAS * size.rows_per_replica
    of_run = of_training[before:][: size.run_rows]
    if len(of_run) < batch * 40 or before < batch:
        raise ValueError(
            f"{path}: expected rows for at least 40 steps of {batch} to train on, got {len(of_run)} of "
            f"{len(feed.candidate)} rows: give a longer file"
        )
    probe, pretraining, run, held_out = (
        tuple(part[chosen].to(device) for part in samples)
        for chosen in (of_probe, of_training[:before], of_run, torch.arange(feed.train_rows, len(samples[0])))
    )

    def build(seed: int) -> nn.Module:
        with seeded(seed):
            return newsfeed.FeedModel(size.width, size.heads).to(device)

    workload = Workload(
        name="newsfeed, one epoch",
        steps=len(of_run) // batch,
        build=build,
        loss=newsfeed.loss,
        batches=lambda seed: iter(in_parts(run, batch)),
        probe=lambda seed: shuffled(probe, _PROBE_BATCH, generator(seed, "reproduce kuairand probe")),
        held_out=in_parts(held_out, 512),
    )
    answers = feed.targets[of_training]
    rates = answers.mean(0)
    return Task(
        workload=workload,
        pretraining=lambda seed: iter(in_parts(pretraining, batch)),
        pretraining_steps=before // batch,
        blind_loss=float(F.binary_cross_entropy(rates.expand_as(answers), answers)) * len(newsfeed.TASKS),
        loss_unit=_FEED_UNIT,
        outputs=partial(_outputs, workload.held_out),
        caveats=(
            newsfeed.CAVEAT,
            "One epoch in the order of time: seeds differ in weights and noise, not in the data.",
        ),
    )


# ---------------------------------------------------------------------- the language model


def _language(task: str, scale: str, device: str) -> Task:
    size = at_scale(_CHARLM, scale)
    make = charlm.make if task == "charlm" else charlm.make_from_help
    workload = _resized(make(size.scale, device), size)
    some = islice(workload.batches(0), _UNIGRAM_BATCHES)
    text = torch.cat([windows[:, 1:].flatten() for (windows,) in some])
    characters = workload.build(0).get_parameter("character.weight").shape[0]
    # One of each besides what was seen: the loss of a character stays finite.
    counts = 1.0 + text.bincount(minlength=characters)
    surprise = -(counts / counts.sum()).log()
    return Task(
        workload=workload,
        pretraining=lambda seed: workload.batches(seed + _OTHER_SEEDS),
        pretraining_steps=size.steps,
        blind_loss=float(surprise[text].mean()),
        loss_unit="cross-entropy of the next character, in nats",
        caveats=(
            *([workload.caveat] if workload.caveat else []),
            "The text is read several times over, by the warm starts' checkpoint as well.",
        ),
    )
