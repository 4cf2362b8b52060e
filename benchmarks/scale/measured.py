"""What the machine at hand says of the cost model: collectives over gloo on loopback, a real converge
and buckets. Every function here runs on one of the ranks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hdet.replicas import ProcessReplicas
from hdet.replicas.averaging import BucketedMean

__all__ = ["buckets", "collective", "real_converge"]

_CPU = torch.device("cpu")


def collective(rank: int, sizes: Sequence[int], repetitions: int) -> dict[str, float]:
    """Median seconds of one all-reduce of so many bytes, and of a copy of the largest."""
    del rank
    replicas = ProcessReplicas(None, _CPU)
    totals = {f"{size}": torch.ones(size // 4) for size in sizes}
    largest = totals[f"{max(sizes)}"]
    room = torch.empty_like(largest)
    ways = {key: _summed(replicas, total) for key, total in totals.items()}
    return _medians(replicas, {**ways, "copy": lambda: room.copy_(largest)}, repetitions)


def _summed(replicas: ProcessReplicas, total: Tensor) -> Callable[[], object]:
    return lambda: replicas.all_reduce(total)()


def transformer(width: int, layers: int, dtype: torch.dtype = torch.float32) -> nn.Module:
    """The model whose converge is predicted: norms, biases and matrices of very different sizes."""
    layer = nn.TransformerEncoderLayer(width, max(1, width // 64), 4 * width, batch_first=True, dtype=dtype)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


def real_converge(rank: int, width: int, layers: int, repetitions: int) -> dict[str, Any]:
    """A model's mean by :meth:`Replicas.plan_mean`, as a sync does it, and into what it is cut."""
    del rank
    replicas = ProcessReplicas(None, _CPU)
    weights = [p.detach() for p in transformer(width, layers).parameters()]
    mean = replicas.plan_mean(weights)
    cut = BucketedMean(weights, size=replicas.size, all_reduce=replicas.all_reduce)
    seconds = _medians(replicas, {"converge": mean}, repetitions)["converge"]
    packed = cut.extra_bytes and sum(cut.collective_bytes) - _in_place(weights, cut)
    return {
        "ranks": replicas.size,
        "weights": sum(w.numel() for w in weights),
        "tensors": len(weights),
        "collectives": len(cut.collective_bytes),
        "bytes": sum(cut.collective_bytes),
        "packed_bytes": packed,
        "seconds": seconds,
    }


def _in_place(weights: Sequence[Tensor], cut: BucketedMean) -> int:
    sizes = sorted(w.numel() * 4 for w in weights)
    return sum(size for size in sizes if size >= 3 << 20 and size in cut.collective_bytes)


def buckets(rank: int, values: int, megabytes: Sequence[int], repetitions: int) -> dict[str, float]:
    """Median seconds of the mean of bf16 weights, by the memory that buckets share."""
    del rank
    replicas = ProcessReplicas(None, _CPU)
    weights = [torch.ones(values, dtype=torch.bfloat16)]
    ways: dict[str, Callable[[], object]] = {}
    for size in megabytes:
        ways[f"{size}"] = BucketedMean(
            weights, size=replicas.size, all_reduce=replicas.all_reduce, memory_bytes=size << 20
        )
    return _medians(replicas, ways, repetitions)


def _medians(
    replicas: ProcessReplicas, ways: Mapping[str, Callable[[], object]], repetitions: int
) -> dict[str, float]:
    """Every way in turn, every other round backwards, each from a barrier; the slowest rank counts."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for repetition in range(repetitions + 1):
        for way in list(ways) if repetition % 2 else list(ways)[::-1]:
            replicas.gather([0.0])
            began = time.perf_counter()
            ways[way]()
            took = max(row[0] for row in replicas.gather([time.perf_counter() - began]))
            if repetition:  # the first round warms up
                seconds[way].append(took)
    return {way: statistics.median(times) for way, times in seconds.items()}
