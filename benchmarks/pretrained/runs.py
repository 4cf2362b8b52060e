"""One run, from the pretrained weights to what it leaves on rows that nothing has seen.

The recipe is that of the authors and of transformers' Trainer alike: AdamW without decay, gradients clipped
at norm 1, the rate coming down linearly to zero without a warm-up. An arm changes the rate and its schedule.
"""

from __future__ import annotations

import io
import logging
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim import AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR
from torch.utils.data import DataLoader

import hdet
from benchmarks.gradients import average_gradients
from benchmarks.pretrained.lite import load_lite
from benchmarks.pretrained.models import add_lora_, load
from benchmarks.pretrained.plan import AS_IT_RAN, FACTORS, IMAGES, YIELDS, Run, factor_arm
from benchmarks.rows import Row, failure
from hdet.autolr import policy
from hdet.replicas.launch import LocalProcesses

__all__ = ["FOLDER", "REPLICAS", "execute"]

#: Where models and data lie: this variable's folder.
FOLDER = "HDET_PRETRAINED"
REPLICAS = 4
_BATCH = {True: 16, False: 32}  # of yields, of texts and pictures
_DROPOUTS = (0.05, 0.8)
#: The authors tuned on FullCV_01: its first rows for training, the others of its training part to judge by.
_TUNED_ON = 2373
_LIMIT = 550.0


@dataclass(frozen=True)
class Data:
    """A task on the device, yields in standard units of the training rows. Of pictures, tokens are bytes."""

    tokens: Tensor
    lengths: Tensor
    labels: Tensor
    train: Tensor
    test: Tensor
    scale: tuple[float, float] | None

    def outputs(self, model: nn.Module, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The model's logits, and the labels."""
        given, labels = self.batch(rows)
        found = model(**given)
        return getattr(found, "logits", found).float(), labels

    def batch(self, rows: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Texts are padded to the longest."""
        there = rows.to(self.tokens.device)
        if self.tokens.dtype == torch.uint8:
            return {"images": self.tokens[there]}, self.labels[there]
        longest = 8 * math.ceil(int(self.lengths[rows].max()) / 8)
        tokens = self.tokens[there, :longest]
        return {"input_ids": tokens, "attention_mask": (tokens != 0).long()}, self.labels[there]


def execute(run: Run) -> Row:
    """The run's result, or its error; never raises."""
    try:
        return _ranks().run(_execute, run, timeout=_LIMIT)[0] if run.arm == "autotune" else _execute(0, run)
    except Exception as error:
        return failure(run, error)


@cache
def _ranks() -> LocalProcesses:
    """Started once in a process: that takes longer than some runs."""
    return LocalProcesses(REPLICAS)


def _folder() -> Path:
    return Path(os.environ.get(FOLDER, "runs/pretrained"))


def _data(run: Run) -> Data:
    with np.load(_folder() / f"{run.task}.npz") as file:
        tokens, lengths, labels = file["tokens"], file["lengths"], file["labels"]
        order, train = file["orders"][run.seed % len(file["orders"])], int(file["train"])
    rows, test, scale = order[:train], order[train:], None
    if run.samples:
        rows = np.random.RandomState(run.seed).permutation(rows)[: run.samples]
    if run.task in YIELDS:
        if run.held:
            rows, test = rows[:_TUNED_ON], rows[_TUNED_ON:]
        scale = float(labels[rows].mean()), float(labels[rows].std(ddof=1))
        labels = ((labels - scale[0]) / scale[1]).astype(np.float32)
    return Data(
        torch.from_numpy(tokens if run.task in IMAGES else tokens.astype(np.int64)).to(run.device),
        torch.from_numpy(lengths.astype(np.int64)),
        torch.from_numpy(labels).to(run.device),
        torch.from_numpy(rows.astype(np.int64)),
        torch.from_numpy(test.astype(np.int64)),
        scale,
    )


def _seed(run: Run, number: int) -> None:
    torch.manual_seed(run.seed + 1000 * number)  # of the GPU's generators as well


def _model(run: Run, data: Data) -> nn.Module:
    name = {"buchwald-hartwig": "yield-bert", "suzuki": "yield-bert-ft"}.get(run.task, "minilm")
    labels = 1 if data.scale else int(data.labels.max()) + 1
    if run.task in IMAGES:
        flips = run.task == "photos"  # a character that is turned is another one
        lite = load_lite(_folder() / "efficientnet-lite0.pt", labels, run.dropout, flips)
        return lite.to(run.device).train()
    model = load(_folder() / f"{name}.pt", labels, run.dropout)
    if run.lora:
        add_lora_(model)
    return model.to(run.device).train()


def _execute(rank: int, run: Run) -> Row:
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    torch.backends.cuda.enable_cudnn_sdp(False)  # it compiles for every length
    logging.getLogger("hdet").setLevel(logging.WARNING)
    began = time.perf_counter()
    data = _data(run)
    _seed(run, 0)  # all replicas begin alike
    model = _model(run, data)

    def loss_of(rows: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=run.device == "cuda"):
            logits, labels = data.outputs(model, rows)
        return mse_loss(logits.squeeze(-1), labels) if data.scale else cross_entropy(logits, labels)

    _seed(run, rank)
    loader: Any = DataLoader(data.train.tolist(), _BATCH[data.scale is not None], shuffle=True)  # type: ignore[arg-type]
    test = data.test
    probe = None
    if run.arm.startswith("auto") or (run.held and not data.scale):
        probe, loader = hdet.Probe.set_aside(loss_of, loader, model=model, seed=run.seed)
    if run.held and not data.scale:
        rest = set(torch.cat(list(loader)).tolist())
        test = torch.tensor([row for row in data.train.tolist() if row not in rest])
        _seed(run, rank)
    steps = run.epochs * len(loader)
    arm = _ARMS[run.arm](run, model, probe, steps)
    share = _SHARES.get(run.arm)
    with nullcontext() if share is None else patch.object(policy, "fine_tuning", lambda *_: share):
        taken, found, course = _train(run, model, loss_of, loader, arm, steps)
    trained = time.perf_counter()
    end = _measure(model, data, test)
    best = arm.auto.finish_() if arm.auto is not None else None
    left = _measure(model, data, test) if best else end
    return {
        **asdict(run),
        **left,
        "end": end,
        "found": found,
        "values": dict(arm.auto.values) if run.arm == "autotune" else {},
        "chosen_step": best.step if best else taken,
        "chosen_kind": best.kind if best else "end",
        "course": course,
        "steps": steps,
        "taken": taken,
        "seconds": round(trained - began, 2),
        "seconds_after": round(time.perf_counter() - trained, 2),
    }


@dataclass
class Arm:
    """What follows a step, and hdet's search if it is one."""

    optimizer: Any
    after: Any
    auto: Any = None


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in model.parameters() if weight.requires_grad]


def _adamw(model: nn.Module, rate: float) -> AdamW:
    return AdamW(_trained(model), lr=rate, weight_decay=0.0, fused=True)


def _linear(run: Run, model: nn.Module, probe: Any, steps: int) -> Arm:
    assert run.rate is not None
    optimizer = _adamw(model, run.rate)
    schedule = LambdaLR(optimizer, lambda step: max(0.0, 1 - step / steps))
    return Arm(optimizer, schedule.step)


def _prodigy(run: Run, model: nn.Module, probe: Any, steps: int) -> Arm:
    """As its README recommends."""
    with redirect_stdout(io.StringIO()):
        optimizer = import_module("prodigyopt").Prodigy(
            _trained(model), lr=1.0, weight_decay=0.0, safeguard_warmup=True
        )
    return Arm(optimizer, CosineAnnealingLR(optimizer, T_max=steps).step)


def _autolr(run: Run, model: nn.Module, probe: Any, steps: int) -> Arm:
    optimizer = _adamw(model, 1e-3)  # which is not read
    auto = hdet.AutoLR(optimizer, probe=probe, total_steps=steps)
    return Arm(optimizer, auto.step, auto)


def _autotune(run: Run, model: Any, probe: Any, steps: int) -> Arm:
    """Gradients are shared, as in DDP, until the loss stands; then dropout is explored."""
    layers = [name for name, module in model.named_modules() if isinstance(module, nn.Dropout)]
    hidden = [name for name in layers if not name.endswith("attention.self.dropout")]
    optimizer = _adamw(model, 1e-3)
    dropout = hdet.Dropout(model, bounds=_DROPOUTS, layers=hidden)
    auto = hdet.AutoTune(
        optimizer, [dropout], probe=probe, total_steps=steps, gradients="switch", seed=run.seed
    )
    return Arm(optimizer, auto.step, auto)


_SHARES = {factor_arm(factor): factor for factor in FACTORS}
_ARMS = {
    **dict.fromkeys(_SHARES, _autolr),
    **dict.fromkeys(("published", "default", "trial", "tpe 8", "tpe 30", "usual", "sweep", "swept"), _linear),
    **{"prodigy": _prodigy, "autolr": _autolr, "autotune": _autotune},
    **{f"published{AS_IT_RAN}": _linear, f"autolr{AS_IT_RAN}": _autolr},
}


def _stop_dropping_(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0


def _endless(loader: Any) -> Iterator[Tensor]:
    while True:
        yield from loader


def _train(
    run: Run, model: nn.Module, loss_of: Any, loader: Any, arm: Arm, steps: int
) -> tuple[int, float, list[Any]]:
    """Steps taken, the highest rate, and of every window its end: step, rate, held-out loss, action."""
    highest, course, weights = 0.0, [], _trained(model)
    for taken, rows in zip(range(1, steps + 1), _endless(loader), strict=False):
        if run.arm.endswith(AS_IT_RAN) and taken == len(loader) + 1:
            _stop_dropping_(model)
        arm.optimizer.zero_grad()
        loss_of(rows).backward()
        if run.arm == "autotune" and arm.auto.switches and not arm.auto.trains_alone:
            average_gradients(model)
        nn.utils.clip_grad_norm_(weights, 1.0, foreach=True)
        arm.optimizer.step()
        group = arm.optimizer.param_groups[0]
        highest = max(highest, group["lr"] * group.get("d", 1.0))
        record = arm.after()
        if record is not None:
            (window,) = record.horizon
            course.append([record.step, group["lr"], window.loss_mean, window.action])
            course[-1] += [arm.auto.values["dropout"]] if run.arm == "autotune" else []
        if arm.auto is not None and arm.auto.finished:
            break
    return taken, highest, [[_short(value) for value in window] for window in course]


def _measure(model: nn.Module, data: Data, rows: Tensor) -> dict[str, float | None]:
    """The loss, and what is told of the task: R² and RMSE in per cent of yield, or accuracy."""
    model.eval()
    outputs = []
    with torch.no_grad():
        for some in _shortest_first(data, rows):
            outputs.append((some, data.outputs(model, some)[0]))
    model.train()
    order = torch.cat([some for some, _ in outputs]).to(data.labels.device)
    logits, labels = torch.cat([found for _, found in outputs]), data.labels[order]
    if data.scale is None:
        right = (logits.argmax(1) == labels).double().mean()
        return _finite({"loss": cross_entropy(logits, labels), "accuracy": right})
    mean, scale = data.scale
    truth, told = (values.double() * scale + mean for values in (labels, logits.squeeze(-1)))
    error = (told.clamp(0, 100) - truth).square().mean()
    return _finite(
        {
            "loss": mse_loss(logits.squeeze(-1), labels),
            "r2": 1 - error / truth.var(correction=0),
            "rmse": error.sqrt(),
        }
    )


def _shortest_first(data: Data, rows: Tensor) -> Sequence[Tensor]:
    return torch.split(rows[data.lengths[rows].argsort()], 256)


def _finite(values: dict[str, Tensor]) -> dict[str, float | None]:
    return {name: float(value) if math.isfinite(value) else None for name, value in values.items()}


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    return value
