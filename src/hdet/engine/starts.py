"""Whether the replicas of a run begin as one model. If they do not, their mean is no model at all.

A few weights of every replica are compared: where gradients are shared, at the first sync, those with which
the first round began (who loads a checkpoint, or wraps the model, does so before). A warm start's noise is
well within what is allowed; another seed, or another partition of one model on every rank, is not.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.optim import Optimizer

from hdet.replicas import Replicas, local
from hdet.weights.parameters import trained_parameters

__all__ = ["Starts", "distance", "sample"]

_SAMPLED = 64
#: Replicas that begin so far apart, relative to their weights, were not meant to be one model.
_STRANGERS = 0.5


class Starts:
    """The weights that the replicas of a run begin with.

    Args:
        caller: begins the errors.
        optimizer: whose weights they are.
        replicas: who is compared.
        own_gradients: whether replicas train by themselves; then what is odd is told, not refused.
    """

    def __init__(self, caller: str, optimizer: Optimizer, replicas: Replicas, *, own_gradients: bool) -> None:
        self._caller = caller
        self._optimizer = optimizer
        self._replicas = replicas
        self._own_gradients = own_gradients
        # Those that come and go take the others' state when they come.
        self._several = replicas.size > replicas.here and not replicas.elastic
        self.forget()

    def forget(self) -> None:
        """The weights will be others."""
        self._seen: Tensor | None = None
        self._checked = False

    def look(self) -> None:
        """A round begins. No collective, and no wait for the device."""
        if self._several and self._seen is None:
            self._seen = sample(self._optimizer)

    def check(self) -> bool:
        """The first round on a shared gradient ends: whether it began with weights that differ. A collective,
        once; then False.

        Raises RuntimeError on all ranks where they did not begin as one model."""
        if self._checked or not self._several or self._own_gradients:
            return False
        self.look()
        assert self._seen is not None
        apart = distance(self._replicas, self._seen)
        self._checked = True
        if apart > _STRANGERS:
            raise RuntimeError(
                f"{self._caller}.step: replicas that share their gradients must begin with the same weights, "
                f"and began {apart:.2g} of their norm apart: averaged, they are no model at all. Seed all "
                "ranks alike, or load one checkpoint on all (fully_shard broadcasts nothing). If every rank "
                "holds another partition of one model (DeepSpeed, Megatron), there are no replicas: use "
                "DistributedDataParallel or HSDP"
            )
        return apart > 0

    def doubt(self) -> str:
        """What is odd about the weights before training. A collective where gradients are not shared."""
        if not self._own_gradients or not self._several:
            return ""
        apart = distance(self._replicas, sample(self._optimizer))
        if apart <= _STRANGERS:
            return ""
        return (
            f"the replicas begin {apart:.2g} of their weights' norm apart: averaged, they are no "
            "model at all. Let them start alike: Arms.wrap(model) does it, or one seed on all ranks"
        )


def distance(replicas: Replicas, sample: Tensor) -> float:
    """Between the first replica and any other, of the larger norm. A collective."""
    rows, parts = replicas.gather_ranks(sample.tolist()), replicas.parts
    every = [[x for row in rows[at : at + parts] for x in row] for at in range(0, len(rows), parts)]
    size = math.sqrt(max(math.fsum(x * x for x in row) for row in every))
    apart = max(math.dist(row, every[0]) for row in every)
    return apart / size if size else 0.0


@torch.no_grad()
def sample(optimizer: Optimizer) -> Tensor:
    """A few weights of evenly spaced tensors, the same ones on every replica; zeros where there are fewer.
    They stay on the device, so that nobody waits for it."""
    every: list[Tensor] = [local(p).detach() for group in trained_parameters(optimizer) for p in group]
    # Scales and biases begin alike whatever the seed: matrices tell.
    weights = [weight for weight in every if weight.dim() > 1] or every
    chosen = [w.reshape(-1)[:4].float() for w in weights[:: max(1, len(weights) // 16)] if w.numel()]
    place = chosen[0].device if chosen else None
    filling = torch.zeros(_SAMPLED, device=place)
    return torch.cat([*(values.to(place, non_blocking=True) for values in chosen), filling])[:_SAMPLED]
