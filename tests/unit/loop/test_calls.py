"""A quiet step does little, and passes few files: the package's own calls are counted."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import torch

import hdet

PACKAGE = str(Path(hdet.__file__).parent)


def calls_of(act: Any) -> Counter[str]:
    """How often each file of the package was called, comprehensions aside."""
    found: Counter[str] = Counter()

    def see(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE) and not code.co_name.startswith("<"):
            found[code.co_filename] += 1

    sys.setprofile(see)
    try:
        act()
    finally:
        sys.setprofile(None)
    return found


def test_a_quiet_step_and_a_sync_make_few_calls() -> None:
    """Of a sync 25 files are the goal, and not reached yet."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    data = torch.randn(340, 32, 8)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return (model(x) - x.sum(1, keepdim=True)).square().mean()

    optimizer = torch.optim.AdamW(model.parameters())
    auto = hdet.AutoLR(optimizer, total_steps=300, probe=hdet.Probe(loss_of, data[300:], model=model))
    quiet, syncs = [], []
    began = True
    for x in data[:220]:
        loss = loss_of(x)
        loss.backward()
        records: list[Any] = []

        def step(loss: torch.Tensor = loss, records: list[Any] = records) -> None:
            optimizer.step()
            optimizer.zero_grad()
            records.append(auto.step(loss))

        found = calls_of(step)
        if records[0] is not None:
            syncs.append(found)
        elif not began:
            quiet.append(found)
        began = records[0] is not None
    last = quiet[-100:]
    assert median(sum(found.values()) for found in last) <= 17
    assert median(len(found) for found in last) <= 9
    assert max(sum(found.values()) for found in last) <= 26, "four times in a window it looks at the weights"
    assert sum(syncs[-1].values()) <= 288
    assert len(syncs[-1]) <= 27
