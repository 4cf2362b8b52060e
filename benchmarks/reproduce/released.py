"""What the authors' released scheduler does, told by running the reader's copy of it.

Two ranks in DDP train a tiny model three times, on the same batches, with the loop of the authors' README:
with torch's OneCycleLR, with their ``OneCycleAutoLR`` and auto-LR off, and with it on. Weights are compared
bit for bit after every step. Nothing of their code is part of this package.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import OneCycleLR

from benchmarks import machine
from benchmarks.reproduce.tasks import digest
from hdet.replicas.launch import LocalProcesses

__all__ = ["compared", "run", "sentences"]

CLASS = "OneCycleAutoLR"
RANKS, STEPS, WARM_UP, SYNC_EVERY, MAX_LR = 2, 400, 200, 20, 9e-4
#: Seconds for all three trainings together, which take a few.
_LIMIT = 120.0

#: Of one rank: the weights after each step, as bytes, and the learning rate of each.
Trace = tuple[list[bytes], list[float]]


def run(code: Path, on_progress: Callable[[str], None] | None = None) -> dict[str, Any]:
    """Run the file ``code``, which has the class ``OneCycleAutoLR``, and compare; plain JSON."""
    if not code.is_file():
        raise FileNotFoundError(f"--code must be the authors' file with {CLASS}, got {code}: no file")
    _scheduler_of(code)
    say = on_progress or (lambda _: None)
    deadline = time.monotonic() + _LIMIT
    paths = {}
    with LocalProcesses(RANKS) as ranks:
        for arm in ("plain", "off", "on"):
            say(f"two ranks, {arm}")
            left = max(1.0, deadline - time.monotonic())
            paths[arm] = ranks.run(_train, arm, str(code.resolve()), timeout=left)
    found = compared(**paths)
    about = machine.about("reproduce", quick=False, device="cpu")
    about["command"] = f"python -m benchmarks reproduce released --code {code.name}"
    settings: dict[str, Any] = {"replicas": RANKS, "steps": STEPS, "sync_every": SYNC_EVERY}
    settings |= {"auto_lr_warmup_steps": WARM_UP, "max_lr": MAX_LR, "spread": 1 / 9, "optimizer": "Adam"}
    about |= {"name": "released", "code_sha256": digest(code), "settings": machine.rounded(settings)}
    return {**about, **machine.rounded(found), "sentences": sentences(found)}


def compared(plain: Sequence[Trace], off: Sequence[Trace], on: Sequence[Trace]) -> dict[str, Any]:
    """From the paths of all ranks: the first step whose weights differ, and how the learning rate ends.

    A growth is the ranks' mean learning rate in the last step over that in step S_w.
    """
    return {
        "off_differs_from_step": _first_difference(plain, off),
        "on_differs_from_step": _first_difference(plain, on),
        "growth": _growth(on),
        "plain_growth": _growth(plain),
    }


def _growth(ranks: Sequence[Trace]) -> float:
    return sum(lrs[-1] for _, lrs in ranks) / sum(lrs[WARM_UP - 1] for _, lrs in ranks)


def _first_difference(one: Sequence[Trace], other: Sequence[Trace]) -> int | None:
    """The first step, from 1, after which the weights of a rank differ; None if there is none."""
    steps = zip(*(weights for weights, _ in one), *(weights for weights, _ in other), strict=True)
    unequal = (step for step, same in enumerate(steps, 1) if same[: len(one)] != same[len(one) :])
    return next(unequal, None)


def sentences(found: Mapping[str, Any]) -> list[str]:
    """What was found, in three."""
    off, on = found["off_differs_from_step"], found["on_differs_from_step"]
    same = f"the weights of all {STEPS} steps are equal bit for bit"
    return [
        "With auto-LR off the released scheduler, beside plain DDP with torch's OneCycleLR: "
        + (f"{same}." if off is None else f"the weights differ from step {off} on."),
        "With auto-LR on: "
        + (
            f"{same}."
            if on is None
            else f"bit for bit plain DDP before step {on}, different from there on (S_w is {WARM_UP})."
        ),
        f"From step S_w to the last the learning rate changed by a factor of {found['growth']:.3g}, "
        f"plain OneCycleLR's by {found['plain_growth']:.3g}.",
    ]


def _train(rank: int, arm: str, code: str) -> Trace:
    """The loop of the authors' README, on one rank."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)))
    optimizer = torch.optim.Adam(model.parameters())
    step: Callable[[torch.Tensor], object]
    if arm == "plain":
        plain = OneCycleLR(optimizer, MAX_LR, STEPS)

        def step(loss: torch.Tensor) -> None:
            plain.step()

    else:
        step = _scheduler_of(Path(code))(
            optimizer,
            max_lr=MAX_LR,
            total_steps=STEPS,
            ensemble_lr_spread_ratio=1 / 9,
            model_sync_interval=SYNC_EVERY,
            auto_lr_warmup_steps=WARM_UP,
            enable_auto_lr=arm == "on",
            rank=dist.get_rank(),
            world_size=dist.get_world_size(),
        ).step
    draw = torch.Generator().manual_seed(rank)
    weights, lrs = [], []
    for _ in range(STEPS):
        x = torch.randn(16, 4, generator=draw)
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        loss.backward()
        lrs.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        step(loss)
        optimizer.zero_grad()
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]).numpy().tobytes())
    return weights, lrs


def _scheduler_of(code: Path) -> Any:
    """The class in the reader's file."""
    spec = importlib.util.spec_from_file_location("released_one_cycle", code)
    if spec is None or spec.loader is None:
        raise ValueError(f"--code must be a Python file, got {code}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, CLASS):
        raise ValueError(f"--code must be the authors' file with the class {CLASS}, got {code} without it")
    return getattr(module, CLASS)
