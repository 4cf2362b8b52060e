"""The training script that a reader of our pages already has: every section of a page begins with its names.

``S`` is the number of batches that ``hdet.Probe.set_aside`` leaves of ``loader``; who trains on all of it has
``len(loader)`` steps. On several ranks each has its own share of the data, of the same length.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import hdet  # noqa: F401  (pages use it)

torch.manual_seed(1)
S, epochs, batch_size = 88, 2, 16
world = dist.get_world_size() if dist.is_initialized() else 1

# Four classes by the angle of a point, some labels wrong: learned in a hundred steps, not in ten.
x = torch.randn((S + 16) * batch_size * world, 8)
angle = torch.atan2(x[:, 0] + 0.3 * x[:, 2], x[:, 1] - 0.3 * x[:, 3])
y = (torch.bucketize(angle, torch.tensor([-1.6, 0.0, 1.6])) + (torch.rand(len(x)) < 0.05)) % 4
held_x, held_y = x[: 8 * batch_size], y[: 8 * batch_size]
held_out = list(zip(held_x.split(batch_size), held_y.split(batch_size), strict=True))
dataset = TensorDataset(x[8 * batch_size * world :], y[8 * batch_size * world :])
sampler = DistributedSampler(dataset) if world > 1 else None
loader = DataLoader(dataset, batch_size, shuffle=sampler is None, sampler=sampler)

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters())
criterion = nn.CrossEntropyLoss(label_smoothing=0.0)


def loss_of(batch):
    inputs, targets = batch
    return criterion(model(inputs), targets)
