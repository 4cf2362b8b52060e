"""A quiet step does little, and passes few files: the package's own calls are counted."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any, TypeVar

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import hdet

T = TypeVar("T")
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


class Reads(TorchDispatchMode):
    """Counts values that the host asks for: each waits for the device."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def reads_of(act: Any) -> int:
    with Reads() as reads:
        act()
    return reads.count


def seen_of_steps(
    look: Callable[[Any], T], optimizer: type[torch.optim.Optimizer]
) -> tuple[list[T], list[T]]:
    """What ``look`` sees of AutoLR's steps: of quiet ones, without a window's first, and of syncs."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    data = torch.randn(340, 32, 8)

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        return (model(x) - x.sum(1, keepdim=True)).square().mean()

    trained = optimizer(model.parameters())
    auto = hdet.AutoLR(trained, total_steps=300, probe=hdet.Probe(loss_of, data[300:], model=model))
    quiet, syncs = [], []
    began = True
    for x in data[:220]:
        loss = loss_of(x)
        loss.backward()
        records: list[Any] = []

        def step(loss: torch.Tensor = loss, records: list[Any] = records) -> None:
            trained.step()
            trained.zero_grad()
            records.append(auto.step(loss))

        found = look(step)
        if records[0] is not None:
            syncs.append(found)
        elif not began:
            quiet.append(found)
        began = records[0] is not None
    return quiet, syncs


def test_a_quiet_step_and_a_sync_make_few_calls() -> None:
    """Of a sync 25 files are the goal, and not reached yet."""
    quiet, syncs = seen_of_steps(calls_of, torch.optim.AdamW)
    last = quiet[-100:]
    assert median(sum(found.values()) for found in last) <= 17
    assert median(len(found) for found in last) <= 9
    assert max(sum(found.values()) for found in last) <= 26, "four times in a window it looks at the weights"
    assert sum(syncs[-1].values()) <= 288
    assert len(syncs[-1]) <= 27


def test_a_quiet_step_asks_for_no_value_but_when_it_looks_at_the_weights() -> None:
    """But the loss, which lies with the host. Four times in a window it looks: at two values here; on a GPU
    at what the look before has left with the host."""
    quiet, syncs = seen_of_steps(reads_of, torch.optim.SGD)  # Adam asks for its own step
    assert set(quiet) == {1, 2, 3}
    assert sum(count > 1 for count in quiet) <= 4 * (len(syncs) + 1)
