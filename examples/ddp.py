"""AutoLR, with no learning rate, around a loop with DistributedDataParallel.
Run: torchrun --nproc-per-node 2 examples/ddp.py

AutoLR is made after the process group, on every rank, and stepped on every rank. All ranks hold the same
weights at every step; each probes batches of its own, and they decide together.
"""

import os

import torch
import torch.distributed as dist
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset, TensorDataset

import hdet

STEPS = 200

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
dist.init_process_group("gloo")
torch.manual_seed(0)  # the same data and first weights everywhere
inputs = torch.randn(4096, 20)
teacher = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
data = TensorDataset(inputs, teacher(inputs).detach())
train, held_out = Subset(data, range(3584)), Subset(data, range(3584, 4096))
sampler = DistributedSampler(train)
loader = DataLoader(train, batch_size=32, sampler=sampler)
model = DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
)
optimizer = torch.optim.AdamW(model.parameters())


def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
    x, y = batch
    return F.mse_loss(model(x), y)


batches = DataLoader(held_out, batch_size=32, sampler=DistributedSampler(held_out))
probe = hdet.Probe(loss_of, batches, model=model)
auto = hdet.AutoLR(optimizer, total_steps=STEPS, probe=probe)

epoch = 0
while not auto.finished:
    sampler.set_epoch(epoch)
    for batch in loader:
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        record = auto.step(loss)
        if record is not None and dist.get_rank() == 0:
            lr, seen = auto.get_last_lr()[0], record.horizon[0].loss_mean
            print(f"step {record.step:3d}  lr {lr:.2e}  held out {seen:.4f}", flush=True)
        if auto.finished:
            break
    epoch += 1
dist.barrier()  # gloo's threads let go of the last tensors while Python still runs
dist.destroy_process_group()
