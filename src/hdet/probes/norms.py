"""Batch norm's running statistics, recomputed for the current weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm  # no public name covers all of its kinds

from hdet.replicas import drop_gathered

__all__ = ["refresh_norms_", "trained_norms"]


def trained_norms(model: nn.Module) -> list[_BatchNorm]:
    """Every batch norm whose running statistics training updates."""
    return [
        module
        for module in model.modules()
        if isinstance(module, _BatchNorm) and module.training and module.track_running_stats
    ]


@torch.no_grad()
def refresh_norms_(
    model: nn.Module, run: Callable[[Any], object], batches: Iterable[Any], norms: Sequence[_BatchNorm]
) -> None:
    """Recompute the statistics of ``norms`` from these batches alone, with dropout off. All other modules
    and all training flags stay as they are."""
    if not norms:
        return
    flags = [(module, module.training) for module in model.modules()]
    momenta = [norm.momentum for norm in norms]
    drop_gathered(model)
    try:
        for module, _ in flags:
            module.training = False
        for norm in norms:
            norm.training = True
            norm.reset_running_stats()
            norm.momentum = None  # a plain mean over the batches
        for batch in batches:
            run(batch)
    finally:
        drop_gathered(model)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, training in flags:
            module.training = training
