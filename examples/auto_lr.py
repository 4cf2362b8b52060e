"""AutoLR around an ordinary loop, with no learning rate.
Run: python examples/auto_lr.py
"""

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import hdet

STEPS = 400

torch.manual_seed(0)
inputs = torch.randn(4096, 20)
teacher = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
loader = DataLoader(TensorDataset(inputs, teacher(inputs).detach()), batch_size=64, shuffle=True)

model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters())


def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
    x, y = batch
    return F.mse_loss(model(x), y)


probe, loader = hdet.Probe.set_aside(loss_of, loader, model=model)  # some batches, never trained on
auto = hdet.AutoLR(optimizer, total_steps=STEPS, probe=probe)

step = 0
while step < STEPS:
    for batch in loader:
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        record = auto.step()
        step += 1
        if record:
            seen = record.horizon[0]
            print(
                f"step {record.step:4d}  lr {auto.get_last_lr()[0]:.2e}  {seen.action:5s}  {loss.item():.4f}"
            )
        if step == STEPS:
            break
print(f"final loss {loss.item():.5f}")
