"""The cost model, pure: seconds and bytes from a model's size, the number of replicas, T and a link.

A ring sends every byte 2·(N−1)/N times, in 2·(N−1) messages for each collective. A step is what the device
computes, and a gradient in bf16 that all replicas share. A model that does not fit on one device is sharded
over as many as it takes, and each shard meets its own copies alone (HSDP).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hdet.replicas.averaging import BUCKETS, bucket_memory

__all__ = [
    "LINKS",
    "AutoLRMemory",
    "Link",
    "autolr_memory",
    "collectives",
    "converge_seconds",
    "fit",
    "ring_seconds",
    "shards",
    "step_seconds",
]

#: AutoLR's sketch of the mean before: so many doubles.
SKETCH_BYTES = 8 * 65_536
FLOAT32 = 4


@dataclass(frozen=True, slots=True)
class Link:
    """What connects replicas; ``told`` says whose figures these are."""

    name: str
    bytes_per_second: float
    seconds_per_message: float
    told: str = ""


#: For each device. Nobody has measured them here.
LINKS = (
    Link("NVLink", 400e9, 3e-6, "fourth generation, inside one machine"),
    Link("InfiniBand", 45e9, 8e-6, "400 Gb/s a device"),
    Link("Ethernet", 1.5e9, 30e-6, "100 Gb/s for a machine of eight devices"),
    Link("between sites", 0.015e9, 20e-3, "1 Gb/s for a machine of eight devices"),
)
#: What is assumed of a device: bf16 operations a second that training reaches, tokens a step, memory to fill.
FLOPS, TOKENS, DEVICE_BYTES = 400e12, 8192, 64e9


def ring_seconds(sent: float, ranks: int, link: Link, count: int = 1) -> float:
    """A sum of so many bytes over the ranks, in ``count`` collectives.

    >>> ring_seconds(1e9, 2, Link("", 1e9, 1e-3), 5)
    1.01
    """
    if ranks == 1:
        return 0.0
    messages = count * 2 * (ranks - 1)
    return 2 * (ranks - 1) / ranks * sent / link.bytes_per_second + messages * link.seconds_per_message


def collectives(weights: float, ranks: int) -> int:
    """Into how many the mean of so many weights is cut; they are taken to be packed, as bf16 weights are."""
    return math.ceil(weights * FLOAT32 / (bucket_memory(ranks) // BUCKETS))


def converge_seconds(weights: float, ranks: int, link: Link) -> float:
    """The mean of the weights that one device holds."""
    return ring_seconds(weights * FLOAT32, ranks, link, count=collectives(weights, ranks))


def shards(weights: float, bytes_a_weight: float = 16.0) -> int:
    """Devices that it takes to train one replica: a power of two. 16 bytes are AdamW in float32.

    >>> shards(1e9), shards(7e9), shards(405e9)
    (1, 2, 128)
    """
    return 1 << max(0, math.ceil(math.log2(weights * bytes_a_weight / DEVICE_BYTES)))


def step_seconds(weights: float, ranks: int, link: Link, *, shared: bool = True) -> tuple[float, float]:
    """What a device computes in a step, and how long the gradient travels, were nothing done meanwhile."""
    own = weights / shards(weights)
    compute = 6 * weights * TOKENS / FLOPS
    return compute, ring_seconds(2 * own, ranks, link) if shared else 0.0


def fit(name: str, ranks: int, measured: Sequence[tuple[float, float]]) -> Link:
    """The link that explains (bytes, seconds) of single collectives best, by relative errors.

    >>> fit("", 2, [(1e6, 0.003), (3e6, 0.005)]).bytes_per_second
    1000000000.0
    """
    rows = [(1 / t, x / t) for x, t in measured]  # a/t + b·x/t = 1
    aa, ab, bb = (sum(r[i] * r[j] for r in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    a1, b1 = sum(r[0] for r in rows), sum(r[1] for r in rows)
    determinant = aa * bb - ab * ab
    a, b = (a1 * bb - b1 * ab) / determinant, (b1 * aa - a1 * ab) / determinant
    if a < 0 or b <= 0:  # noise has turned the line: what is left is the bytes
        a, b = 0.0, b1 / bb
    messages = 2 * (ranks - 1)
    return Link(name, round(messages / ranks / b, 3), a / messages, "fitted here")


@dataclass(frozen=True, slots=True)
class AutoLRMemory:
    """Beyond training itself, in bytes."""

    device: float
    host: float


def autolr_memory(weights: float, weight_bytes: int, state_bytes: int) -> AutoLRMemory:
    """The window's mean in float32 and a sketch; with the host the way back and the incumbent, weights with
    the optimizer's state each, and the best weights."""
    copy = weight_bytes + state_bytes
    return AutoLRMemory(FLOAT32 * weights + SKETCH_BYTES, (2 * copy + weight_bytes) * weights)
