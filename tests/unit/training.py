"""Runs under AutoLR that several test files train: a small net with everything in it, a regression."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import hdet
from benchmarks.workloads import quadratic
from hdet import Probe
from hdet.history import SyncRecord
from hdet.loop.windows import Windows


def decisions(records: list[SyncRecord]) -> list[str]:
    """Everything but the time it took; as text, where NaN equals NaN."""
    return [replace(record, milliseconds=0.0).to_json() for record in records]


def searched(records: list[SyncRecord]) -> list[SyncRecord]:
    """Those of the search; windows of the descent that follows it move nothing."""
    return [record for record in records if record.horizon[0].why != "the schedule decays"]


def fixed_windows(steps: int, *args: Any, **options: Any) -> hdet.AutoLR:
    """AutoLR whose windows are all of one length, for tests that count steps."""
    with mock.patch("hdet.autolr.search.Windows", lambda first, last: Windows(steps, 0.0, last)):
        return hdet.AutoLR(*args, **options)


TASK = quadratic.make()
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adamw": torch.optim.AdamW,
}


# ---------------------------------------------------------------------- a small net, with everything in it


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def batch(step: int, size: int = 16) -> Tensor:
    return torch.randn(size, 4, generator=torch.Generator().manual_seed(step))


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x[:, :1].sin() - x[:, 1:2]).square().mean()


class Training:
    """The net under AdamW or SGD; whatever is not AutoLR, a plain loop has too.

    Dropout draws from torch's global generator, which is seeded here: make one, and run it before the next.
    """

    def __init__(
        self, kind: str = "adamw", *, lrs: tuple[float, float] = (1.0, 1.0), auto: Any = True, **options: Any
    ) -> None:
        torch.manual_seed(5)
        self.model = Net()
        groups = [
            {"params": self.model.layers[0].parameters(), "lr": lrs[0]},
            {"params": self.model.layers[1:].parameters(), "lr": lrs[1]},
        ]
        self.optimizer: torch.optim.Optimizer = (
            torch.optim.AdamW(groups) if kind == "adamw" else torch.optim.SGD(groups, momentum=0.9)
        )
        self.settings = {"total_steps": 200, **options}
        self.records: list[SyncRecord] = []
        self.lrs: list[list[float]] = []
        self.step = 0
        self.poisoned = -1
        if auto:
            self.attach()

    def attach(self) -> None:
        self.probe = hdet.Probe(
            lambda x: loss_of(self.model, x), lambda k: batch(50_000 + k, 256), model=self.model
        )
        settings = dict(self.settings)
        if callable(settings.get("schedule")):
            settings["schedule"] = settings["schedule"](self.optimizer)
        self.auto = hdet.AutoLR(self.optimizer, probe=self.probe, **settings)

    def backward(self) -> Tensor:
        self.lrs.append([group["lr"] for group in self.optimizer.param_groups])
        self.optimizer.zero_grad()
        loss = loss_of(self.model, batch(self.step))
        loss.backward()
        self.optimizer.step()
        if self.step == self.poisoned:
            with torch.no_grad():
                self.model.layers[-1].weight.mul_(1e6)
        self.step += 1
        return loss.detach()

    def run(self, until: int) -> Training:
        while self.step < until:
            self.backward()
            record = self.auto.step()
            self.records += [record] if record else []
        return self

    def flat(self) -> Tensor:
        return torch.cat([t.detach().reshape(-1).double() for t in self.model.state_dict().values()])

    def save(self) -> io.BytesIO:
        file = io.BytesIO()
        torch.save(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "auto": self.auto.state_dict(),
                "step": self.step,
                "random": torch.get_rng_state(),
            },
            file,
        )
        file.seek(0)
        return file

    def load(self, file: io.BytesIO) -> Training:
        saved = torch.load(file, weights_only=True)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        if not hasattr(self, "auto"):
            self.attach()
        self.auto.load_state_dict(saved["auto"])
        self.step = saved["step"]
        torch.set_rng_state(saved["random"])
        return self


# ---------------------------------------------------------------------- two quadratics


class Halves(nn.Module):
    """Two quadratics side by side; the gradient of one of them is noise, mostly."""

    def __init__(self) -> None:
        super().__init__()
        self.calm = nn.Parameter(torch.ones(20))
        self.noisy = nn.Parameter(torch.ones(20))
        self.curvatures = torch.logspace(-2, 0, 20)

    def forward(self, samples: Tensor) -> Tensor:
        apart = self.curvatures * (self.noisy - samples).square()
        return 0.5 * ((self.curvatures * self.calm.square()).sum() + apart.sum(-1).mean())


# ---------------------------------------------------------------------- a regression on known samples

X = torch.randn(400, 32, 8, generator=torch.Generator().manual_seed(0))
W = torch.randn(8, 1, generator=torch.Generator().manual_seed(1))


class Overfitting:
    """Twenty-four samples with noise in their labels, far too many steps: the slower, the better."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        probe = Probe(self.loss, lambda k: self.samples(1000 + k, 512), model=self.model)
        self.auto = hdet.AutoLR(self.optimizer, probe=probe, **options)
        self.records: list[SyncRecord] = []

    @staticmethod
    def samples(seed: int, count: int) -> tuple[Tensor, Tensor]:
        draw = torch.Generator().manual_seed(seed)
        x = torch.randn(count, 6, generator=draw)
        return x, x[:, :1] + torch.randn(count, 1, generator=draw)

    def loss(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return (self.model(pair[0]) - pair[1]).square().mean()

    def truly(self) -> float:
        """The loss on samples that nobody has seen."""
        return self.loss(self.samples(7, 4096)).item()

    def run(self, until: int) -> Overfitting:
        while self.auto.steps < until and not self.auto.finished:
            self.optimizer.zero_grad()
            self.loss(self.samples(0, 24)).backward()
            self.optimizer.step()
            record = self.auto.step()
            self.records += [] if record is None else [record]
        return self

    @property
    def restarts(self) -> list[SyncRecord]:
        return [r for r in self.records if any("from the beginning" in event for event in r.events)]


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))


def squared(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - torch.tanh(x @ W)).square().mean()


def probe_of(model: nn.Module, loss: Any = squared) -> Probe:
    return Probe(lambda x: loss(model, x), X[200:], model=model)


def train(
    model: nn.Module, optimizer: Any, auto: Any, steps: int, loss: Any = squared, at: Any = None
) -> None:
    for i in range(steps):
        if at is not None:
            at(i)
        optimizer.zero_grad()
        loss(model, X[i % 200]).backward()
        optimizer.step()
        auto.step()
