"""A Llama of two layers, 32 wide, that learns to count, and what runs it on ranks.

Nothing is imported from a framework before it is needed: pytest collects without them.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

import hdet
from tests.distributed.classifier import listening

VOCABULARY, LENGTH = 32, 16
SAMPLES = 520
#: Beyond any bound that a run may need; a small batch keeps it short.
BATCH = 4


def model() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=LENGTH,
        )
    )


def data(start: int = 0, count: int = SAMPLES, *, ragged: bool = False) -> list[dict[str, Any]]:
    """Sequences that go up by 1, 2 or 3, with some noise; ``n`` is the number of a sample."""
    rows = []
    for n in range(start, start + count):
        draw = torch.Generator().manual_seed(n)
        first, stride = (int(torch.randint(1, high, (), generator=draw)) for high in (VOCABULARY, 4))
        ids = (first + stride * torch.arange(LENGTH)) % VOCABULARY
        noisy = torch.rand(LENGTH, generator=draw) < 0.1
        ids = torch.where(noisy, torch.randint(0, VOCABULARY, (LENGTH,), generator=draw), ids)
        labels = ids.clone()
        if ragged:
            labels[LENGTH // 2 + n % 7 :] = -100
        rows.append({"input_ids": ids, "labels": labels, "n": n})
    return rows


PROBE = (100_000, 32)
#: From this step on AutoTune takes it that a window did not improve.
STANDS = 25


def collate(seen: list[list[int]] | None, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Batches; those of training are written down."""
    numbers = [row["n"] for row in rows]
    if seen is not None and numbers[0] < PROBE[0]:
        seen.append(numbers)
    return {key: torch.stack([row[key] for row in rows]) for key in ("input_ids", "labels")}


def optimizer(of: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(of.parameters(), lr=1e-3, weight_decay=0.0)


def one_cycle(*, rounds: int = 10, spread: float = 0.3, **more: Any) -> Any:
    """The published method, auto-LR on from the first round."""
    settings = {
        "max_lr": 3e-3,
        "ensemble_lr_spread_ratio": spread,
        "model_sync_interval": rounds,
        "enable_auto_lr": True,
        "auto_lr_warmup_steps": 0,
        "loss_scale": 0.05,
        "cycle_momentum": False,
    }
    return partial(hdet.OneCycleAutoLR, **{**settings, **more})


def digest(of: nn.Module) -> str:
    """Of all weights, bit for bit."""
    found = hashlib.sha256()
    for parameter in of.parameters():
        whole = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
        found.update(whole.detach().numpy().tobytes())
    return found.hexdigest()[:16]


def flat(of: nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in of.parameters()]).clone()


class Watched:
    """What a rank had in every step of a run, and what hdet said on it."""

    def __init__(self) -> None:
        self.gradients: list[torch.Tensor] = []
        self.decays: list[float] = []
        self.weights: list[torch.Tensor] = []
        self.alone: list[bool] = []
        self.heard: list[str] = []

    def before(self, model: nn.Module, optimizer: Any) -> None:
        """Called within the optimizer's step, where groups hold the replica's own values."""
        self.gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]).clone())
        self.decays.append(optimizer.param_groups[0]["weight_decay"])

    def after(self, model: nn.Module, door: Any) -> None:
        """Called after a step."""
        self.weights.append(flat(model))
        self.alone.append(getattr(door, "trains_alone", False))
        if len(self.weights) == STANDS and isinstance(door, hdet.AutoTune):
            door._horizon.stood = True

    @contextmanager
    def listening(self) -> Iterator[None]:
        log = logging.getLogger("hdet")
        log.setLevel(logging.INFO)
        try:
            with listening() as self.heard:
                yield
        finally:
            log.setLevel(logging.NOTSET)

    def told(self, door: Any, model: nn.Module) -> dict[str, Any]:
        synced = [record.step for record in door.history]
        return {**vars(self), "synced": synced, "values": door.values, "end": flat(model)}


def assert_tuned_apart(
    first: dict[str, Any], second: dict[str, Any], caller: str, *, shares_first: bool = True
) -> None:
    """Two ranks of AutoTune: DDP averages gradients until a window does not improve; then each has its own
    gradients and values, one model at every sync."""
    assert first["synced"] == second["synced"]
    assert len(first["synced"]) >= 4
    switch = first["alone"].index(True) + 1 if shares_first else 0
    assert (switch in first["synced"]) == shares_first
    for rank in (first, second):
        # After the last step finish_ may have been called, and nobody trains any more.
        assert rank["alone"][:-1] == [step >= switch for step in range(1, len(rank["alone"]))]
    for step, (mine, theirs) in enumerate(zip(first["weights"], second["weights"], strict=True), start=1):
        assert torch.equal(mine, theirs) == (step <= switch or step in first["synced"]), step
    for step, (mine, theirs) in enumerate(zip(first["gradients"], second["gradients"], strict=True), start=1):
        assert torch.equal(mine, theirs) == (step <= switch), step
    assert torch.equal(first["end"], second["end"])
    assert "weight_decay" in first["values"]
    differ = [mine != theirs for mine, theirs in zip(first["decays"], second["decays"], strict=True)]
    assert any(differ)
    assert not any(differ[:switch])
    told = [line for line in first["heard"] if "gradients of its own" in line]
    begin = "from the first window on that does not improve " if shares_first else ""
    assert told == [
        f"{caller}: {begin}each of 2 processes trains on gradients of its own, which DDP does not average; "
        "hdet averages the weights at every sync"
    ]
    assert not any("gradients of its own" in line for line in second["heard"])


@contextmanager
def launched(rank: int, size: int) -> Iterator[None]:
    """As torchrun would have started this rank; the process group is there already."""
    from accelerate.state import AcceleratorState, GradientState

    def reset() -> None:
        AcceleratorState._reset_state(reset_partial_state=True)
        GradientState._reset_state()

    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 29500, "OMP_NUM_THREADS": 1}
    reset()
    try:
        if size > 1:
            os.environ.update({name: str(value) for name, value in told.items()})
        yield
    finally:
        for name in told:
            os.environ.pop(name, None)
        os.environ["OMP_NUM_THREADS"] = "1"
        reset()


def arguments(folder: Path, **settings: Any) -> Any:
    """Quiet ones, on the CPU, that save and log nothing unless they are told to."""
    from transformers import TrainingArguments
    from transformers.utils import logging

    logging.disable_progress_bar()
    defaults = {
        "max_steps": 60,
        "per_device_train_batch_size": BATCH,
        "per_device_eval_batch_size": BATCH,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,
        "max_grad_norm": 0.0,
        "seed": 1,
    }
    return TrainingArguments(str(folder), **{**defaults, **settings})
