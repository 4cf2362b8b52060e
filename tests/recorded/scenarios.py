"""The runs: tiny, in float64, seen through the public face alone. Each gives the lines of its history.

Every scenario is a function of a rank (0 where there is one) that trains to the end, or to ``stop_at``, and
can be taken up from what it had saved there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import CosineAnnealingLR

import hdet

__all__ = ["SCENARIOS", "Scenario"]

Saved = dict[str, Any]


class Scenario(NamedTuple):
    """What is run, on how many ranks, for how long, and where it is interrupted."""

    build: Callable[[int, int], Run]
    ranks: int
    steps: int
    stop_at: int

    def __call__(self, rank: int, stop_at: int | None = None, saved: Saved | None = None) -> Saved:
        """Train; the records so far, the weights, and all that a resumed run needs."""
        torch.manual_seed(0)
        run = self.build(rank, self.steps)
        done = 0
        if saved is not None:
            run.load(saved)
            done = self.stop_at
        records = []
        for step in range(done, self.steps if stop_at is None else stop_at):
            record = run.step(step)
            records += [comparable(record)] if record is not None else []
        weights = [float(p.detach().double().sum()).hex() for p in run.model.parameters()]
        return {"records": records, "weights": weights, "saved": run.save()}


class Run:
    """A model in training."""

    def __init__(self, rank: int, model: nn.Module, optimizer: Optimizer, door: Any) -> None:
        self.rank = rank
        self.model = model
        self.optimizer = optimizer
        self.door = door
        self.poisoned: int | None = None
        self.schedule: CosineAnnealingLR | None = None

    def step(self, step: int) -> hdet.SyncRecord | None:
        torch.manual_seed(100 * step + self.rank)  # of dropout
        loss = loss_of(self.model, batch(step, self.rank))
        self.optimizer.zero_grad()
        (1e4 * loss if step == self.poisoned else loss).backward()
        self.optimizer.step()
        record: hdet.SyncRecord | None = self.door.step(loss)
        return record

    def save(self) -> Saved:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "door": self.door.state_dict(),
            "schedule": None if self.schedule is None else self.schedule.state_dict(),
        }

    def load(self, saved: Saved) -> None:
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        if self.schedule is not None:
            self.schedule.load_state_dict(saved["schedule"])
        self.door.load_state_dict(saved["door"])


class Stacked(Run):
    """Four replicas as rows; the optimizer is that of the rows."""

    def __init__(self, replicas: hdet.StackedReplicas, model: nn.Module, door: Any) -> None:
        super().__init__(0, model, replicas.optimizer, door)
        self._replicas = replicas

    def step(self, step: int) -> hdet.SyncRecord | None:
        x = torch.cat([batch(step, rank)[0] for rank in range(4)])
        y = torch.cat([batch(step, rank)[1] for rank in range(4)])
        losses = self._replicas.losses(loss_of, (x, y))
        self.optimizer.zero_grad()
        self._replicas.backward(losses)
        self.optimizer.step()
        record: hdet.SyncRecord | None = self.door.step(losses)
        if record is not None:
            self._replicas.write_()
        return record

    def save(self) -> Saved:
        return {}


# ---------------------------------------------------------------------- the task


def batch(step: int, rank: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(32, 6, generator=generator, dtype=torch.float64)
    noise = 0.3 * torch.randn(32, 1, generator=generator, dtype=torch.float64)
    return x, torch.sin(2 * x[:, :1]) + x[:, 1:2] * x[:, 2:3] + noise


def loss_of(model: nn.Module, pair: tuple[Tensor, Tensor]) -> Tensor:
    x, y = pair
    return (model(x) - y).square().mean()


def net(dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(7)
    layers = [
        nn.Linear(6, 16),
        nn.Tanh(),
        nn.Dropout(dropout),
        nn.Linear(16, 16),
        nn.Tanh(),
        nn.Linear(16, 1),
    ]
    return nn.Sequential(*layers).double()


def probe(model: nn.Module, rank: int, per_sync: int = 8) -> hdet.Probe:
    held_out = [batch(50_000 + k, rank) for k in range(24)]
    return hdet.Probe(lambda pair: loss_of(model, pair), held_out, model=model, per_sync=per_sync)


def two_groups(model: nn.Module) -> list[dict[str, Any]]:
    first, *rest = model.parameters()
    return [{"params": [first], "lr": 0.02}, {"params": rest, "lr": 0.01}]


# ---------------------------------------------------------------------- the runs


def auto_lr_adamw(rank: int, steps: int) -> Run:
    model = net()
    optimizer = AdamW(model.parameters())
    return Run(rank, model, optimizer, hdet.AutoLR(optimizer, probe=probe(model, rank), total_steps=steps))


def auto_lr_each_with_a_spike(rank: int, steps: int) -> Run:
    model = net()
    optimizer = SGD(two_groups(model), momentum=0.9)
    auto = hdet.AutoLR(
        optimizer, probe=probe(model, rank), total_steps=steps, scope="each", schedule="cosine"
    )
    run = Run(rank, model, optimizer, auto)
    run.poisoned = 60
    return run


def auto_lr_diverging(rank: int, steps: int) -> Run:
    model = net()
    shared = nn.parallel.DistributedDataParallel(model)
    optimizer = AdamW(model.parameters())
    auto = hdet.AutoLR(optimizer, probe=probe(model, rank), total_steps=steps, spread=0.2)
    return Run(rank, shared, optimizer, auto)


def one_cycle_by_horizon(rank: int, steps: int) -> Run:
    model = net()
    optimizer = SGD(two_groups(model), momentum=0.9)
    options = {"controller": "horizon", "probe": probe(model, rank)}
    door = hdet.OneCycleAutoLR(optimizer, max_lr=[0.2, 0.1], total_steps=steps, **options)  # type: ignore[arg-type]
    return Run(rank, model, optimizer, door)


def published(rank: int, steps: int) -> Run:
    return _published(rank, steps, "schedule")


def published_geometric(rank: int, steps: int) -> Run:
    return _published(rank, steps, "geometric")


def _published(rank: int, steps: int, decay: Any) -> Run:
    model = net()
    shared = nn.parallel.DistributedDataParallel(model)
    optimizer = SGD(two_groups(model), momentum=0.9)
    door = hdet.OneCycleAutoLR(
        optimizer,
        max_lr=[0.1, 0.05],
        total_steps=steps,
        ensemble_lr_spread_ratio=1 / 3,
        model_sync_interval=10,
        enable_auto_lr=True,
        auto_lr_warmup_steps=20,
        loss_scale="auto",
        decay=decay,
        model=model,
    )
    return Run(rank, shared, optimizer, door)


def regression(rank: int, steps: int) -> Run:
    model = net(dropout=0.2)
    optimizer = AdamW(model.parameters(), lr=3e-3)
    explore = [hdet.LearningRate(), hdet.WeightDecay(), hdet.Dropout(model)]
    schedule = CosineAnnealingLR(optimizer, steps)
    door = hdet.Ensemble(
        optimizer,
        explore,
        schedule=schedule,
        sync_every=10,
        total_steps=steps,
        probe=probe(model, rank),
        gradients="none",
        model=model,
        seed=3,
    )
    run = Run(rank, model, optimizer, door)
    run.schedule = schedule
    return run


def vote_by_probe(rank: int, steps: int) -> Run:
    model = net()
    optimizer = AdamW(model.parameters(), lr=3e-3)
    door = hdet.Ensemble(
        optimizer,
        [hdet.LearningRate(0.3), hdet.WeightDecay()],
        sync_every=10,
        total_steps=steps,
        probe=probe(model, rank),
        controller=hdet.SoftmaxController("auto"),
        gradients="none",
        model=model,
    )
    return Run(rank, model, optimizer, door)


def stacked(rank: int, steps: int) -> Run:
    model = net()
    replicas = hdet.StackedReplicas(model, SGD(model.parameters(), lr=0.05), 4)
    door = hdet.Ensemble(
        replicas.optimizer,
        [hdet.LearningRate(0.3), hdet.WeightDecay()],
        sync_every=10,
        total_steps=steps,
        controller=hdet.RegressionController(),
        model=model,
    )
    return Stacked(replicas, model, door)


SCENARIOS = {
    "auto_lr_adamw": Scenario(auto_lr_adamw, 1, 300, 130),
    "auto_lr_each_with_a_spike": Scenario(auto_lr_each_with_a_spike, 1, 200, 65),
    "auto_lr_diverging": Scenario(auto_lr_diverging, 2, 160, 75),
    "one_cycle_by_horizon": Scenario(one_cycle_by_horizon, 1, 200, 90),
    "published": Scenario(published, 4, 80, 40),
    "published_geometric": Scenario(published_geometric, 2, 80, 45),
    "regression": Scenario(regression, 4, 80, 40),
    "vote_by_probe": Scenario(vote_by_probe, 2, 60, 30),
    "stacked": Scenario(stacked, 1, 60, 60),
}


def comparable(record: hdet.SyncRecord) -> str:
    """All of a record but the time it took."""
    return replace(record, milliseconds=0.0).to_json()
