"""What torchrun starts: a run that saves itself at every sync, and is hit at one step of its first lives."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import hdet

STEPS, SYNC_EVERY = 40, 5


def main(folder: Path, hits: list[str]) -> None:
    """``hits`` are signal:rank:step, one for each life."""
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    life = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    (folder / f"life-{life}").touch()
    # A meeting place for each life: gloo on a restarted env:// finds addresses of the dead (torch 2.13).
    meeting = f"file://{folder}/meeting-{life}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    ensemble = hdet.Ensemble(
        optimizer,
        [hdet.LearningRate(spread=0.2)],
        gradients="none",
        sync_every=SYNC_EVERY,
        total_steps=STEPS,
        model=model,
    )
    load(folder, rank, model, optimizer, ensemble)
    name, whom, when = hits[life].split(":") if life < len(hits) else ("", "-1", "-1")
    while ensemble.steps < STEPS:
        step = ensemble.steps
        if (rank, step) == (int(whom), int(when)):
            os.kill(os.getpid(), getattr(signal, name))
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(100 * step + rank))
        optimizer.zero_grad()
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        if ensemble.step(loss.detach()) is not None:
            save(folder, rank, model, optimizer, ensemble)


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


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
