"""Can replicas diverge here? Trains a few steps and measures, on the ranks that torchrun started, or on two
processes of this machine."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hdet
from hdet.replicas import find_replicas
from hdet.replicas.launch import (
    LocalProcesses,
    available_backends,
    launch_variables,
    launched_group,
    launched_ranks,
)

__all__ = ["Measured", "check_machine", "measure"]

_STEPS = 5
_TOLERANCE = 0.01
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Measured:
    """Each replica's distance from the mean, measured and predicted, and whether all weights were equal after
    the sync; the same on every rank."""

    where: str
    measured: tuple[float, ...]
    predicted: tuple[float, ...]
    equal_after: bool

    @property
    def diverged(self) -> bool:
        """Whether every replica is where Eq. 2 puts it, within 1 % of the farthest one's distance."""
        farthest = max(self.predicted)
        pairs = zip(self.measured, self.predicted, strict=True)
        return farthest > 0 and all(abs(m - p) <= _TOLERANCE * farthest for m, p in pairs)

    def __str__(self) -> str:
        where = f"On {self.where}, after {_STEPS} steps with spread 1/9, the farthest is "
        where += f"{max(self.measured):.4g} from the mean (predicted: {max(self.predicted):.4g})"
        if not self.diverged:
            return f"Replicas cannot diverge here. {where}: something undoes the fan-out."
        if not self.equal_after:
            return f"Replicas cannot be averaged here. {where}; after the sync their weights differ."
        return f"Replicas can diverge here. {where}; after the sync all weights are equal bit for bit."


def check_machine(console: Console, *, timeout: float) -> bool:
    """Print what this machine has and whether replicas can diverge on it; of several ranks, rank 0 prints."""
    prints = launch_variables().get("RANK", "0") == "0"
    if prints:
        console.print(_surroundings())
        console.print(f"Training replicas for {_STEPS} steps …", style="dim")
    try:
        found = _launched(timeout) if launched_ranks() > 1 else _local(timeout)
    except (RuntimeError, TimeoutError, ValueError) as error:
        console.print(f"Replicas cannot diverge here: {error}", style="red", markup=False, highlight=False)
        return False
    healthy = found.diverged and found.equal_after
    if prints:
        console.print(str(found), style="green" if healthy else "red", highlight=False)
    return healthy


def measure(rank: int, where: str, device: torch.device = _CPU) -> Measured:
    """One rank: train until the first sync, then compare the weights of all ranks."""
    generator = torch.Generator().manual_seed(rank)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Linear(8, 4).to(device)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9)
    scheduler = hdet.OneCycleAutoLR(
        optimizer, 0.1, _STEPS, ensemble_lr_spread_ratio=1 / 9, model_sync_interval=_STEPS, model=parallel
    )
    for _ in range(_STEPS):
        loss = parallel(torch.randn(16, 8, generator=generator).to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        record = scheduler.step(loss)
    assert record is not None
    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()
    all_weights = find_replicas("doctor", device=device).gather(weights)
    equal = all(theirs == weights for theirs in all_weights)
    return Measured(where, record.distance_measured, record.distance_predicted, equal)


def _local(timeout: float) -> Measured:
    with LocalProcesses(2) as ranks:
        found: Measured = ranks.run(measure, "2 gloo processes on this machine", timeout=timeout)[0]
    return found


def _launched(timeout: float) -> Measured:
    with launched_group(timeout) as (backend, device):
        rank = int(launch_variables()["RANK"])
        return measure(rank, f"the {launched_ranks()} {backend} ranks of this launch", device)


def _surroundings() -> Table:
    devices = [f"{i}: {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    backends = [f"{name} {'yes' if usable else 'no'}" for name, usable in available_backends().items()]
    variables = [f"{name}={value}" for name, value in launch_variables().items()]
    view = Table.grid(padding=(0, 2))
    for row in (
        ("hdet", hdet.__version__),
        ("python", platform.python_version()),
        ("torch", torch.__version__),
        ("CPU", f"{os.cpu_count()} cores"),
        ("CUDA", ", ".join(devices) or "no devices"),
        ("backends", ", ".join(backends)),
        ("launcher", " ".join(variables) or "none (no RANK, WORLD_SIZE, MASTER_ADDR)"),
    ):
        view.add_row(*row)
    return view
