"""Muon for matrices, AdamW for the rest, and one AutoLR for both.
Run: python examples/muon_adamw.py

Each optimizer has a factor of its own; window, probe and the way back are one, since they train one model.
"""

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import hdet

STEPS = 300

torch.manual_seed(0)
inputs = torch.randn(4096, 20)
teacher = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
loader = DataLoader(TensorDataset(inputs, teacher(inputs).detach()), batch_size=64, shuffle=True)
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))

hidden = [model[0].weight]  # Muon is for the matrices within, not for the last layer
rest = [p for p in model.parameters() if p is not hidden[0]]
if hasattr(torch.optim, "Muon"):  # torch 2.9
    first = torch.optim.Muon(hidden, lr=1e-3)
else:
    first = torch.optim.SGD(hidden, lr=1e-3, momentum=0.95, nesterov=True)
optimizers = [first, torch.optim.AdamW(rest)]


def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
    x, y = batch
    return F.mse_loss(model(x), y)


probe, loader = hdet.Probe.set_aside(loss_of, loader, model=model)
auto = hdet.AutoLR(optimizers, total_steps=STEPS, probe=probe)

while not auto.finished:
    for batch in loader:
        loss = loss_of(batch)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        record = auto.step(loss)  # after the last of them
        if record:
            muon, adamw = (auto.get_last_lr()[i] for i in (0, 1))
            print(f"step {record.step:3d}  lr {muon:.2e} {adamw:.2e}  loss {record.losses[0]:.4f}")
        if auto.finished:
            break
print(f"held out {auto.finish_().estimate:.5f}")
