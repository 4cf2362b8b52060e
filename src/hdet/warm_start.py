"""Warm noisy start (Eq. 10): every replica begins in a neighbourhood of its own around one checkpoint."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from hdet.replicas import ProcessGroup, StackedReplicas, find_replicas, local
from hdet.replicas.averaging import distinct_tensors

__all__ = ["warm_start_"]


@torch.no_grad()
def warm_start_(
    model: nn.Module | Iterable[Tensor] | StackedReplicas,
    noise: float = 0.01,
    *,
    scope: Literal["global", "tensor"] = "global",
    seed: int = 0,
    process_group: ProcessGroup | None = None,
) -> None:
    """Add ε_r ~ N(0, ν²‖θ‖²/d) to the trained parameters, in place, another ε_r on every replica.

    Call it once, after the checkpoint is loaded and *after* DistributedDataParallel has wrapped the model:
    its constructor broadcasts rank 0's weights and would undo what was done before. Integer and frozen
    tensors stay as they are; tied parameters are perturbed once. The global random state is not touched.

    Args:
        model: a module, or its parameters, or replicas in this process.
        noise: ν ≥ 0.
        scope: ``"global"``, the paper: ‖θ‖ and d are those of all parameters together. ``"tensor"``, the
            authors' README: each tensor is perturbed in proportion to its own norm.
        seed: the noise is a function of (seed, rank).
        process_group: the replicas; the default group if None.

    >>> linear = nn.Linear(1000, 100, bias=False)
    >>> before = linear.weight.detach().clone()
    >>> warm_start_(linear, noise=0.01)
    >>> ratio = (linear.weight - before).norm().item() / before.norm().item()
    >>> round(ratio, 3)
    0.01
    """
    if not (math.isfinite(noise) and noise >= 0):
        raise ValueError(f"warm_start_: noise (ν) must be finite and at least 0, got {noise!r}")
    if scope not in ("global", "tensor"):
        raise ValueError(f"warm_start_: scope must be 'global' or 'tensor', got {scope!r}")
    if isinstance(model, StackedReplicas):
        if process_group is not None:
            raise ValueError(
                "warm_start_: process_group was given, but all replicas are in one process; leave it out"
            )
        for rank in range(model.size):
            _perturb(distinct_tensors(model.slices(rank)), noise, scope, seed, rank)
        return
    parameters = model.parameters() if isinstance(model, nn.Module) else model
    tensors = distinct_tensors(local(p).detach() for p in parameters if p.requires_grad)
    if tensors:
        replicas = find_replicas("warm_start_", device=tensors[0].device, process_group=process_group)
        _perturb(tensors, noise, scope, seed, replicas.rank)


def _perturb(tensors: Sequence[Tensor], noise: float, scope: str, seed: int, rank: int) -> None:
    tensors = [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor in tensors]
    mean_squares = [float(t.to(torch.float64).square().mean()) for t in tensors]
    if scope == "global":
        count = sum(t.numel() for t in tensors)
        overall = sum(m * t.numel() for m, t in zip(mean_squares, tensors, strict=True)) / count
        mean_squares = [overall] * len(tensors)
    generators: dict[torch.device, torch.Generator] = {}
    for tensor, mean_square in zip(tensors, mean_squares, strict=True):
        generator = generators.get(tensor.device)
        if generator is None:
            key = hashlib.sha256(f"warm start\0{seed}\0{rank}".encode()).digest()
            generator = torch.Generator(tensor.device).manual_seed(int.from_bytes(key[:7], "big"))
            generators[tensor.device] = generator
        epsilon = torch.randn(tensor.shape, generator=generator, device=tensor.device, dtype=torch.float32)
        tensor.add_(epsilon.mul_(noise * math.sqrt(mean_square)).to(tensor.dtype))
