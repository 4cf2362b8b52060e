"""``python -m benchmarks scale``: the cost model held against this machine, then asked about others.

What can be measured here is: collectives over gloo on loopback, from which latency and bandwidth are fitted,
so that other sizes and the converge of a real model can be predicted and measured; the memory of every door;
what the size of buckets changes. All that is said of eight to 4,096 replicas is the
model's, with link figures that are stated and not measured.
"""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks import machine
from benchmarks.pool import Say
from benchmarks.scale import measured, memory
from benchmarks.scale import model as cost
from benchmarks.scale.tables import markdown, table
from hdet.replicas.launch import LocalProcesses

__all__ = ["extrapolated", "markdown", "run", "table"]

#: What a prediction may be off by before the model is not believed.
GOAL = 0.3
_MB = 1 << 20
_FITTED, _PREDICTED = (_MB // 4, 2 * _MB, 16 * _MB), (_MB, 8 * _MB, 32 * _MB)
_RANKS = (2, 4)
_MODELS = {"1B": 1e9, "7B": 7e9, "70B": 70e9, "405B": 405e9}
_REPLICAS = (8, 64, 512, 4096)
#: T of the paper, and of replicas on gradients of their own.
SYNC_EVERY, OWN_SYNC_EVERY = 1000, 50


def run(quick: bool = False, device: str = "cpu", on_progress: Say | None = None) -> dict[str, Any]:
    """Measure what can be, and print what follows; the result is plain JSON. ``quick`` has two ranks."""
    if device != "cpu":
        raise ValueError(f"scale: device must be 'cpu', got {device!r}; its ranks meet over gloo on loopback")
    say = on_progress or (lambda _: None)
    sizes = (2,) if quick else _RANKS
    shrink = 16 if quick else 1
    repetitions = 3 if quick else 9
    with LocalProcesses(max(sizes)) as ranks:
        links = []
        for size in sizes:
            say(f"gloo ×{size}: collectives, a converge, buckets")
            links.append(_links(ranks, size, shrink, repetitions))
        rows = _memory(ranks, say, quick=quick)
    errors = [abs(row["error"]) for link in links for row in (*link["predicted"], link["converge"])]
    off = [abs(row["error"]) for row in rows]
    goals = {
        "seconds": {"at_most": GOAL, "measured": statistics.median(errors), "worst": max(errors)},
        "memory": {"at_most": GOAL, "measured": statistics.median(off), "worst": max(off)},
    }
    about = machine.about("scale", quick=quick, device=device)
    result: dict[str, Any] = {
        **about,
        "measured": {"links": links, "memory": rows},
        "goals": {name: {**goal, "met": goal["measured"] <= goal["at_most"]} for name, goal in goals.items()},
        "extrapolated": extrapolated(),
    }
    rounded: dict[str, Any] = machine.rounded(result)
    return rounded


# ---------------------------------------------------------------------- measured here


def _links(ranks: LocalProcesses, size: int, shrink: int, repetitions: int) -> dict[str, Any]:
    fitted, others = ([n // shrink for n in sizes] for sizes in (_FITTED, _PREDICTED))
    seconds = ranks.run(measured.collective, [*fitted, *others], repetitions, size=size, timeout=300)[0]
    link = cost.fit("loopback", size, [(n, seconds[f"{n}"]) for n in fitted])
    copied = (max(fitted + others)) / seconds["copy"]
    predicted = [_against(n, cost.ring_seconds(n, size, link), seconds[f"{n}"]) for n in others]
    real = ranks.run(
        measured.real_converge, 64 if shrink > 1 else 384, 6, repetitions, size=size, timeout=300
    )[0]
    # What is packed is copied there and back.
    expected = cost.ring_seconds(real["bytes"], size, link, real["collectives"])
    expected += 2 * real["packed_bytes"] / copied
    # Four ranks on few cores copy in turn; buckets smaller and larger than the 48 MB there are.
    megabytes = [12, 48, 192] if shrink == 1 else [12, 48]
    by_memory = ranks.run(
        measured.buckets, 24 * _MB // shrink, megabytes, repetitions, size=size, timeout=300
    )[0]
    return {
        "ranks": size,
        "gigabytes_per_second": link.bytes_per_second / 1e9,
        "microseconds_per_message": 1e6 * link.seconds_per_message,
        "fitted_bytes": fitted,
        "predicted": predicted,
        "converge": {**real, **_against(real["bytes"], expected, real["seconds"])},
        "buckets": {"weights": 24 * _MB // shrink, "milliseconds": _milliseconds(by_memory)},
    }


def _against(size: float, predicted: float, seen: float) -> dict[str, float]:
    return {
        "bytes": size,
        "predicted_ms": 1e3 * predicted,
        "measured_ms": 1e3 * seen,
        "error": predicted / seen - 1,
    }


def _milliseconds(seconds: dict[str, float]) -> dict[str, float]:
    return {name: 1e3 * value for name, value in seconds.items()}


def _memory(ranks: LocalProcesses, say: Say, *, quick: bool) -> list[dict[str, Any]]:
    rows = []
    for door, size in memory.DOORS.items():
        for optimizer in ("adamw",) if quick else ("adamw", "sgd"):
            for dtype in ("float32",) if quick else ("float32", "bfloat16"):
                say(f"memory of {door}, {optimizer}, {dtype}")
                given = (door, optimizer, dtype, 128 if quick else 512)
                seen = ranks.run(memory.counted, *given, size=size, timeout=300)[0]
                weights = seen["weights"]
                expected = memory.predicted(door, optimizer, dtype, int(weights))
                rows.append(
                    {
                        "door": door,
                        "optimizer": optimizer,
                        "dtype": dtype,
                        "predicted_bytes_a_weight": expected / weights,
                        "counted_bytes_a_weight": seen["bytes"] / weights,
                        "error": expected / seen["bytes"] - 1,
                    }
                )
    return rows


# ---------------------------------------------------------------------- said of others


def extrapolated() -> dict[str, Any]:
    """Every model on every link with every number of replicas, by the cost model alone."""
    rows = [
        _row(name, weights, replicas, link)
        for name, weights in _MODELS.items()
        for link in cost.LINKS
        for replicas in _REPLICAS
        if link.name != "NVLink" or replicas * cost.shards(weights) <= 8
    ]
    assumed = {
        "tokens_a_device": cost.TOKENS,
        "operations_per_second": cost.FLOPS,
        "device_bytes": cost.DEVICE_BYTES,
        "sync_every": SYNC_EVERY,
        "own_sync_every": OWN_SYNC_EVERY,
        "links": [
            {
                "name": link.name,
                "gigabytes_per_second": link.bytes_per_second / 1e9,
                "microseconds_per_message": 1e6 * link.seconds_per_message,
                "told": link.told,
            }
            for link in cost.LINKS
        ],
    }
    return {"assumed": assumed, "rows": rows, "memory": [_of_memory(n, w) for n, w in _MODELS.items()]}


def _row(name: str, weights: float, replicas: int, link: cost.Link) -> dict[str, Any]:
    own = weights / cost.shards(weights)
    compute, gradient = cost.step_seconds(weights, replicas, link)
    converge = cost.converge_seconds(own, replicas, link)
    # At best a gradient travels while the next is computed: what does not fit beside it is waited for.
    step = max(compute, gradient)
    return {
        "model": name,
        "link": link.name,
        "replicas": replicas,
        "devices": replicas * cost.shards(weights),
        "step_seconds": step,
        "gradient_seconds": gradient,
        "converge_seconds": converge,
        "converge_share_of_step": converge / (SYNC_EVERY * step),
        # On gradients of their own replicas send none of them, but weights and AdamW's two moments.
        "own_gradients_share_of_step": 3 * converge / (OWN_SYNC_EVERY * compute),
    }


def _of_memory(name: str, weights: float) -> dict[str, Any]:
    """On each of the devices that share a replica, for AdamW in float32 and in bf16."""
    devices = cost.shards(weights)
    own = weights / devices
    rows: dict[str, Any] = {"model": name, "devices_a_replica": devices}
    for dtype, size in (("float32", 4), ("bfloat16", 2)):
        auto = cost.autolr_memory(own, size, 2 * size)
        rows[dtype] = {
            "training_gigabytes": 4 * size * own / 1e9,
            "autolr_device_gigabytes": auto.device / 1e9,
            "autolr_host_gigabytes": auto.host / 1e9,
        }
    return rows
