"""What torchrun starts: a run that saves itself often, and is hit once in each of its first lives."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import hdet
from hdet.replicas.processes import patience

STEPS, SAVE_EVERY = 160, 5
DOORS = ("Ensemble", "AutoLR")


def main(folder: Path, door: str, hits: list[str]) -> None:
    """``hits`` are signal:rank:step:seconds, one for each life."""
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    life = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    _put(folder / f"pid-{life}-{rank}", str(os.getpid()))
    # A meeting place for each life: gloo on a restarted env:// finds addresses of the dead (torch 2.13).
    meeting = f"file://{folder}/meeting-{life}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    # DDP waits as long as its group does: half an hour, if nobody says otherwise.
    group = dist.new_group(timeout=timedelta(seconds=2 * patience().total_seconds()))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    called = model if door == "Ensemble" else nn.parallel.DistributedDataParallel(model, process_group=group)
    search = _ensemble(model, optimizer) if door == "Ensemble" else _auto_lr(model, optimizer)
    load(folder, rank, model, optimizer, search)
    hit = _Hit(folder, life, rank, hits[life] if life < len(hits) else "")
    while search.steps < STEPS:
        hit.look(search.steps)
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * search.steps + rank))
        optimizer.zero_grad()
        loss = loss_of(called, x)
        loss.backward()
        optimizer.step()
        search.step(loss.detach())
        if search.steps % SAVE_EVERY == 0:
            save(folder, rank, model, optimizer, search)
    hit.look(STEPS)
    dist.barrier(group)  # who is stopped at the very end is missed here


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - x.sum(1, keepdim=True)).square().mean()


def _ensemble(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return hdet.Ensemble(
        optimizer,
        [hdet.LearningRate(spread=0.2)],
        gradients="none",
        sync_every=SAVE_EVERY,  # replicas are saved as one model, and each of them between two
        total_steps=STEPS,
        model=model,
    )


def _auto_lr(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    batches = [torch.randn(16, 4, generator=torch.Generator().manual_seed(-k)) for k in range(1, 5)]
    probe = hdet.Probe(lambda x: loss_of(model, x), batches, model=model)
    return hdet.AutoLR(optimizer, total_steps=STEPS, probe=probe)


class _Hit:
    """A signal to this process, some moments after one of its steps begins: within whatever it does then."""

    def __init__(self, folder: Path, life: int, rank: int, hit: str) -> None:
        name, whom, step, seconds = hit.split(":") if hit else ("", "-1", "0", "0")
        self.mine = rank == int(whom)
        self.name, self.step, self.seconds = name, int(step), float(seconds)
        self.file = folder / f"hit-{life}-{rank}"
        self.timer: threading.Timer | None = None

    def look(self, step: int) -> None:
        if self.mine and self.timer is None and step >= self.step:
            self.timer = threading.Timer(self.seconds, self._strike)
            self.timer.start()
        if self.timer is not None and step >= STEPS:
            self.timer.join()

    def _strike(self) -> None:
        _put(self.file, f"{self.name} {time.time()}")
        os.kill(os.getpid(), getattr(signal, self.name))


def save(folder: Path, rank: int, *parts: Any) -> None:
    """Whole or not at all; older ones are kept, since not all ranks may have come to save the newest."""
    step = parts[-1].steps
    written = folder / f"writing-{rank}"
    torch.save([part.state_dict() for part in parts], written)
    written.rename(folder / f"state-{step}-{rank}")


def load(folder: Path, rank: int, *parts: Any) -> None:
    """The newest step that every rank has saved."""
    size = dist.get_world_size()
    steps = [s for s in range(1, STEPS + 1) if all((folder / f"state-{s}-{r}").exists() for r in range(size))]
    dist.barrier()  # nobody saves while others look
    if steps:
        states = torch.load(folder / f"state-{steps[-1]}-{rank}", weights_only=True)
        for part, state in zip(parts, states, strict=True):
            part.load_state_dict(state)


def _put(file: Path, text: str) -> None:
    """Seen whole by who looks from outside."""
    written = file.with_name(f"writing-{file.name}")
    written.write_text(text)
    written.rename(file)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
