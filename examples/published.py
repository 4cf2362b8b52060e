"""The paper's method to the letter: replicas diverge in the learning rate, are averaged, and vote.
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
# Without the last three lines it is the paper's own run: T = 1000, and auto-LR from step 100,000 on.
scheduler = hdet.OneCycleAutoLR.paper(
    optimizer,
    max_lr=1e-2,
    total_steps=STEPS,
    model=model,
    model_sync_interval=20,
    auto_lr_warmup_steps=60,
    final_div_factor=5,  # Eq. 8 as printed then ends at a fifth of the rate of step 60
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
        loss, lr = sum(record.losses) / len(record.losses), record.hyperparameters[0]
        print(f"step {record.step:3d}  loss {loss:.4f}  base lr {lr.base_after:.2e}")
dist.barrier()  # gloo's threads let go of the last tensors while Python still runs
dist.destroy_process_group()
