"""AutoLR on many machines, by any launcher that sets RANK and WORLD_SIZE; examples/launch has the commands.
Run: torchrun --nproc-per-node 2 examples/many_machines.py [folder]

The folder, which all machines see, holds the history and the checkpoint that a restarted run goes on from.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import hdet

STEPS = 120
folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/many_machines")
rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])

on_gpu = torch.cuda.device_count() > local_rank
device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
dist.init_process_group("nccl" if on_gpu else "gloo")
torch.manual_seed(0)
teacher = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to(device)
model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to(device)
model = DistributedDataParallel(model, device_ids=[local_rank] if on_gpu else None)
optimizer = torch.optim.AdamW(model.parameters())
generator = torch.Generator().manual_seed(1 + rank)  # data of its own for every rank


def draw() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(32, 20, generator=generator).to(device)
    return x, teacher(x).detach()


def loss_of(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    x, y = batch
    return F.mse_loss(model(x), y)


folder.mkdir(parents=True, exist_ok=True)
checkpoint = folder / "checkpoint.pt"
probe = hdet.Probe(loss_of, [draw() for _ in range(8)], model=model)
auto = hdet.AutoLR(optimizer, total_steps=STEPS, probe=probe, history=folder / "history.jsonl")
parts = {"model": model, "optimizer": optimizer, "auto": auto}
if checkpoint.exists():
    for name, state in torch.load(checkpoint, map_location=device, weights_only=True).items():
        parts[name].load_state_dict(state)
    generator.manual_seed(1000 * auto.steps + rank)  # other data than before

while not auto.finished:
    optimizer.zero_grad()
    loss = loss_of(draw())
    loss.backward()
    optimizer.step()
    record = auto.step(loss)
    if record is not None and rank == 0:  # all ranks are one model here
        torch.save({name: part.state_dict() for name, part in parts.items()}, checkpoint.with_suffix(".new"))
        checkpoint.with_suffix(".new").replace(checkpoint)
auto.finish_()
total = sum(parameter.double().sum().item() for parameter in model.parameters())
print(f"rank {rank} of {dist.get_world_size()}  loss {loss.item():.5f}  sum of weights {total!r}", flush=True)
dist.barrier()  # gloo's threads let go of the last tensors while Python still runs
dist.destroy_process_group()
