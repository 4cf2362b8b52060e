"""Statistics of batch norm that belong to the present weights, from batches of inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # no public name covers all of its kinds

from hdet.replicas import give_up_gathered

__all__ = ["refresh_norms_", "trained_norms"]


def trained_norms(model: nn.Module) -> list[_BatchNorm]:
    """Every batch norm whose running statistics training moves."""
    return [
        module
        for module in model.modules()
        if isinstance(module, _BatchNorm) and module.training and module.track_running_stats
    ]


@torch.no_grad()
def refresh_norms_(
    model: nn.Module,
    run: Callable[[Any], object],
    batches: Iterable[Any],
    norms: Sequence[nn.Module] | None = None,
) -> None:
    """Let ``norms``, or every batch norm that is training, take its statistics from these batches alone.

    Dropout is off meanwhile; every module has its own training flag again afterwards. What is frozen (in
    eval mode) stays as it is.
    """
    chosen = trained_norms(model) if norms is None else [n for n in norms if isinstance(n, _BatchNorm)]
    if not chosen:
        return
    flags = [(module, module.training) for module in model.modules()]
    momenta = [norm.momentum for norm in chosen]
    give_up_gathered(model)
    try:
        for module, _ in flags:
            module.training = False
        for norm in chosen:
            norm.training = True
            norm.reset_running_stats()
            norm.momentum = None  # a plain mean over the batches
        for batch in batches:
            run(batch)
    finally:
        give_up_gathered(model)
        for norm, momentum in zip(chosen, momenta, strict=True):
            norm.momentum = momentum
        for module, training in flags:
            module.training = training
