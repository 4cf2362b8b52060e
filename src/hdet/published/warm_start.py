"""Warm noisy start (Eq. 10): every replica begins in a neighbourhood of its own around one checkpoint."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from hdet.replicas import (
    ProcessGroup,
    Replicas,
    StackedReplicas,
    drop_gathered,
    find_replicas,
    local,
)
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
        seed: the noise is a function of (seed, replica) and, of a sharded model, of the shard.
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
            _perturb([(tensor, "", 1.0) for tensor in model.slices(rank)], noise, scope, seed, rank)
        return
    module = model if isinstance(model, nn.Module) else None
    every = model.parameters() if isinstance(model, nn.Module) else model
    parameters = [p for p in every if p.requires_grad]
    replicas = find_replicas("warm_start_", parameters, model=module, process_group=process_group)
    weights = [(local(p).detach(), _shard(p, replicas), replicas.share_of(p)) for p in parameters]
    _perturb(weights, noise, scope, seed, replicas.rank, replicas)
    drop_gathered(module)


def _shard(parameter: Tensor, replicas: Replicas) -> str:
    """Which noise a parameter has beside its replica's: every shard its own, copies the same."""
    index, count = replicas.shard_of(parameter)
    return f"\0{index} of {count}" if count > 1 else ""


def _perturb(
    weights: Sequence[tuple[Tensor, str, float]],
    noise: float,
    scope: str,
    seed: int,
    rank: int,
    replicas: Replicas | None = None,
) -> None:
    distinct = {id(tensor) for tensor in distinct_tensors([tensor for tensor, _, _ in weights])}
    tensors = [torch.view_as_real(tensor) if tensor.is_complex() else tensor for tensor, _, _ in weights]
    # A tensor that shares another one's memory, or is empty on this rank, has its place in the rows all the
    # same: those of all parts are of one length.
    own = [id(tensor) in distinct for tensor, _, _ in weights]
    counts = [share * t.numel() * mine for t, mine, (_, _, share) in zip(tensors, own, weights, strict=True)]
    means = [
        float(t.to(torch.float64).square().mean()) if n else 0.0 for t, n in zip(tensors, counts, strict=True)
    ]
    if replicas is not None and replicas.ranks_per_replica > 1:
        roots = [math.sqrt(m * n) for m, n in zip(means, counts, strict=True)]
        norms = replicas.replica_norms(roots)
        counts = [root**2 for root in replicas.replica_norms([math.sqrt(n) for n in counts])]
        means = [norm**2 / n if n else 0.0 for norm, n in zip(norms, counts, strict=True)]
    if scope == "global":
        overall = sum(m * n for m, n in zip(means, counts, strict=True)) / (sum(counts) or 1)
        means = [overall] * len(means)
    generators: dict[tuple[torch.device, str], torch.Generator] = {}
    for k, tensor in enumerate(tensors):
        if not own[k]:
            continue
        shard = tensor.device, weights[k][1]
        if shard not in generators:
            key = hashlib.sha256(f"warm start\0{seed}\0{rank}{shard[1]}".encode()).digest()
            generators[shard] = torch.Generator(tensor.device).manual_seed(int.from_bytes(key[:7], "big"))
        epsilon = torch.randn(
            tensor.shape, generator=generators[shard], device=tensor.device, dtype=torch.float32
        )
        tensor.add_(epsilon.mul_(noise * math.sqrt(means[k])).to(tensor.dtype))
