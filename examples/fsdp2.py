"""AutoLR, with no learning rate, on one model that FSDP2 shards over all ranks.
Run: torchrun --nproc-per-node 2 examples/fsdp2.py

Shards of one model are no replicas, so nothing diverges: every rank probes batches of its own, and they
decide together. The model is sharded before the optimizer and AutoLR are made. torch.distributed.checkpoint
saves the state, and may load it on another number of ranks.
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

import hdet

STEPS = 120

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
on_gpu = torch.cuda.device_count() > int(os.environ["LOCAL_RANK"])
kind = "cuda" if on_gpu else "cpu"
if on_gpu:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl" if on_gpu else "gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(
    torch.nn.Linear(20, 64), torch.nn.GELU(), torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 1)
).to(kind)
for layer in (model[0], model[2]):
    fully_shard(layer)
fully_shard(model)
generator = torch.Generator().manual_seed(1 + dist.get_rank())  # data of its own for every rank


def draw() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(32, 20, generator=generator).to(kind)
    return x, torch.sin(2 * x[:, :1])


def loss_of(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    x, y = batch
    return F.mse_loss(model(x), y)


optimizer = torch.optim.AdamW(model.parameters())
probe = hdet.Probe(loss_of, [draw() for _ in range(8)], model=model)
auto = hdet.AutoLR(optimizer, total_steps=STEPS, probe=probe)
while not auto.finished:
    loss = loss_of(draw())
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    record = auto.step(loss)
    if record is not None and dist.get_rank() == 0:
        lr, held_out = auto.get_last_lr()[0], record.horizon[0].loss_mean
        print(f"step {record.step:3d}  lr {lr:.2e}  held out {held_out:.4f}", flush=True)

folder = [tempfile.mkdtemp()]
dist.broadcast_object_list(folder)  # one folder, that of rank 0
dcp.save({"model": model.state_dict(), "auto": auto}, checkpoint_id=folder[0])
if dist.get_rank() == 0:
    print(f"saved {len(os.listdir(folder[0]))} files", flush=True)
dist.barrier()  # gloo's threads let go of the last tensors while Python still runs
dist.destroy_process_group()
