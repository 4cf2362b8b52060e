"""What the paper's claims are measured on: a real feed, a synthetic one, text, and handwritten digits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from benchmarks.paper.fleet import Course, Run, train
from benchmarks.reproduce.runs import PRETRAINING_LR
from benchmarks.reproduce.tasks import Task, make
from benchmarks.workloads import digits, newsfeed
from benchmarks.workloads.base import Batch, Workload, data_file, generator, shuffled

__all__ = ["COURSES", "course"]

#: Of the digits: what one step reads, which sixteen replicas can share.
_DIGITS_BATCH = 64
#: Whole batches in one pass over the 150.
_FEW_BATCHES = 4


def _of_feed(task: Task, name: str) -> Course:
    return replace(_of_task(task, name), outputs=newsfeed.outputs)


def _of_workload(workload: Workload, name: str, blind: float) -> Course:
    return Course(
        name=name,
        steps=workload.steps,
        build=workload.build,
        loss=workload.loss,
        batches=workload.batches,
        probe=workload.probe,
        held_out=workload.held_out,
        blind=blind,
    )


def _of_task(task: Task, name: str) -> Course:
    found = replace(_of_workload(task.workload, name, task.blind_loss), groups=newsfeed.parameter_groups)

    @cache
    def checkpoints(seeds: tuple[int, ...]) -> Mapping[int, Mapping[str, Tensor]]:
        """Plain runs on samples of their own, as in ``reproduce``."""
        before = replace(found, batches=task.pretraining, steps=task.pretraining_steps)
        weights = train(before, [Run(PRETRAINING_LR, seed, replicas=1) for seed in seeds]).weights
        return {seed: {name: rows[k] for name, rows in weights.items()} for k, seed in enumerate(seeds)}

    return replace(found, checkpoints=checkpoints)


def _of_digits(workload: Workload, name: str, optimizer: Literal["adam", "sgd"]) -> Course:
    return replace(_of_workload(workload, name, math.log(10)), optimizer=optimizer)


def _few_digits(device: str) -> Workload:
    """128 images, a fifth of them mislabelled, in batches that sixteen replicas can share: those of
    ``digits.make_noisy``'s 150 that fill its batches in one pass."""
    workload = digits.make_noisy(device)
    stream = workload.batches(0)
    images, labels = zip(*(next(stream) for _ in range(_FEW_BATCHES)), strict=True)
    every = torch.cat(images), torch.cat(labels)

    def batches(seed: int) -> Iterator[Batch]:
        return shuffled(every, _DIGITS_BATCH, generator(seed, "paper digits"))

    return replace(workload, batches=batches)


COURSES = ("kuairand", "feed", "charlm", "digits", "few digits")


@cache
def course(name: str, device: str, optimizer: Literal["adam", "sgd"] = "adam", scale: str = "gpu") -> Course:
    """The course by its name; ``optimizer`` is the digits'."""
    if name == "kuairand":
        return _of_feed(make("kuairand", scale, device, data_file("kuairand_feed.tsv")), name)
    if name == "feed":
        return _of_feed(make("feed", scale, device), name)
    if name == "charlm":
        return _of_task(make("charlm", scale, device), name)
    if name == "digits":
        return _of_digits(digits.make_mlp("cpu", device), name, optimizer)
    if name == "few digits":
        return _of_digits(_few_digits(device), name, optimizer)
    raise ValueError(f"course must be one of {', '.join(map(repr, COURSES))}, got {name!r}")
