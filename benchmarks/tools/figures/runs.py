"""Two small runs of AutoLR, with every window that they judged: one that goes well, one on too few data."""

from __future__ import annotations

import logging
import math
import string
from collections.abc import Iterable
from dataclasses import asdict
from itertools import islice
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from benchmarks import machine
from benchmarks.workloads import Batch, Workload, digits
from benchmarks.workloads.base import ByNumber, generator, in_parts, shuffled
from benchmarks.workloads.charlm import Size, coded, on_tokens
from hdet.autolr.auto_lr import AutoLR
from hdet.autolr.prior import usual_rate
from hdet.history import SyncRecord
from hdet.probes import Probe

__all__ = ["train"]

_STEPS = {"text": 400, "digits": 1000}
#: The first one that anybody would try; three others were looked at, and go back and restart as well.
_SEED = 0
_IMAGES, _PROBE_IMAGES, _BATCH, _PROBE_BATCH = 150, 512, 32, 64
_WRONG, _CLASSES = 0.2, 10
#: Of what a window showed, what is kept as it is.
_SHOWN = (
    *("action", "why", "speed", "lag", "tolerated", "gap", "progress"),
    *("loss_previous", "loss_mean", "loss_end"),
)


def train(most: int | None = None) -> dict[str, Any]:
    """Both runs, as the JSON file keeps them; ``most`` cuts them short."""
    about = machine.about("decisions", quick=False, device="cpu")
    about["command"] = "python -m benchmarks.tools.figures --train"
    torch.set_num_threads(1)  # tiny models: threads would wait for each other
    level = logging.getLogger("hdet").level
    logging.getLogger("hdet").setLevel(logging.ERROR)  # what is said is in the windows
    try:
        return {**about, "runs": {"text": _text(most), "digits": _digits(most)}}
    finally:
        logging.getLogger("hdet").setLevel(level)


def _text(most: int | None) -> dict[str, Any]:
    """The next character of Python's help texts, by a GPT of thirty thousand weights."""
    raw = "\n".join(topics[name] for name in sorted(topics))
    alphabet = sorted(set(string.printable) & set(raw))
    size = Size(steps=500, layers=2, width=32, heads=2, context=32, batch=16, held_out_windows=512)
    work = on_tokens("Python's help texts", coded(raw, alphabet), len(alphabet), size, "cpu")
    model = work.build(_SEED).train()
    probe = Probe(lambda batch: work.loss(model, batch), ByNumber(work.probe(_SEED)), model=model)
    return _run("text", work, model, AdamW(model.parameters()), probe, most)


def _digits(most: int | None) -> dict[str, Any]:
    """150 digits with a fifth of their labels wrong, which can be learned by heart alone."""
    work = _few_digits()
    model = work.build(_SEED).train()
    held_out = list(work.probe(_SEED))
    probe = Probe(lambda batch: work.loss(model, batch), held_out, model=model)
    return _run("digits", work, model, SGD(model.parameters(), lr=0.1, momentum=0.9), probe, most)


def _few_digits() -> Workload:
    data, draw = digits.load(), generator(0, "figures")

    def noisy(labels: Tensor) -> Tensor:
        others = torch.randint(_CLASSES, labels.shape, generator=draw)
        return torch.where(torch.rand(labels.shape, generator=draw) < _WRONG, others, labels)

    images, labels, end = data.train_images, noisy(data.train_labels), _IMAGES + _PROBE_IMAGES
    aside = in_parts((images[_IMAGES:end], labels[_IMAGES:end]), _PROBE_BATCH)
    return Workload(
        name="digits, few and noisy",
        steps=_STEPS["digits"],
        build=lambda seed: digits.build_model(seed, width=128),
        loss=_loss,
        batches=lambda seed: shuffled(
            (images[:_IMAGES], labels[:_IMAGES]), _BATCH, generator(seed, "figures")
        ),
        probe=lambda _: iter(aside),
        held_out=((data.test_images, noisy(data.test_labels)),),
    )


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    return digits.cross_entropy(*digits.outputs(model, batch))


def _run(
    name: str, work: Workload, model: nn.Module, optimizer: Optimizer, probe: Probe, most: int | None
) -> dict[str, Any]:
    steps = min(_STEPS[name], most or _STEPS[name])
    auto = AutoLR(optimizer, total_steps=steps, probe=probe)
    windows: list[dict[str, Any]] = []
    rates: list[float] = []
    for batch in islice(work.batches(_SEED), steps):
        optimizer.zero_grad()
        work.loss(model, batch).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        rates += auto.get_last_lr()
        record = auto.step()
        if record is not None:
            windows.append(_window(record, windows, rates[-1], auto))
        if auto.finished:
            break
    ended = work.evaluate(model)
    handed = auto.finish_()
    return {
        "task": work.name,
        "optimizer": type(optimizer).__name__,
        "seed": _SEED,
        "steps": steps,
        "rates": _plain(rates),
        "highest_rate": _plain(max(rates)),
        "usual_rate": _plain(usual_rate(windows[0]["speed"] / steps / windows[0]["rate"])),
        "windows": windows,
        "handed": None if handed is None else _plain(asdict(handed)),
        "test_loss_at_the_end": _plain(ended),
        "test_loss_handed": _plain(work.evaluate(model)),
    }


def _window(
    record: SyncRecord, before: Iterable[dict[str, Any]], rate: float, auto: AutoLR
) -> dict[str, Any]:
    seen, *_ = record.horizon
    best = auto.best
    return {
        "began": max((window["step"] for window in before), default=0),
        "step": record.step,
        "rate": _plain(rate),
        "rate_after": _plain(auto.get_last_lr()[0]),
        **{name: _plain(getattr(seen, name)) for name in _SHOWN},
        "event": "; ".join(record.events),
        "kept": None if best is None else f"{best.kind} of step {best.step}",
    }


def _plain(value: Any) -> Any:
    """Five digits of a number, which JSON can hold; whatever is none stays."""
    if isinstance(value, float):
        return float(f"{value:.5g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value
