"""What a converge costs, against the limit and against what a user would pick instead.

Four ways to replace weights by their mean over gloo ranks on one machine: ours; one flat ``all_reduce`` of
the same bytes, which no way of averaging can beat by much; PyTorch's ``average_parameters``; and one
``all_reduce`` per tensor. All in the same processes, in both orders, by medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks import machine
from hdet.replicas import ProcessReplicas
from hdet.replicas.averaging import BucketedMean
from hdet.replicas.launch import LocalProcesses

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["run", "table"]

GOAL = 1.3
#: Megabytes beside the weights, whatever their number.
MEMORY = 48
#: (megabytes, tensors, repetitions): a model of blocks of twelve tensors, as transformers have them.
CASES = ((32, 168, 21), (256, 300, 7), (32, 2000, 9))
LIMIT, OURS, TORCH, EACH = "flat all_reduce", "hdet", "average_parameters", "all_reduce per tensor"


def run(
    quick: bool = False, device: str = "cpu", on_progress: Callable[[str], None] | None = None
) -> dict[str, Any]:
    """Measure every case on 2 and 4 ranks; a JSON-ready result."""
    rows = []
    with LocalProcesses(2 if quick else 4) as ranks:
        for size in (2,) if quick else (2, 4):
            for megabytes, count, repetitions in CASES:
                if on_progress is not None:
                    on_progress(f"gloo ×{size}, {megabytes} MB in {count} tensors")
                job = (megabytes // 8, count // 4, 5) if quick else (megabytes, count, repetitions)
                rows.append(ranks.run(_measure, *job, device, size=size, timeout=400)[0])
    ratios = [row["ratio_to_limit"] for row in rows]
    worst = max(ratio[OURS] for ratio in ratios)
    extra = max(row["extra_megabytes"] for row in rows)
    goals = {
        "hdet over the limit": {"at_most": GOAL, "measured": worst, "met": worst <= GOAL},
        "ahead of both others": {
            "met": all(ratio[OURS] < min(ratio[TORCH], ratio[EACH]) for ratio in ratios)
        },
        "extra megabytes": {"at_most": MEMORY, "measured": extra, "met": extra <= MEMORY},
    }
    about = machine.about("converge", quick=quick, device=device)
    result: dict[str, Any] = machine.rounded({**about, "goals": goals, "rows": rows})
    return result


def table(result: dict[str, Any]) -> Table:
    """Milliseconds (medians) and ratios to the limit."""
    from rich.table import Table

    view = Table(title="converge: milliseconds, and ratio to one flat all_reduce")
    for column in ("ranks", "weights", LIMIT, OURS, TORCH, EACH, "extra memory"):
        view.add_column(column, justify="right")
    for row in result["rows"]:
        ms, ratio = row["milliseconds"], row["ratio_to_limit"]
        view.add_row(
            f"gloo ×{row['ranks']}",
            f"{row['megabytes']} MB in {row['tensors']}",
            f"{ms[LIMIT]:.1f}",
            *(f"{ms[way]:.1f} ({ratio[way]:.2f}×)" for way in (OURS, TORCH, EACH)),
            f"{row['extra_megabytes']:.0f} MB",
        )
    return view


def _measure(rank: int, megabytes: int, count: int, repetitions: int, device: str) -> dict[str, Any]:
    tensors = _model(megabytes << 20, count, torch.device(device))
    numel = sum(t.numel() for t in tensors)
    flat = torch.randn(numel, device=device)
    replicas = ProcessReplicas(None, torch.device(device))
    mean = BucketedMean(tensors, size=replicas.size, all_reduce=replicas.all_reduce)
    ways: dict[str, Callable[[], object]] = {
        LIMIT: lambda: dist.all_reduce(flat),
        OURS: mean,
        TORCH: lambda: _average_parameters(tensors),
        EACH: lambda: _one_by_one(tensors, replicas.size),
    }
    seconds = _interleaved(ways, repetitions, device)
    medians = {way: statistics.median(times) for way, times in seconds.items()}
    return {
        "ranks": replicas.size,
        "megabytes": round(numel * 4 / 2**20, 1),
        "tensors": len(tensors),
        "repetitions": repetitions,
        "milliseconds": {way: 1e3 * t for way, t in medians.items()},
        "quartiles": {
            way: [1e3 * q for q in machine.summary(way, times)[f"{way}_iqr"]]
            for way, times in seconds.items()
        },
        "ratio_to_limit": {way: t / medians[LIMIT] for way, t in medians.items()},
        "extra_megabytes": mean.extra_bytes / 2**20,
    }


def _interleaved(
    ways: dict[str, Callable[[], object]], repetitions: int, device: str
) -> dict[str, list[float]]:
    """Every way in turn, every other round backwards, each from a barrier."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for repetition in range(repetitions + 1):
        order = list(ways) if repetition % 2 else list(reversed(ways))
        for way in order:
            if way == EACH and repetition > 3:
                continue  # it takes up to fifteen seconds, and three times place it
            _settle(device)
            began = time.perf_counter()
            ways[way]()
            _wait(device)
            if repetition:  # the first round warms up
                seconds[way].append(time.perf_counter() - began)
    return seconds


def _model(total_bytes: int, count: int, device: torch.device) -> list[Tensor]:
    """Blocks of twelve tensors (two norms, four matrices with biases) of the width that fills the bytes."""
    blocks = count / 12
    width = max(4, int((total_bytes / 4 / blocks / 12) ** 0.5))
    shapes = [(3 * width, width), (width, width), (4 * width, width), (width, 4 * width)]
    shapes += [(3 * width,), (width,), (4 * width,), (width,), *[(width,)] * 4]  # type: ignore[list-item]
    return [torch.randn(shapes[i % 12], device=device) for i in range(count)]


def _average_parameters(tensors: list[Tensor]) -> None:
    from torch.distributed.algorithms.model_averaging.utils import average_parameters

    average_parameters(iter(tensors), dist.group.WORLD)  # type: ignore[arg-type]


def _one_by_one(tensors: list[Tensor], size: int) -> None:
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor.div_(size)


def _settle(device: str) -> None:
    _wait(device)
    dist.barrier()


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
