"""``torch.compile`` of the model and of the optimizer's step: nothing of ours is in it, or recompiles it.

A backend that only counts needs no compiler: it is handed a graph for everything that is compiled, once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn

import hdet
from hdet import Probe
from tests.fakes import Alike, Faster
from tests.unit.training import X, network, squared

#: torch's own, of what its compiler imports.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
STEPS = 60
OPTIMIZERS = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Compiled:
    """Training in which one of the two is compiled; how many graphs there were after each step."""

    def __init__(self, what: str, kind: str, *, tensor: bool, eager: bool = False) -> None:
        self.model = network()
        lr: Any = torch.tensor(0.01) if tensor else 0.01
        self.optimizer: torch.optim.Optimizer = OPTIMIZERS[kind](self.model.parameters(), lr=lr)
        self.count = 0
        self._compiled: Any = torch.compile(backend=self._count)
        self._compiles_step = what == "step" and not eager
        self.run: Callable[[Tensor], Tensor] = self._compiled(self.model) if what == "model" else self.model
        self.graphs: list[int] = []

    def _count(self, graph: Any, _: Any) -> Any:
        self.count += 1
        return graph.forward

    def loss(self, x: Tensor) -> Tensor:
        return squared(self.run, x)  # type: ignore[arg-type]

    def search(self) -> hdet.AutoLR:
        probe = Probe(self.loss, X[200:], model=self.model)
        return hdet.AutoLR(self.optimizer, probe=probe, total_steps=STEPS)

    def train(self, scheduler: Any, *, poisoned: int = -1) -> list[Any]:
        records = []
        step = self.optimizer.step  # with what torch's schedulers have put around it
        step = self._compiled(step) if self._compiles_step else step
        for i in range(STEPS):
            self.optimizer.zero_grad()
            loss = self.loss(X[i])
            loss.backward()
            step()
            if i == poisoned:
                with torch.no_grad():
                    self.model[-1].weight.mul_(1e6)
            records.append(scheduler.step(loss.detach()))
            self.graphs.append(self.count)
        return [record for record in records if record]


def test_a_compiled_model_has_two_graphs_one_to_train_and_one_to_probe() -> None:
    run = Compiled("model", "adamw", tensor=False)
    records = run.train(run.search(), poisoned=45)
    assert any(record.horizon[0].action == "back" for record in records), "weights were moved, and led back"
    assert run.graphs[-1] == 2
    assert run.graphs[0] == 1


@pytest.mark.parametrize(
    ("kind", "tensor", "skips"), [("sgd", False, True), ("adamw", True, True), ("sgd", False, False)]
)
def test_a_compiled_step_is_compiled_as_if_alone_and_trains_the_same(
    kind: str, tensor: bool, skips: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A float changes at the second step, which torch takes for a sign that it will again; then no more.
    Also with a torch that has no ``skip``."""
    if not skips:
        monkeypatch.delattr("torch._dynamo.decorators.skip")
    run = Compiled("step", kind, tensor=tensor)
    records = run.train(run.search(), poisoned=45)
    lrs = {record.hyperparameters[0].base_after for record in records}
    assert len(lrs) > 3, "the learning rate has changed all the time"
    assert any(record.horizon[0].action == "back" for record in records)
    assert run.graphs[-1] == (1 if tensor else 2)
    assert not torch._dynamo.utils.counters["graph_break"], "cut at the hooks, not within"
    eager = Compiled("step", kind, tensor=tensor, eager=True)
    eager.train(eager.search(), poisoned=45)
    for a, b in zip(run.model.parameters(), eager.model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("alone", [True, False], ids=["learning rate", "and clip"])
def test_values_that_stand_only_while_the_optimizer_steps_do_not_recompile(alone: bool) -> None:
    """Learning rate and clip of this replica's own, dealt anew at every sync."""
    run = Compiled("step", "sgd", tensor=False)
    explore: list[Any] = [hdet.LearningRate(spread=0.3)]
    explore += [] if alone else [hdet.GradientClip(spread=0.3)]
    options: Any = {"sync_every": 5, "process_group": Alike(), "controller": None, "model": run.model}
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(run.optimizer, STEPS)
    run.train(hdet.Ensemble(run.optimizer, explore, schedule=schedule, **options))
    plain = Compiled("step", "sgd", tensor=False)
    plain.train(_Plain(torch.optim.lr_scheduler.CosineAnnealingLR(plain.optimizer, STEPS)))
    assert run.graphs[-1] <= max(2, plain.graphs[-1])
    assert run.graphs[5] == run.graphs[-1], "nothing is compiled after the first steps"


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1)], ids=["float", "tensor"])
def test_a_quiet_hook_calls_no_python_that_dynamo_would_look_into(lr: Any) -> None:
    """What marks a function to be skipped does not hold for those that it calls."""
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = torch.optim.SGD([weight], lr=lr)
    ensemble = hdet.Ensemble(optimizer, [hdet.LearningRate(spread=0.5)], process_group=Faster())
    optimizer.step()
    ensemble.step()
    within: list[str] = []
    found: list[tuple[str, ...]] = []

    def see(frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_name
        if event == "call" and (within or name in ("_enter", "_leave")):
            within.append(name)
            found.append(tuple(within))
        elif event == "return" and within:
            within.pop()

    sys.setprofile(see)
    try:
        optimizer.step()
    finally:
        sys.setprofile(None)
    assert found == [("_enter",), ("_enter", "fan_out"), ("_leave",), ("_leave", "restore")]


class _Plain:
    def __init__(self, schedule: torch.optim.lr_scheduler.LRScheduler) -> None:
        self._schedule = schedule

    def step(self, _: Tensor) -> None:
        self._schedule.step()


def test_a_compiled_model_is_seen_through_its_hooks_all_the_same() -> None:
    """Whether the probe is trained on is read off the inputs; the compiler finds nothing there."""
    model = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))
    count = 0

    def backend(graph: Any, _: Any) -> Any:
        nonlocal count
        count += 1
        return graph.forward

    compiled = torch.compile(model, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = Probe(lambda x: squared(compiled, x), X[200:], model=compiled)
    auto = hdet.AutoLR(optimizer, probe=probe, total_steps=120)
    for i in range(120):  # more passes than the watch on the model lasts
        optimizer.zero_grad()
        squared(compiled, X[i]).backward()
        optimizer.step()
        auto.step()
    assert count == 2
