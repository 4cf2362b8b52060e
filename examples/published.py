"""The published method: replicas diverge in the learning rate around OneCycleLR, are averaged, and vote.
Run: torchrun --nproc-per-node 2 examples/published.py
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import hdet

STEPS = 200

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = hdet.OneCycleAutoLR(
    optimizer,
    max_lr=1e-2,
    total_steps=STEPS,
    ensemble_lr_spread_ratio=1 / 9,
    model_sync_interval=20,
    enable_auto_lr=True,
    auto_lr_warmup_steps=40,
    loss_scale="auto",
    model=model,
)
generator = torch.Generator().manual_seed(dist.get_rank())
for _ in range(STEPS):
    x = torch.randn(64, 20, generator=generator)
    loss = (model(x) - torch.sin(x[:, :1] * 2)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    record = scheduler.step(loss)
    if record is not None and dist.get_rank() == 0:
        lr = record.hyperparameters[0]
        print(f"step {record.step:3d}  loss {sum(record.losses) / 2:.4f}  base lr {lr.base_after:.2e}")
dist.barrier()  # gloo's threads let go of the last tensors while Python still runs
dist.destroy_process_group()
