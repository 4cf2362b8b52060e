"""Replicas stacked in one process go where the same replicas go in processes of their own (gloo)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Adam, AdamW, Optimizer

import hdet
from benchmarks.workloads.charlm import GPT
from hdet.history import SyncRecord
from hdet.replicas.launch import LocalProcesses
from hdet.tuning.regression import RegressionController
from tests.distributed import tasks

STEPS, SYNC_EVERY, SAMPLES = 12, 4, 6
TOLERANCE = 1e-5


# ---------------------------------------------------------------------- what is trained, by name


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm1d(4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(20, 1),
    )


def constants() -> nn.Module:
    """Buffers that no replica changes, and a layer that no optimizer trains."""
    model = nn.Sequential(nn.Linear(10, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    model.register_buffer("least", torch.tensor(torch.finfo(torch.float32).min))
    model.register_buffer("angles", torch.linspace(0.1, 0.7, 7))
    model[0].requires_grad_(False)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "regression": lambda: tasks.Regression(torch.float32),
    "regression64": lambda: tasks.Regression(torch.float64),
    "convolutional": convolutional,
    "convolutional64": lambda: convolutional().double(),
    "constants": constants,
    "gpt": lambda: GPT(7, layers=1, width=8, heads=2, context=4),
}

OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: SGD(p, lr=0.05),
    "sgd momentum": lambda p: SGD(p, lr=0.02, momentum=0.9, weight_decay=0.1),
    "sgd nesterov": lambda p: SGD(p, lr=0.02, momentum=0.8, weight_decay=0.1, nesterov=True),
    "sgd dampened": lambda p: SGD(p, lr=0.02, momentum=0.9, dampening=0.3),
    "adam": lambda p: Adam(p, lr=0.01),
    "adam l2": lambda p: Adam(p, lr=0.01, weight_decay=0.3, betas=(0.8, 0.95), eps=1e-4),
    "adam decoupled": lambda p: Adam(p, lr=0.01, weight_decay=0.3, decoupled_weight_decay=True),
    # A coarse ε: where a gradient is 0 but for rounding (a key's bias), Adam would make steps of that noise.
    "adamw": lambda p: AdamW(p, lr=0.01, weight_decay=0.3, eps=1e-4),
}


def samples(model: nn.Module, rank: int, step: int) -> tuple[Tensor, Tensor]:
    """One replica's batch, the same for processes and slices."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    if isinstance(model, GPT):
        text = torch.randint(7, (SAMPLES, 5), generator=generator)
        return text[:, :-1], text[:, 1:]
    if isinstance(model, tasks.Regression):
        return tasks.batch(rank, step, model.weights[0].dtype)
    x = torch.randn(SAMPLES, 2, 5, generator=generator).to(next(model.parameters()).dtype)
    y = torch.sin(3 * x[:, 0, :1])
    return (x, y) if isinstance(model[0], nn.Conv1d) else (x.flatten(1), y)


def loss_fn(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    output = model(x)
    return (
        F.cross_entropy(output.flatten(0, 1), y.flatten())
        if y.dim() == output.dim() - 1
        else ((output - y).square().mean())
    )


@dataclass(frozen=True)
class Case:
    """What both train; all of it can travel to a process."""

    model: str
    optimizer: str
    facade: Callable[..., Any]
    #: A number is that of arms.
    gradients: Literal["all", "none"] | int | hdet.Arms = "all"
    groups: int = 1
    warm_start: str = ""
    steps: int = STEPS

    def build(self) -> tuple[nn.Module, Optimizer]:
        torch.manual_seed(5)
        model = MODELS[self.model]()
        trained: Any = [p for p in model.parameters() if p.requires_grad]
        if self.groups > 1:
            trained = [{"params": trained[i :: self.groups]} for i in range(self.groups)]
        return model, OPTIMIZERS[self.optimizer](trained)


def one_cycle(optimizer: Optimizer, case: Case, probe: Any, model: nn.Module | None) -> Any:
    return hdet.OneCycleAutoLR(
        optimizer,
        max_lr=[0.02 * (1 + g) for g in range(case.groups)],
        total_steps=2 * STEPS,
        ensemble_lr_spread_ratio=0.25,
        model_sync_interval=SYNC_EVERY,
        enable_auto_lr=True,
        auto_lr_warmup_steps=2,
        loss_scale=0.1,
        model=model,
    )


def ensemble(explore: Sequence[Any], *, probed: bool = True, seed: int = 0) -> Callable[..., Any]:
    return Together(tuple(explore), probed, seed)


@dataclass(frozen=True)
class Together:
    """An Ensemble that explores several hyperparameters; a regression on held-out losses moves them."""

    explore: tuple[Any, ...]
    probed: bool
    #: Of the deals: three rounds do not show every effect in each of them.
    seed: int = 0

    def __call__(self, optimizer: Optimizer, case: Case, probe: Any, model: nn.Module | None) -> Any:
        return hdet.Ensemble(
            optimizer,
            [item(probe.model) if callable(item) else item for item in self.explore],
            gradients=case.gradients,
            sync_every=SYNC_EVERY,
            probe=probe if self.probed else None,
            controller=RegressionController() if self.probed else None,
            model=model,
            seed=self.seed,
        )


@dataclass(frozen=True)
class Tuned:
    """A search for the learning rate, and for something else beside it."""

    explore: tuple[Any, ...]

    def __call__(self, optimizer: Optimizer, case: Case, probe: Any, model: nn.Module | None) -> Any:
        return hdet.AutoTune(
            optimizer, self.explore, probe=probe, total_steps=case.steps, gradients=case.gradients
        )


# ---------------------------------------------------------------------- the two ways to train it


def in_a_process(rank: int, case: Case) -> dict[str, Any]:
    model, optimizer = case.build()
    if case.warm_start:
        hdet.warm_start_(model, 0.05, scope=case.warm_start, seed=3)
    trained = [p for p in model.parameters() if p.requires_grad]
    begin = torch.cat([p.detach().flatten() for p in trained])
    shares = case.gradients == "all"
    # It broadcasts buffers in every pass, and weights to begin with: a shared gradient is all that is asked.
    by_hand = shares and (any(True for _ in model.buffers()) or bool(case.warm_start))
    wrapped = DistributedDataParallel(model) if shares and not by_hand else model
    if isinstance(case.gradients, int):
        case = replace(case, gradients=hdet.Arms(case.gradients))
        wrapped = case.gradients.wrap(model, broadcast_buffers=False)
    probe = hdet.Probe(
        lambda draw: loss_fn(model, samples(model, rank, 500 + draw)), lambda n: n, model=model, per_sync=2
    )
    facade = case.facade(optimizer, case, probe, wrapped)
    records = []
    for step in range(case.steps):
        loss = loss_fn(wrapped, samples(model, rank, step))
        optimizer.zero_grad()
        loss.backward()
        for p in trained if by_hand else ():
            torch.distributed.all_reduce(p.grad)
            p.grad /= torch.distributed.get_world_size()
        optimizer.step()
        records.append(facade.step(loss))
    best = facade.finish_() if hasattr(facade, "finish_") else None
    found = {"begin": begin, "records": [r for r in records if r], "best": best}
    return {**found, **held(model, optimizer)}


def held(model: nn.Module, optimizer: Optimizer) -> dict[str, Any]:
    tensors = {name: p.detach().clone() for name, p in model.named_parameters()}
    kept = {
        f"{name} {key}": optimizer.state[p][key].clone()
        for name, p in model.named_parameters()
        for key in ("momentum_buffer", "exp_avg", "exp_avg_sq")
        if key in optimizer.state.get(p, {})
    }
    return {"tensors": tensors | dict(model.named_buffers()), "state": kept}


def stacked(case: Case, size: int) -> list[dict[str, Any]]:
    model, optimizer = case.build()
    replicas = hdet.StackedReplicas(model, optimizer, size, gradients=case.gradients)
    if case.warm_start:
        hdet.warm_start_(replicas, 0.05, scope=case.warm_start, seed=3)
    begin = [torch.cat([s.flatten() for s in replicas.slices(r)]) for r in range(size)]

    def batch(step: int) -> tuple[Tensor, ...]:
        each = [samples(model, rank, step) for rank in range(size)]
        return tuple(torch.cat(part) for part in zip(*each, strict=True))

    probe = hdet.Probe(
        lambda draw: replicas.losses(loss_fn, batch(500 + draw)), lambda n: n, model=model, per_sync=2
    )
    facade = case.facade(replicas.optimizer, case, probe, None)
    records = []
    for step in range(case.steps):
        losses = replicas.losses(loss_fn, batch(step))
        replicas.optimizer.zero_grad()
        replicas.backward(losses)
        replicas.optimizer.step()
        records.append(facade.step(losses))
    best = facade.finish_() if hasattr(facade, "finish_") else None
    found = []
    for rank in range(size):
        replicas.write_(rank)
        own = {"tensors": {k: t.detach().clone() for k, t in model.state_dict().items()}}
        rows = {
            key: torch.cat([s[key][rank] for s in replicas.optimizer.state.values()])
            for key in ("momentum_buffer", "exp_avg", "exp_avg_sq")
            if all(key in s for s in replicas.optimizer.state.values()) and replicas.optimizer.state
        }
        one = {"begin": begin[rank], "records": [r for r in records if r], "best": best}
        found.append({**one, "state": rows, **own})
    return found


# ---------------------------------------------------------------------- and where they arrive


def assert_same_records(a: SyncRecord, b: SyncRecord) -> None:
    close: dict[str, float] = {"rel": 1e-4, "abs": TOLERANCE, "nan_ok": True}  # type: ignore[dict-item]
    assert (a.step, a.round, a.events) == (b.step, b.round, b.events)
    for name in ("losses", "weights", "distance_measured", "distance_predicted", "held_out", "held_out_mean"):
        assert getattr(a, name) == pytest.approx(getattr(b, name), **close), name
    for ours, theirs in zip(a.hyperparameters, b.hyperparameters, strict=True):
        assert ours.name == theirs.name
        for name in ("multipliers", "values", "base_before", "base_after", "delta", "velocity"):
            assert getattr(ours, name) == pytest.approx(getattr(theirs, name), **close), (ours.name, name)


def assert_same(case: Case, processes: list[dict[str, Any]], slices: list[dict[str, Any]]) -> None:
    start, _ = case.build()
    moved = [
        (processes[0]["tensors"][name] - p).abs().max().item()
        for name, p in start.named_parameters()
        if p.requires_grad
    ]
    assert min(moved) > 10 * TOLERANCE, "every parameter has moved, or equality says nothing"
    assert len(processes[0]["records"]) >= STEPS // SYNC_EVERY
    for a, b in zip(slices[0]["records"], processes[0]["records"], strict=True):
        assert_same_records(a, b)
    for ours, theirs in zip(slices, processes, strict=True):
        torch.testing.assert_close(ours["begin"], theirs["begin"], rtol=0, atol=1e-6)
        assert ours["tensors"].keys() == theirs["tensors"].keys()
        for name, tensor in theirs["tensors"].items():
            torch.testing.assert_close(
                ours["tensors"][name], tensor, rtol=0, atol=TOLERANCE, msg=lambda m, name=name: f"{name}: {m}"
            )
        for key, row in ours["state"].items():
            whole = torch.cat(
                [t.flatten() for name, t in theirs["state"].items() if name.endswith(" " + key)]
            )
            # Groups stand one after another, as their matrices do; the order of the rest is the model's.
            torch.testing.assert_close(row.sort().values, whole.sort().values, rtol=1e-4, atol=TOLERANCE)


@pytest.mark.parametrize(("kind", "size"), list(zip(OPTIMIZERS, (2, 3) * 4, strict=True)))
def test_every_optimizer_under_one_cycle(ranks: LocalProcesses, kind: str, size: int) -> None:
    case = Case("regression", kind, one_cycle, groups=4 if size == 3 else 1)
    assert_same(case, ranks.run(in_a_process, case, size=size), stacked(case, size))


@pytest.mark.parametrize("model", ["convolutional", "constants", "gpt", "regression64"])
def test_every_model(ranks: LocalProcesses, model: str) -> None:
    case = Case(model, "adamw", one_cycle)
    assert_same(case, ranks.run(in_a_process, case, size=3), stacked(case, 3))


LR = hdet.LearningRate(spread=0.25)
#: Of the model that it is given, on its rank or here.
TEMPERATURE = partial(hdet.Temperature, attribute="temperature")


@pytest.mark.parametrize(
    "case",
    [
        Case("regression", "adamw", ensemble([LR], probed=False), "none"),
        Case(
            "regression", "sgd nesterov", ensemble([LR, hdet.WeightDecay(), hdet.Momentum()], seed=3), "none"
        ),
        Case("convolutional", "adamw", ensemble([LR, hdet.WeightDecay()]), "none"),
        Case("convolutional", "adam l2", ensemble([LR, hdet.WeightDecay(), hdet.Betas(1)])),
        Case("regression", "adam", ensemble([LR, hdet.Betas(2), hdet.Momentum()])),
        Case("regression", "sgd momentum", ensemble([hdet.Momentum(each=True)]), groups=2),
        Case("gpt", "adamw", ensemble([LR, hdet.WeightDecay()], seed=3), "none"),
        Case("regression", "adam decoupled", ensemble([hdet.WeightDecay()])),
        Case("gpt", "sgd momentum", ensemble([TEMPERATURE, hdet.GradientClip(0.5)]), "none"),
        Case("regression", "adam", ensemble([LR, hdet.GradientClip(0.5)]), groups=2),
        Case("gpt", "sgd momentum", ensemble([TEMPERATURE]), 2),
        Case("convolutional", "adamw", ensemble([LR]), 2),
    ],
    ids=lambda case: f"{case.model}-{case.optimizer}-{case.gradients}-{len(case.facade.explore)}",
)
def test_an_ensemble_by_a_probe(ranks: LocalProcesses, case: Case) -> None:
    processes, slices = ranks.run(in_a_process, case, size=4), stacked(case, 4)
    assert_same(case, processes, slices)
    if case.facade.probed:
        moved = [h.base_after != h.base_before for r in slices[0]["records"] for h in r.hyperparameters]
        assert any(moved), "the regression has moved something"


@pytest.mark.parametrize(("model", "kind"), [("convolutional64", "adamw"), ("regression64", "sgd momentum")])
def test_a_search(ranks: LocalProcesses, model: str, kind: str) -> None:
    """With batch norm, every replica is judged, chosen and loaded with running statistics of its own.

    In double precision: the first window moves weights by so little that its regression sees the rounding.
    """
    case = Case(model, kind, Tuned((hdet.WeightDecay(),)), 2 if kind == "adamw" else "none", steps=64)
    processes, slices = ranks.run(in_a_process, case, size=4), stacked(case, 4)
    assert_same(case, processes, slices)
    ours, theirs = slices[0]["best"], processes[0]["best"]
    assert (ours.step, ours.kind) == (theirs.step, theirs.kind)
    for name in ("loss", "estimate", "error", "rate"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-4), name


@pytest.mark.parametrize("scope", ["global", "tensor"])
def test_a_warm_start_is_the_same_noise(ranks: LocalProcesses, scope: str) -> None:
    case = Case("regression", "sgd momentum", one_cycle, groups=4, warm_start=scope)
    slices = stacked(case, 3)
    assert not torch.allclose(slices[0]["begin"], slices[1]["begin"], atol=1e-3)
    assert_same(case, ranks.run(in_a_process, case, size=3), slices)
