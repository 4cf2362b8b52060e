"""What each rank of a run over two machines does: a tiny OneCycleAutoLR run, then a tiny AutoLR run.

Started by torchrun: ``machines.py FOLDER``; every rank leaves what it came to in the folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import hdet

STEPS, SYNC_EVERY = 40, 10


def network() -> DistributedDataParallel:
    torch.manual_seed(0)
    layers = torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
    return DistributedDataParallel(torch.nn.Sequential(*layers))


def train(kind: str, folder: Path) -> dict[str, object]:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    generator = torch.Generator().manual_seed(dist.get_rank())
    history = folder / f"{kind}.jsonl"

    def draw() -> torch.Tensor:
        return torch.randn(16, 6, generator=generator)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(model(x), x[:, :1] * x[:, 1:2])

    if kind == "AutoLR":
        probe = hdet.Probe(loss_of, [draw() for _ in range(4)], model=model)
        scheduler = hdet.AutoLR(optimizer, total_steps=STEPS, probe=probe, history=history)
    else:
        scheduler = hdet.OneCycleAutoLR(
            optimizer,
            max_lr=1e-2,
            total_steps=STEPS,
            ensemble_lr_spread_ratio=1 / 9,
            model_sync_interval=SYNC_EVERY,
            enable_auto_lr=True,
            auto_lr_warmup_steps=SYNC_EVERY,
            loss_scale="auto",
            model=model,
            history=history,
        )
    records = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of(draw())
        loss.backward()
        optimizer.step()
        if (record := scheduler.step(loss)) is not None:
            records.append(record.step)
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    return {
        "weights": hashlib.sha256(weights).hexdigest(),
        "lr": scheduler.get_last_lr(),
        "syncs": records,
    }


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    out = Path(sys.argv[1])
    found = {kind: train(kind, out) for kind in ("OneCycleAutoLR", "AutoLR")}
    found["machine"] = os.environ["GROUP_RANK"]
    (out / f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()  # gloo's threads let go of the last tensors while Python still runs
    dist.destroy_process_group()
