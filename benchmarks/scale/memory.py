"""Memory beyond training itself: what the cost model says, against every tensor that is alive."""

from __future__ import annotations

import gc
from collections.abc import Callable

import torch
from torch import Tensor, nn

import hdet
from benchmarks.regret.arms import prepare
from benchmarks.scale import model as cost
from hdet.replicas.averaging import bucket_memory

__all__ = ["DOORS", "counted", "predicted"]

#: Name → how many ranks it takes.
DOORS = {
    "AutoLR": 1,
    "OneCycleAutoLR": 2,
    "Ensemble, own gradients": 2,
}
_STATES = {"adamw": 2, "sgd": 1}
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_STEPS, _SYNC_EVERY = 36, 12


def predicted(door: str, optimizer: str, dtype: str, weights: int) -> float:
    """Bytes, host and device together."""
    weight_bytes = _DTYPES[dtype].itemsize
    states = _STATES[optimizer]
    if door == "AutoLR":
        found = cost.autolr_memory(weights, weight_bytes, states * weight_bytes)
        return found.device + found.host
    ranks = DOORS[door]
    travelling = 1 + (states if door.startswith("Ensemble") else 0)
    return min(cost.FLOAT32 * travelling * weights, bucket_memory(ranks))


def counted(rank: int, door: str, optimizer: str, dtype: str, width: int) -> dict[str, float]:
    """Bytes of all tensors that a run holds and training alone does not, after some syncs."""
    prepare("cpu")
    torch.manual_seed(0)
    kind = _DTYPES[dtype]
    model = nn.Sequential(nn.Linear(256, width, dtype=kind), nn.Tanh(), nn.Linear(width, 256, dtype=kind))
    rule = _optimizer(optimizer, model)
    batches = [torch.randn(8, 256).to(kind) for _ in range(4)]

    def train_once() -> Tensor:
        rule.zero_grad(set_to_none=True)
        loss: Tensor = (model(batches[0]) - batches[1]).float().square().mean()
        loss.backward()  # type: ignore[no-untyped-call]
        rule.step()
        rule.zero_grad(set_to_none=True)
        return loss.detach()

    train_once()
    before = _alive()
    step = _run(door, rule, model, batches)
    for _ in range(_STEPS):
        step(train_once() * (1 + rank))
    return {
        "weights": float(sum(p.numel() for p in model.parameters())),
        "bytes": float(_alive() - before),
    }


def _optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=1e-3)
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


def _run(
    door: str, optimizer: torch.optim.Optimizer, model: nn.Module, batches: list[Tensor]
) -> Callable[[Tensor], object]:
    """How it steps."""
    if door == "AutoLR":
        probe = hdet.Probe(lambda x: (model(x) - x).float().square().mean(), batches, model=model)
        auto = hdet.AutoLR(optimizer, probe=probe, total_steps=10 * _STEPS)
        return lambda _: auto.step()
    if door.startswith("OneCycle"):
        scheduler = hdet.OneCycleAutoLR(
            optimizer,
            max_lr=1e-3,
            total_steps=2 * _STEPS,
            ensemble_lr_spread_ratio=0.3,
            model_sync_interval=_SYNC_EVERY,
            model=model,
        )
        return scheduler.step
    return hdet.Ensemble(optimizer, [], gradients="none", sync_every=_SYNC_EVERY, model=model).step


def _alive() -> int:
    """Bytes of all memories that tensors of this process are views of."""
    gc.collect()
    tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), Tensor)]
    memories = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(memories.values())
