"""A long run of a tiny model: memory, the size of a state and the time of a step stay what they are."""

from __future__ import annotations

import gc
import io
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hdet

#: The run is looked at so many times; the first looks are at a run that is still warming up.
LOOKS, WARM = 20, 4
DOORS = ("AutoLR", "OneCycleAutoLR")
#: How much the last looks may lie over the first: bytes are counted, times are of the
#: processor, which others share.
MEMORY_MB, STATE, STEP = 16.0, 1.1, 1.5


def soak(steps: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """A line for each door."""
    for door in DOORS:
        line = {"seed": seed, "door": door, "steps": steps, **long_run(door, steps, seed)}
        yield {**line, "broken": broken(line)}


def broken(line: dict[str, Any]) -> str:
    """What grows; empty if nothing does."""
    first, last = line["looks"][WARM], line["looks"][-1]
    late = sorted(look["step_us"] for look in line["looks"][-5:])[2]
    early = sorted(look["step_us"] for look in line["looks"][WARM : WARM + 5])[2]
    found = {
        "memory grows": last["rss_mb"] - first["rss_mb"] > MEMORY_MB,
        "the state grows": last["state_bytes"] > STATE * first["state_bytes"],
        "steps take longer": late > STEP * early,
    }
    return "; ".join(words for words, is_so in found.items() if is_so)


def long_run(door: str, steps: int, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    data = torch.randn(64, 8, 4)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return (model(x) - x.sum(1, keepdim=True) - 0.1 * x[:, :1].sin()).square().mean()

    search: Any
    if door == "AutoLR":
        search = hdet.AutoLR(
            optimizer,
            total_steps=steps,
            probe=hdet.Probe(loss_of, list(data[:4]), model=model),
            patience=None,
        )
    else:
        search = hdet.OneCycleAutoLR(
            optimizer, max_lr=0.02, total_steps=steps, enable_auto_lr=True, auto_lr_warmup_steps=steps // 10
        )
    looks = []
    every = steps // LOOKS
    began = time.process_time()
    for step in range(1, every * LOOKS + 1):
        loss = loss_of(data[4 + step % 60])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        search.step(loss.detach())
        if step % every == 0:
            took = time.process_time() - began
            looks.append({"step": step, "step_us": 1e6 * took / every, **_size(search)})
            began = time.process_time()
    return {"looks": looks}


def _size(search: Any) -> dict[str, float]:
    gc.collect()
    buffer = io.BytesIO()
    torch.save(search.state_dict(), buffer)
    return {"rss_mb": _resident_mb(), "state_bytes": len(buffer.getvalue())}


def _resident_mb() -> float:
    """What this process holds now (Linux); elsewhere the most it ever held."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return pages * 4096 / 1e6
