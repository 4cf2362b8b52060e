"""What a task of the zoo is: a name, a family, a number of steps, and how to build it from a seed.

The weights it starts from and the order of its batches follow from the seed; which rows are for training, for
the probe and for the test does not. All data lie on the device, and batches are drawn by index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

import torch
from torch import Tensor, nn

from benchmarks.workloads.base import Batch, generator, in_parts, seeded, shuffled

__all__ = ["Augment", "Batch", "Loss", "Parts", "Setting", "Task", "on_device", "setting", "task"]

Loss = Callable[[nn.Module, Batch], Tensor]
#: From a batch and a generator on its device to what the model is given: noise, views, crops.
Augment = Callable[[Batch, torch.Generator], Batch]

#: Every task runs with these.
_USUAL = ("adamw", "sgd")
_PROBE_BATCHES, _MOST_PROBE_BATCHES = 8, 16
_TEST_ROWS = 1024


@dataclass(frozen=True)
class Parts:
    """The rows of a task, which no two parts share: tensors whose first dimension counts the same rows."""

    train: Batch
    probe: Batch
    test: Batch


@dataclass(frozen=True)
class Setting:
    """A task ready to be trained, on one device."""

    model: nn.Module
    #: The next training batch.
    batches: Callable[[], Batch]
    #: The mean loss of a batch at the model's present weights.
    loss_fn: Callable[[Batch], Tensor]
    #: What a probe measures.
    held_out: list[Batch]
    #: What the result is measured on.
    test: list[Batch]
    #: How many rows there are to train on.
    rows: int
    #: Whether the loss of many rows is the mean of theirs, so that a batch may have any number of them.
    additive: bool


@dataclass(frozen=True)
class Task:
    """One task: ``build(seed, device)`` makes it ready."""

    name: str
    family: str
    steps: int
    build: Callable[[int, str], Setting]
    optimizers: tuple[str, ...] = _USUAL
    #: Differences of losses are measured in no smaller unit than this: for losses that go to zero or below.
    floor: float = 0.0


def task(
    name: str,
    family: str,
    steps: int,
    *,
    data: Callable[[], Parts],
    model: Callable[[], nn.Module],
    loss: Loss,
    batch: int | None,
    also: tuple[str, ...] = (),
    rows: int | None = None,
    augment: Augment | None = None,
    floor: float = 0.0,
) -> Task:
    """A task from its data, its model and its loss.

    Args:
        batch: rows of a training batch, None for all of them.
        also: optimizers beside AdamW and SGD.
        rows: the size of probe and test batches, where the loss depends on it.
        augment: makes a batch from rows: anew for every training batch, once for the others.
        floor: see :class:`Task`.
    """

    def build(seed: int, device: str) -> Setting:
        with seeded(seed):
            made = model().to(device)
        return setting(made, loss, on_device(data, device), batch, seed, rows=rows, augment=augment)

    return Task(name, family, steps, build, (*_USUAL, *also), floor)


def setting(
    model: nn.Module,
    loss: Loss,
    parts: Parts,
    batch: int | None,
    seed: int,
    *,
    rows: int | None = None,
    augment: Augment | None = None,
) -> Setting:
    """What :func:`task` builds, around a model that lies on the device already."""
    stream = shuffled(parts.train, batch or len(parts.train[0]), generator(seed, "zoo batches"))
    held_out = _evenly(parts.probe) if rows is None else _whole(parts.probe, rows)[:_MOST_PROBE_BATCHES]
    test = list(in_parts(parts.test, _TEST_ROWS)) if rows is None else _whole(parts.test, rows)
    if augment is not None:
        device = parts.train[0].device
        stream = _augmented(stream, augment, generator(seed, "zoo augmentation", device))
        fixed = generator(0, "zoo held out", device)
        held_out = [augment(one, fixed) for one in held_out]
        test = [augment(one, fixed) for one in test]
    of_batch = partial(loss, model)
    return Setting(model, stream.__next__, of_batch, held_out, test, len(parts.train[0]), rows is None)


@cache
def on_device(data: Callable[[], Parts], device: str) -> Parts:
    """The rows, loaded once in every process."""
    parts = data()
    return Parts(*(tuple(part.to(device) for part in one) for one in (parts.train, parts.probe, parts.test)))


def _augmented(batches: Iterator[Batch], augment: Augment, draw: torch.Generator) -> Iterator[Batch]:
    for batch in batches:
        yield augment(batch, draw)


def _evenly(rows: Batch) -> list[Batch]:
    return list(zip(*(part.tensor_split(_PROBE_BATCHES) for part in rows), strict=True))


def _whole(samples: Batch, rows: int) -> list[Batch]:
    return [one for one in in_parts(samples, rows) if len(one[0]) == rows]
