"""AutoLR for a diffusion model, whose loss draws noise: few held-out samples, many fixed draws.
Run: python examples/diffusion.py

The same weights have another loss at every draw of noise and time. The probe measures every batch 16 times,
with the same 16 draws at all weights that it compares, so that 56 samples tell which weights are better.
"""

import torch
from torch.utils.data import DataLoader, TensorDataset

import hdet

EPOCHS = 40

torch.manual_seed(0)
angle, upper = 3.14 * torch.rand(600), torch.randint(2, (600,)) * 2 - 1.0
points = torch.stack([angle.cos() + 0.5 * upper, upper * (angle.sin() - 0.25)], 1)  # two moons
loader = DataLoader(TensorDataset(points), batch_size=32, shuffle=True)

model = torch.nn.Sequential(
    torch.nn.Linear(4, 128),
    torch.nn.SiLU(),
    torch.nn.Linear(128, 128),
    torch.nn.SiLU(),
    torch.nn.Linear(128, 2),
)
optimizer = torch.optim.AdamW(model.parameters())


def denoise(noisy: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
    return model(torch.cat([noisy, torch.sin(3 * time), torch.cos(3 * time)], 1))


def loss_of(batch: list[torch.Tensor]) -> torch.Tensor:
    (clean,) = batch
    time, noise = torch.rand(len(clean), 1), torch.randn_like(clean)  # torch's: fixed in a probe
    return (denoise((1 - time) * clean + time * noise, time) - (noise - clean)).square().mean()


probe, loader = hdet.Probe.set_aside(loss_of, loader, model=model, repeats=16)
auto = hdet.AutoLR(optimizer, total_steps=EPOCHS * len(loader), probe=probe)
for _ in range(EPOCHS):
    for batch in loader:
        loss_of(batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        record = auto.step()
        if record is not None:
            lr, seen = auto.get_last_lr()[0], record.horizon[0].loss_mean
            print(f"step {record.step:3d}  lr {lr:.2e}  held out {seen:.3f}")
best = auto.finish_()
print(f"the {best.kind} of step {best.step}: {best.estimate:.3f} ± {best.error:.3f} expected")

with torch.no_grad():  # from noise to points, in 50 steps of Euler's
    x = torch.randn(500, 2)
    for k in range(50, 0, -1):
        x = x - denoise(x, torch.full((500, 1), k / 50)) / 50
    nearest = torch.cdist(x, points).min(1).values.mean()
print(
    f"distance of 500 new points from the nearest sample {nearest:.3f}, of noise "
    f"{torch.cdist(torch.randn(500, 2), points).min(1).values.mean():.3f}"
)
