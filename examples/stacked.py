"""Eight replicas as rows of one process, on one device, with no launcher.
Run: python examples/stacked.py
"""

import torch

import hdet

STEPS, REPLICAS = 200, 8

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)).to(device)
replicas = hdet.StackedReplicas(model, torch.optim.AdamW(model.parameters()), REPLICAS)
scheduler = hdet.OneCycleAutoLR(
    replicas.optimizer,
    max_lr=1e-2,
    total_steps=STEPS,
    ensemble_lr_spread_ratio=1 / 9,
    model_sync_interval=20,
    enable_auto_lr=True,
    auto_lr_warmup_steps=40,
    loss_scale="auto",
)


def loss_fn(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return (model(x) - torch.sin(x[:, :1] * 2)).square().mean()


compute = replicas.capture(loss_fn)  # forward and backward pass; a GPU replays it from a recording
for _ in range(STEPS):
    x = torch.randn(REPLICAS * 64, 20, device=device)  # 64 rows for each replica
    losses = compute(x)
    replicas.optimizer.step()
    replicas.optimizer.zero_grad()
    record = scheduler.step(losses)
    if record is not None:
        lr = record.hyperparameters[0]
        print(f"step {record.step:3d}  loss {losses.mean().item():.4f}  base lr {lr.base_after:.2e}")
replicas.write_()  # the mean of the replicas, into the model
