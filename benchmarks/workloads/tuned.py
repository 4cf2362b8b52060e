"""Fine-tuning: charlm's model, trained on Shakespeare before, goes on with sentences about films.

Either all weights are trained, or, behind each matrix of the blocks, two narrow ones (LoRA, arXiv:2106.09685)
while all else is frozen. The sentences are read as characters, less the few that Shakespeare's text lacks,
and fall into parts as charlm's text does. The first training does not hang on a run's seed, and is done once
for each machine: its weights are kept in the system's folder for temporary files.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

import benchmarks.workloads.charlm as charlm
import benchmarks.workloads.sentences as sentences
from benchmarks.workloads.base import Workload, at_scale, data_file, generator, seeded

__all__ = ["LowRank", "make", "make_lora"]

_RANK = 8
_SIZES = {"cpu": replace(charlm.SIZES["cpu"], steps=400), "gpu": replace(charlm.SIZES["gpu"], steps=1500)}
# Of the training before.
_STEPS, _LR, _SEED = {"cpu": 800, "gpu": 1500}, 1e-2, 0


class LowRank(nn.Module):
    """A frozen layer, and two narrow ones beside it, the second of which begins at zero; LoRA."""

    def __init__(self, frozen: nn.Linear, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.frozen = frozen
        self.down = nn.Linear(frozen.in_features, _RANK, bias=False)
        self.up = nn.Linear(_RANK, frozen.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        changed: Tensor = self.frozen(x) + self.scale * self.up(self.down(x))
        return changed


def make(scale: str = "cpu", device: str = "cpu", folder: str | Path | None = None) -> Workload:
    """All weights are trained; the files are sought where :func:`.base.data_file` says."""
    task, pretrained = _task("charlm-tuned", scale, device, folder)
    return replace(task, build=lambda seed: pretrained())


def make_lora(scale: str = "cpu", device: str = "cpu", folder: str | Path | None = None) -> Workload:
    """Only :class:`LowRank` matrices are trained, which the seed draws."""
    task, pretrained = _task("charlm-lora", scale, device, folder)

    def build(seed: int) -> nn.Module:
        model = pretrained().requires_grad_(False)
        with seeded(seed):
            for block in model.blocks:
                assert isinstance(block, charlm.Block)
                block.query_key_value = LowRank(block.query_key_value)  # type: ignore[assignment]
                block.attended = LowRank(block.attended)  # type: ignore[assignment]
                block.mlp[0], block.mlp[2] = LowRank(block.mlp[0]), LowRank(block.mlp[2])  # type: ignore[arg-type]
        return model.to(device)

    return replace(task, build=build)


def _task(
    name: str, scale: str, device: str, folder: str | Path | None
) -> tuple[Workload, Callable[[], charlm.GPT]]:
    """The second task, and a function that gives the model of the first, trained."""
    size, steps = at_scale(_SIZES, scale), at_scale(_STEPS, scale)
    first = data_file(charlm.FILE, folder).read_text(encoding="utf-8")
    alphabet = sorted(set(first))
    labelled = sentences.load(data_file(sentences.FILE, folder))
    # The file goes by labels, of which every block is to hold both.
    order = torch.randperm(len(labelled), generator=generator(0, "tuned order")).tolist()
    second = "\n".join(labelled[row][1] for row in order)
    task = charlm.on_tokens(name, charlm.coded(second, alphabet), len(alphabet), size, device)
    before = charlm.on_tokens(
        "before", charlm.coded(first, alphabet), len(alphabet), replace(size, steps=steps), device
    )

    kind = torch.device(device).type
    told = "/".join(map(str, (before.steps, size, _LR, _SEED, kind, torch.__version__, first)))
    digest = hashlib.sha256(told.encode()).hexdigest()[:16]
    cache = Path(tempfile.gettempdir()) / f"hdet_charlm_{scale}_{kind}_{digest}.pt"
    _kept(cache, lambda: _trained(before))
    weights = torch.load(cache, map_location=device, weights_only=True)

    def pretrained() -> charlm.GPT:
        model = charlm.build(_SEED, len(alphabet), size).to(device)
        model.load_state_dict(weights)
        return model

    return task, pretrained


def _trained(workload: Workload) -> dict[str, Tensor]:
    model = workload.build(_SEED)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LR, fused=True)
    scheduler = OneCycleLR(optimizer, _LR, workload.steps, cycle_momentum=False)
    for batch in islice(workload.batches(_SEED), workload.steps):
        optimizer.zero_grad()
        workload.loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        scheduler.step()
    return {name: weight.cpu() for name, weight in model.state_dict().items()}


def _kept(cache: Path, make: Callable[[], object]) -> None:
    """Make the file unless it is there; of several processes that want it one makes it, the others wait."""
    lock = cache.with_suffix(".lock")
    while not cache.exists():
        try:
            # Its content is who holds it.
            with lock.open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            if _left_behind(lock):
                lock.unlink(missing_ok=True)
            time.sleep(0.1)
            continue
        try:
            # Another may have come and gone since the look at it.
            if not cache.exists():
                _write(cache, make())
        finally:
            lock.unlink(missing_ok=True)


def _left_behind(lock: Path) -> bool:
    """Whether the process that made it has ended without taking it away."""
    try:
        holder = lock.read_text()
        if holder:
            os.kill(int(holder), 0)
    except ProcessLookupError:
        return True
    except FileNotFoundError:
        pass
    return False


def _write(cache: Path, made: object) -> None:
    # Written aside and renamed: a process that starts meanwhile sees the whole file or none.
    handle, aside = tempfile.mkstemp(dir=cache.parent, prefix=cache.stem)
    with os.fdopen(handle, "wb") as file:
        torch.save(made, file)
    os.replace(aside, cache)
