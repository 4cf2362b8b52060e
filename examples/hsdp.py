"""Hybrid sharding (HSDP): replicas that lie on several ranks each, by FSDP2 on a mesh of two dimensions.
Run: torchrun --nproc-per-node 4 examples/hsdp.py

The loop of torchtitan in small: a mesh of two dimensions, FSDP2 block by block, and hdet on the dimension
along which the model is replicated. Ranks of one shard group are one replica and hold its parts.
"""

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

import hdet

STEPS, REPLICAS = 60, 2

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
local_rank = int(os.environ["LOCAL_RANK"])
on_gpu = torch.cuda.device_count() > local_rank
kind = "cuda" if on_gpu else "cpu"
if on_gpu:
    torch.cuda.set_device(local_rank)
dist.init_process_group("nccl" if on_gpu else "gloo")
shards = dist.get_world_size() // REPLICAS
mesh = init_device_mesh(kind, (REPLICAS, shards), mesh_dim_names=("replicate", "shard"))


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = torch.nn.Linear(width, 2 * width)
        self.down = torch.nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x)))


torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(20, 32), Block(32), Block(32), torch.nn.Linear(32, 1)).to(kind)
for block in model[1:3]:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)

optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
scheduler = hdet.OneCycleAutoLR(
    optimizer,
    max_lr=1e-2,
    total_steps=STEPS,
    ensemble_lr_spread_ratio=1 / 9,
    model_sync_interval=10,
    enable_auto_lr=True,
    model=model,
)
generator = torch.Generator().manual_seed(dist.get_rank())
for step in range(1, STEPS + 1):
    x = torch.randn(64, 20, generator=generator).to(kind)
    loss = F.mse_loss(model(x), torch.sin(2 * x[:, :1]))
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    if scheduler.step(loss) is not None:
        seen = loss.detach().clone()
        dist.all_reduce(seen)
        if dist.get_rank() == 0:
            print(f"step {step:3d}  loss {seen.item() / dist.get_world_size():.4f}", flush=True)
dist.barrier()  # gloo's threads let go of the last tensors while Python still runs
dist.destroy_process_group()
