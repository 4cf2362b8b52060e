"""A small model that ranks train as islands, and what is looked at while they do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import hdet
from tests.states import inside

SYNC_EVERY, STEPS = 5, 25


class Net(nn.Module):
    """Odd sizes, a bias of one, a norm with buffers, and two names for one matrix."""

    def __init__(self, width: int = 7, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.one = nn.Linear(5, width, dtype=dtype)
        self.norm = nn.BatchNorm1d(width, dtype=dtype)
        self.two = nn.Linear(width, 5, dtype=dtype)
        self.two.weight = nn.Parameter(self.one.weight.detach().t())
        self.last = nn.Linear(5, 1, dtype=dtype)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.two(torch.tanh(self.norm(self.one(x)))))
        return out


def batch(rank: int, step: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(16, 5, generator=generator)
    y = x[:, :1] * x[:, 1:2] + 0.1 * rank
    return x.to(dtype), y.to(dtype)


class Island:
    """One rank of a run.

    Args:
        rank: whose batches it trains on.
        outer: its outer optimizer.
        explore: what it explores; with anything, a probe judges.
        optimizer: ``"sgd"``, ``"adamw"``.
    """

    def __init__(
        self,
        rank: int,
        outer: hdet.Outer | None,
        explore: tuple[Any, ...] = (),
        *,
        optimizer: str = "sgd",
        width: int = 7,
        dtype: torch.dtype = torch.float32,
        seed: int = 0,
        **options: Any,
    ) -> None:
        torch.manual_seed(seed)
        self.rank, self.dtype = rank, dtype
        self.model = Net(width, dtype)
        kinds: dict[str, Any] = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}
        self.optimizer = kinds[optimizer](self.model.parameters(), lr=0.02)
        held_out = [batch(rank, 10_000 + i, dtype) for i in range(3)]
        probe = hdet.Probe(self.loss, held_out, model=self.model, per_sync=2) if explore else None
        options = {"gradients": "none", "sync_every": SYNC_EVERY, "total_steps": STEPS, **options}
        self.ensemble = hdet.Ensemble(
            self.optimizer, explore, outer=outer, probe=probe, model=self.model, **options
        )

    def loss(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return (self.model(pair[0]) - pair[1]).square().mean()

    def train_once(self, step: int) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(batch(self.rank, step, self.dtype))
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def step(self, step: int) -> hdet.SyncRecord | None:
        return self.ensemble.step(self.train_once(step))

    def flat(self) -> Tensor:
        return torch.cat([p.detach().reshape(-1) for p in self.model.parameters()])

    def velocity(self) -> Tensor:
        every = inside(self.ensemble.state_dict())["outer"]["velocity"].values()
        return torch.cat([v.reshape(-1) for v in every])

    def save(self) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "run": self.ensemble.state_dict(),
        }

    def load(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.ensemble.load_state_dict(saved["run"])
