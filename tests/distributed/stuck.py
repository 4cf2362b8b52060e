"""One rank of a run in which one of them goes astray, as a process: ``python -m … RANK SIZE PORT FAULT``.

Whoever waits in vain raises; what is tested is that it then exits.
"""

from __future__ import annotations

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn

import hdet

STEPS, SYNC_EVERY = 12, 4


def main(rank: int, size: int, port: int, fault: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    torch.manual_seed(0)
    model: nn.Module = nn.Linear(7, 7)
    shared = fault == "forgets a step"
    if shared:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ensemble = hdet.Ensemble(
        optimizer,
        [hdet.LearningRate(spread=0.1)],
        sync_every=SYNC_EVERY,
        gradients="all" if shared else "none",
        model=model,
    )
    for step in range(1, STEPS + 1):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 7)).square().mean()
        loss.backward()
        optimizer.step()
        if fault == f"rank {rank} stops" and step == SYNC_EVERY:
            os.kill(os.getpid(), signal.SIGSTOP)
        if fault == "forgets a step" and rank == 1 and step == 6:
            continue
        ensemble.step(loss.detach())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
