"""A schedule that AutoLR found, run again on other weights by a plain LambdaLR: no probe, no controller.
Run: python examples/replay.py

Find it once, then pay nothing: for many seeds, or a loop in which there is no place for a probe. It is right
for the same model, data, batch size and number of steps; of anything else it knows nothing.
"""

import tempfile
from pathlib import Path

import torch
from torch.nn import functional as F

import hdet

STEPS = 300

torch.manual_seed(100)
teacher = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))


def draw(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(64, 20, generator=torch.Generator().manual_seed(seed))
    return x, teacher(x).detach()


def train(seed: int, found: Path, *, search: bool) -> float:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters())

    def loss_of(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return F.mse_loss(model(batch[0]), batch[1])

    if search:
        probe = hdet.Probe(loss_of, [draw(10_000 + k) for k in range(8)], model=model)
        scheduler = hdet.AutoLR(optimizer, total_steps=STEPS, probe=probe)
    else:
        scheduler = hdet.replay(optimizer, found)
    for step in range(STEPS):
        loss_of(draw(STEPS * seed + step)).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    if search:
        scheduler.export(found)
    with torch.no_grad():
        return sum(loss_of(draw(20_000 + k)).item() for k in range(8)) / 8


with tempfile.TemporaryDirectory() as folder:
    found = Path(folder) / "schedule.json"
    print(f"seed 0, searched:  held-out loss {train(0, found, search=True):.4f}")
    print(f"a schedule of {found.stat().st_size} bytes")
    for seed in (1, 2, 3):
        print(f"seed {seed}, replayed:  held-out loss {train(seed, found, search=False):.4f}")
