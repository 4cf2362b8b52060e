"""Long runs of a tiny model: memory, state, threads, open files and the time of a step stay what they are.
A million steps of one process, and half an hour of two that meet, save and write a history."""

from __future__ import annotations

import gc
import io
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import hdet
from hdet.replicas.launch import LocalProcesses

#: The run is looked at so many times; the first looks are at a run that is still warming up.
LOOKS, WARM = 20, 4
DOORS = ("AutoLR", "OneCycleAutoLR")
#: The processes that meet go on for so long where a million steps are asked for; they save so often.
HALF_AN_HOUR, SAVES = 1800.0, 40
#: How much the last looks may lie over the first: bytes are counted, times are of the
#: processor, which others share.
MEMORY_MB, STATE, STEP = 16.0, 1.1, 1.5


def soak(steps: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """A line for each door, and one for the processes that meet."""
    for door in DOORS:
        line = {"seed": seed, "door": door, "steps": steps, **long_run(door, steps, seed)}
        yield {**line, "broken": broken(line)}
    seconds = HALF_AN_HOUR * steps / 1_000_000
    with LocalProcesses(2) as pool:
        line = {"seed": seed, "door": "Ensemble, two processes", **together(pool, seconds, seed)}
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
        "threads are left": last["threads"] > first["threads"],
        "files are left open": last["files"] > first["files"],
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


def together(pool: LocalProcesses, seconds: float, seed: int) -> dict[str, Any]:
    """Two processes for ``seconds``; what grows on either is seen in the looks, which hold the larger."""
    with tempfile.TemporaryDirectory() as folder:
        ranks = pool.run(_meeting, folder, seconds, seed, size=2, timeout=2 * seconds + 120)
    largest = [
        {key: max(look[key] for look in looks) for key in looks[0]}
        for looks in zip(*(rank["looks"] for rank in ranks), strict=True)
    ]
    return {"seconds": seconds, "steps": ranks[0]["steps"], "looks": largest}


def _meeting(rank: int, folder: str, seconds: float, seed: int) -> dict[str, Any]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = torch.randn(64, 8, 4)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return (model(x) - x.sum(1, keepdim=True)).square().mean()

    probe = hdet.Probe(loss_of, list(data[:4]), model=model)
    with hdet.Ensemble(
        optimizer,
        [hdet.WeightDecay()],
        gradients="none",
        sync_every=10,
        model=model,
        probe=probe,
        history=Path(folder) / "run.jsonl",
    ) as ensemble:
        looks = []
        step = done = 0
        began, cpu = time.monotonic(), time.process_time()
        part = torch.tensor(0.0)  # of the time, as rank 0 has it: all leave at one step
        while part < 1:
            for _ in range(10):
                loss = loss_of(data[4 + (2 * step + rank) % 60])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                ensemble.step(loss.detach())
                step += 1
            part.fill_((time.monotonic() - began) / seconds)
            dist.broadcast(part, src=0)
            if int(part * SAVES) > done:
                done = int(part * SAVES)
                hdet.save(Path(folder) / "saved", model=model, optimizer=optimizer, ensemble=ensemble)
            if int(part * LOOKS) > len(looks):
                took, since = time.process_time() - cpu, looks[-1]["step"] if looks else 0
                looks.append({"step": step, "step_us": 1e6 * took / (step - since), **_size(ensemble)})
                cpu = time.process_time()
    return {"steps": step, "looks": looks[:LOOKS]}


def _size(search: Any) -> dict[str, float]:
    gc.collect()
    buffer = io.BytesIO()
    torch.save(search.state_dict(), buffer)
    return {
        "rss_mb": _resident_mb(),
        "state_bytes": len(buffer.getvalue()),
        "threads": threading.active_count(),
        "files": len(list(Path("/proc/self/fd").glob("*"))),
    }


def _resident_mb() -> float:
    """What this process holds now (Linux); elsewhere the most it ever held."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return pages * 4096 / 1e6
