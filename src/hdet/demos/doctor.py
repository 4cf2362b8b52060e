"""Can replicas diverge here? The doctor does not guess: it trains a few steps and measures.

Under torchrun the ranks that were started are examined; otherwise two processes on this machine.
"""

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
from hdet.replicas.environment import available_backends, launch_variables, launched_group, launched_ranks
from hdet.replicas.launch import LocalProcesses

__all__ = ["Finding", "doctor", "examine"]

_SYNC_EVERY = 5
_SPREAD = 1 / 9
_TOLERANCE = 0.01
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Finding:
    """What a few steps of a tiny model showed; the same on every rank."""

    where: str
    measured: tuple[float, ...]
    predicted: tuple[float, ...]
    equal_after: bool

    @property
    def apart(self) -> bool:
        """Whether every replica is where Eq. 2 puts it, within 1 % of the farthest one's distance."""
        farthest = max(self.predicted)
        return farthest > 0 and all(
            abs(m - p) <= _TOLERANCE * farthest for m, p in zip(self.measured, self.predicted, strict=True)
        )

    @property
    def healthy(self) -> bool:
        """Whether replicas diverge and come together again."""
        return self.apart and self.equal_after


def doctor(console: Console, *, timeout: float = 60.0) -> bool:
    """Print what this machine offers and whether replicas can diverge on it; False if they cannot.

    Of the ranks that a launcher has started, rank 0 prints.
    """
    speaks = launch_variables().get("RANK", "0") == "0"
    if speaks:
        console.print(_surroundings())
        console.print(f"Training replicas for {_SYNC_EVERY} steps, to see …", style="dim")
    try:
        finding = _launched(timeout) if launched_ranks() > 1 else _local(timeout)
    except (RuntimeError, TimeoutError, ValueError) as error:
        console.print(f"Replicas cannot diverge here: {error}", style="red", markup=False, highlight=False)
        return False
    if speaks:
        console.print(_prose(finding), style="green" if finding.healthy else "red", highlight=False)
    return finding.healthy


def examine(rank: int, where: str, device: torch.device = _CPU) -> Finding:
    """One rank: train until the first sync, then compare all weights of all ranks."""
    generator = torch.Generator().manual_seed(rank)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Linear(8, 4).to(device)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1, momentum=0.9)
    scheduler = hdet.OneCycleAutoLR(
        optimizer,
        max_lr=0.1,
        total_steps=_SYNC_EVERY,
        ensemble_lr_spread_ratio=_SPREAD,
        model_sync_interval=_SYNC_EVERY,
        model=parallel,
    )
    record = None
    for _ in range(_SYNC_EVERY):
        inputs = torch.randn(16, 8, generator=generator).to(device)
        loss = parallel(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        record = scheduler.step(loss)
    assert record is not None
    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()
    everybody = find_replicas("doctor", device=device).gather(weights)
    return Finding(
        where=where,
        measured=record.distance_measured,
        predicted=record.distance_predicted,
        equal_after=all(theirs == weights for theirs in everybody),
    )


def _local(timeout: float) -> Finding:
    with LocalProcesses(2) as ranks:
        finding: Finding = ranks.run(examine, "2 gloo processes on this machine", timeout=timeout)[0]
    return finding


def _launched(timeout: float) -> Finding:
    with launched_group(timeout) as (backend, device):
        rank = int(launch_variables()["RANK"])
        return examine(rank, f"the {launched_ranks()} {backend} ranks of this launch", device)


def _surroundings() -> Table:
    view = Table.grid(padding=(0, 2))
    view.add_row("hdet", hdet.__version__)
    view.add_row("python", platform.python_version())
    view.add_row("torch", torch.__version__)
    view.add_row("CPU", f"{os.cpu_count()} cores")
    names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    view.add_row("CUDA", ", ".join(f"{i}: {name}" for i, name in enumerate(names)) or "no devices")
    view.add_row(
        "backends", ", ".join(f"{n} {'yes' if y else 'no'}" for n, y in available_backends().items())
    )
    variables = " ".join(f"{name}={value}" for name, value in launch_variables().items())
    view.add_row("launcher", variables or "none (no RANK, WORLD_SIZE, MASTER_ADDR)")
    return view


def _prose(finding: Finding) -> str:
    farthest = f"{max(finding.measured):.4g} from the mean (predicted: {max(finding.predicted):.4g})"
    if finding.healthy:
        return (
            f"Replicas can diverge here. On {finding.where}, after {_SYNC_EVERY} steps with spread 1/9, the "
            f"farthest is {farthest}; after converge all weights are equal bit for bit."
        )
    if not finding.apart:
        return (
            f"Replicas cannot diverge here. On {finding.where}, after {_SYNC_EVERY} steps with spread 1/9, "
            f"the farthest is {farthest}: something undoes the fan-out."
        )
    return (
        f"Replicas cannot be averaged here. On {finding.where} they diverge, the farthest is {farthest}, but "
        "after converge their weights are not equal bit for bit."
    )
