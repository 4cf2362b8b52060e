"""A moving average of the weights beside AutoLR, which goes back with them.
Run: python examples/ema.py

Where a window was a mistake AutoLR takes the weights back to where it began; here one batch is not a number,
and the weights are lost. An average of them would keep what was taken back, NaN for good. It is told, by
``on_event``, and begins anew from the weights that training goes on from.
"""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import hdet
from hdet.loop.announce import Event

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters())
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.98))


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(seed))
    return x, x[:, :1].sin() + x[:, 1:2]


def loss_of(pair: tuple[torch.Tensor, torch.Tensor], net: nn.Module = model) -> torch.Tensor:
    return (net(pair[0]) - pair[1]).square().mean()


def follow(event: Event) -> None:
    if event.kind == "back":
        print(f"step {event.step}: {event.sentence}")
        ema.n_averaged.zero_()  # the next update copies the weights
        ema.update_parameters(model)


probe = hdet.Probe(loss_of, [batch(10_000 + k) for k in range(8)], model=model)
auto = hdet.AutoLR(optimizer, probe=probe, total_steps=600, on_event=follow)
for step in range(600):
    loss = loss_of(batch(step)) * (float("nan") if step == 400 else 1.0)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    ema.update_parameters(model)
    auto.step()

with torch.no_grad():
    print(f"held-out loss of the average {loss_of(batch(20_000), ema):.4f}")
