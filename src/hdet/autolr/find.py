"""``find``: a learning rate before the real training. A short run of AutoLR; then everything is restored.

A range test raises the rate step by step until the loss explodes, which for transformers says little about
the rates they can use later. This trains, and judges rates by what they lead to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from hdet.autolr.auto_lr import AutoLR
from hdet.autolr.choice import mean_of, standard_error
from hdet.autolr.schedule import set_lr
from hdet.autolr.search import take_optimizers
from hdet.autolr.snapshot import Snapshot
from hdet.loop.hooks import take_over
from hdet.loop.optimizers import parts_of
from hdet.probes import Probe

__all__ = ["Found", "find"]


@dataclass(frozen=True, slots=True)
class Found:
    """What a short search found.

    Args:
        lr: the learning rate of each parameter group when the search ended.
        lowest, highest: of the first group, in the second half of the search.
        steps: of the whole run, the decay to zero included.
        loss_before, loss_after: on batches that were set aside, before the first step and after the last.
        error: the standard error of their difference, over those batches.
        schedule: the learning rate of every step, as JSON.
    """

    lr: tuple[float, ...]
    lowest: float
    highest: float
    steps: int
    loss_before: float
    loss_after: float
    error: float
    schedule: str

    @property
    def learnt(self) -> bool:
        """Whether the loss fell beyond its error; if not, ignore the rate."""
        return self.loss_before - self.loss_after > 3 * self.error

    def save(self, path: str | PathLike[str]) -> None:
        """Write the schedule, for :func:`hdet.replay`."""
        Path(path).write_text(self.schedule + "\n", encoding="utf-8")


def find(
    model: nn.Module,
    optimizer: Optimizer | Sequence[Optimizer],
    loss_fn: Callable[[Any], Tensor],
    loader: Iterable[Any],
    *,
    steps: int = 400,
    on_step: Callable[[int], None] | None = None,
) -> Found:
    """Search for a learning rate over ``steps`` steps of training, then restore weights, buffers, optimizer
    state and learning rates. (Random generators and the loader have moved on.)

    The rate is right for runs of about this length; for longer ones use :class:`hdet.AutoLR`.

    Args:
        model: what is trained.
        optimizer: one, or a list of those that step together. Only the ratios of its learning rates count.
        loss_fn: from a batch to its mean loss.
        loader: batches; some are set aside for the probe, the others are repeated as often as needed.
        steps: how long; 4 at least.
        on_step: called with the number of steps taken.

    >>> import torch
    >>> model = torch.nn.Linear(8, 1)
    >>> before = model.weight.clone()
    >>> loss_of = lambda x: (model(x) - x.sum(1, keepdim=True)).square().mean()
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    >>> found = find(model, optimizer, loss_of, list(torch.randn(100, 32, 8)), steps=200)
    >>> found.learnt, 1e-3 < found.lr[0] < 1
    (True, True)
    >>> torch.equal(model.weight, before), optimizer.param_groups[0]["lr"]
    (True, 1.0)
    """
    every = take_optimizers("find", optimizer)
    probe, rest = Probe.set_aside(loss_fn, loader, model=model)
    snapshot = Snapshot(every, model, offload=True)
    snapshot.take()
    rates = [float(group["lr"]) for group in every.param_groups]
    try:
        auto = AutoLR(optimizer, probe=probe, total_steps=steps, patience=None)
        return _search(auto, probe, loss_fn, rest, steps, on_step)
    finally:
        take_over(every)  # removes all hooks
        snapshot.restore()
        for group, lr in zip(every.param_groups, rates, strict=True):
            set_lr(group, lr)
        for part in parts_of(every):
            part.zero_grad(set_to_none=True)


def _search(
    auto: AutoLR,
    probe: Probe,
    loss_fn: Callable[[Any], Tensor],
    rest: Iterable[Any],
    steps: int,
    on_step: Callable[[int], None] | None,
) -> Found:
    held_out = [batch for half in probe.halves() for batch in half]
    before = probe.losses(held_out, of="find")
    searched: list[list[float]] = []
    for step, batch in enumerate(islice(_endless(rest), steps), start=1):
        loss_fn(batch).backward()  # type: ignore[no-untyped-call]
        for part in auto.optimizers:
            part.step()
        for part in auto.optimizers:
            part.zero_grad(set_to_none=True)
        if auto.searching:
            searched.append(auto.get_last_lr())
        auto.step()
        if on_step is not None:
            on_step(step)
    after = probe.losses(held_out, of="find")
    gained = [a - b for a, b in zip(before, after, strict=True)]
    late = [rates[0] for rates in searched[len(searched) // 2 :]]
    return Found(
        tuple(searched[-1]),
        min(late),
        max(late),
        steps,
        mean_of(before),
        mean_of(after),
        standard_error(gained),
        auto.found(),
    )


def _endless(batches: Iterable[Any]) -> Iterator[Any]:
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty:
            raise ValueError(
                "find: the loader must hold batches to train on, got none besides those set aside, or an "
                "iterator that cannot restart; give a DataLoader or a list"
            )
