"""Fan-out and converge on real ranks: Eq. 1–3 as properties of weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hdet
from hdet.replicas.launch import LocalProcesses
from tests.distributed import tasks
from tests.fakes import multipliers

SPREAD = 0.25


def plain_and_alpha_zero(rank: int, kind: str) -> tuple[bool, int]:
    weights = []
    for schedule in ("torch", "hdet"):
        model, optimizer = tasks.build(kind, torch.float32)
        options: Any = {"max_lr": [0.02, 0.05, 0.03, 0.1], "total_steps": 30}
        if schedule == "torch":
            scheduler: Any = torch.optim.lr_scheduler.OneCycleLR(optimizer, **options)
        else:
            scheduler = hdet.OneCycleAutoLR(
                optimizer, **options, model_sync_interval=7, enable_auto_lr=True, auto_lr_warmup_steps=0
            )
        for step in range(30):
            loss = tasks.train_step(model, optimizer, rank, step)
            scheduler.step(*([loss] if schedule == "hdet" else []))
        weights.append(tasks.flat(model))
    return torch.equal(*weights), int(weights[0].numel())


@pytest.mark.parametrize(("kind", "size"), [("sgd", 2), ("adamw", 3)])
def test_alpha_zero_is_plain_ddp_bit_for_bit(ranks: LocalProcesses, kind: str, size: int) -> None:
    assert ranks.run(plain_and_alpha_zero, kind, size=size) == [(True, 57)] * size


class Linear(nn.Module):
    """The gradient of its output is the input, whatever the weights: a known gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(50, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight @ x


def displacements(rank: int, kind: str, steps: int) -> dict[str, Any]:
    """Weights after every step of one interval, then after the converge that ends it."""
    model = DistributedDataParallel(Linear())
    make = torch.optim.SGD if kind == "sgd" else torch.optim.Adam
    options: Any = {"momentum": 0.9} if kind == "sgd" else {}
    optimizer = make(model.parameters(), lr=1.0, **options)
    scheduler = hdet.OneCycleAutoLR(
        optimizer,
        max_lr=0.1,
        total_steps=10 * steps,  # the whole interval lies in OneCycle's warm-up
        ensemble_lr_spread_ratio=SPREAD,
        model_sync_interval=steps,
        model=model,
    )
    path = []
    record = None
    for step in range(steps):
        generator = torch.Generator().manual_seed(100 * step + rank)
        loss = model(torch.randn(50, generator=generator, dtype=torch.float64))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        path.append(tasks.flat(model))
        record = scheduler.step()
    return {"path": path, "mean": tasks.flat(model), "record": record}


@pytest.mark.parametrize(("kind", "size"), [("sgd", 4), ("adam", 2)])
def test_replica_moves_rho_times_the_base_displacement(ranks: LocalProcesses, kind: str, size: int) -> None:
    steps = 6
    results = ranks.run(displacements, kind, steps, size=size)
    rho = multipliers(size, SPREAD)
    for k in range(steps):
        base = sum(result["path"][k] for result in results) / size  # Σρ_r = N: the mean is the base path
        assert base.abs().min() > 0
        for r in range(size):
            torch.testing.assert_close(results[r]["path"][k], rho[r] * base, rtol=1e-12, atol=1e-15)
    for r in range(size):  # the oracle: θ̄ = θ₀ + (θ_r − θ₀)/ρ_r, with θ₀ = 0
        torch.testing.assert_close(
            results[r]["mean"], results[r]["path"][-1] / rho[r], rtol=1e-12, atol=1e-15
        )
        assert torch.equal(results[r]["mean"], results[0]["mean"])
        record = results[r]["record"]
        assert record.distance_measured == pytest.approx(record.distance_predicted, rel=1e-5)
        truth = (results[r]["path"][-1] - results[r]["mean"]).norm().item()
        assert record.distance_measured[r] == pytest.approx(truth, rel=1e-5)


class Assorted(nn.Module):
    """Every kind of tensor that a mean can meet."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(8)
        self.first = nn.Linear(8, 8, bias=False)
        self.tied = nn.Linear(8, 8, bias=False)
        self.tied.weight = self.first.weight
        self.frozen = nn.Parameter(torch.randn(5), requires_grad=False)
        self.bf16 = nn.Parameter(torch.randn(40).to(torch.bfloat16))
        self.f64 = nn.Parameter(torch.randn(7, dtype=torch.float64))
        self.large = nn.Parameter(torch.randn(1100, 1000))
        self.large_tied = nn.Parameter(self.large.detach().t())
        self.register_buffer("mask", torch.tensor(torch.finfo(torch.float32).min))


def converge_assorted(rank: int, auto_lr: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model = Assorted()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = hdet.OneCycleAutoLR(
        optimizer,
        max_lr=0.1,
        total_steps=100,
        ensemble_lr_spread_ratio=SPREAD,
        model_sync_interval=1,
        enable_auto_lr=auto_lr,
        auto_lr_warmup_steps=0,
        model=model,
    )
    generator = torch.Generator().manual_seed(rank)
    with torch.no_grad():
        for parameter in (*model.parameters(), model.norm.running_mean, model.norm.running_var):
            if parameter is model.large_tied:
                continue
            noise = 0.1 * torch.randn(parameter.shape, generator=generator)  # strangers would be refused
            parameter.add_(noise.to(parameter.dtype))
        model.bf16.copy_(torch.randn(40, generator=torch.Generator().manual_seed(9)))  # equal already
    model.norm.num_batches_tracked.fill_(3 + rank)
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    before = {name: t.detach().clone() for name, t in tensors.items()}
    layout = {name: (t.data_ptr(), t.stride(), t.shape) for name, t in tensors.items()}
    optimizer.step()
    record = scheduler.step(float(rank))
    after = {name: t.detach().clone() for name, t in tensors.items()}
    same = layout == {name: (t.data_ptr(), t.stride(), t.shape) for name, t in tensors.items()}
    return {"before": before, "after": after, "layout kept": same, "events": record.events}


@pytest.mark.parametrize(("size", "auto_lr"), [(2, False), (3, True)])
def test_converge(ranks: LocalProcesses, size: int, auto_lr: bool) -> None:
    results = ranks.run(converge_assorted, auto_lr, size=size)
    for name in results[0]["after"]:
        inputs = [result["before"][name] for result in results]
        outputs = [result["after"][name] for result in results]
        if name == "frozen":
            assert all(torch.equal(a, b) for a, b in zip(inputs, outputs, strict=True))
            continue
        assert all(torch.equal(outputs[0], other) for other in outputs), name
        if name == "norm.num_batches_tracked":
            assert outputs[0].item() == 3 + size - 1
        elif name in ("bf16", "mask"):
            assert torch.equal(outputs[0], inputs[0]), "equal replicas must stay as they are"
        else:
            exact = sum(t.double() for t in inputs) / size
            scale = max(t.abs().max().item() for t in inputs)
            ulp = torch.finfo(outputs[0].dtype).eps * scale
            assert (outputs[0].double() - exact).abs().max().item() <= ulp, name
    for result in results:
        assert result["layout kept"]
        assert any("integer buffer" in event for event in result["events"])


def converge_on_demand(rank: int) -> dict[str, Any]:
    model, optimizer = tasks.build("sgd", torch.float32)
    scheduler = hdet.OneCycleAutoLR(
        optimizer,
        max_lr=0.1,
        total_steps=25,
        ensemble_lr_spread_ratio=SPREAD,
        model_sync_interval=10,
        model=model,
    )
    seen, records, together = {}, [], set()
    for step in range(25):
        loss = tasks.train_step(model, optimizer, rank, step)
        records.append(scheduler.step(loss))
        seen[step] = tasks.flat(model)
        together |= set() if scheduler.apart else {step}
        if step == 13:
            scheduler.converge()
            seen["demand"] = tasks.flat(model)
            together |= set() if scheduler.apart else {"demand"}
    return {"seen": seen, "records": [r for r in records if r], "together": together}


def test_converge_on_demand_and_at_the_last_step(ranks: LocalProcesses) -> None:
    a, b = ranks.run(converge_on_demand, size=2)
    equal = {key for key in a["seen"] if torch.equal(a["seen"][key], b["seen"][key])}
    assert equal == a["together"] == {9, "demand", 19, 24}
    assert [(r.step, r.round) for r in a["records"]] == [(10, 0), (20, 1), (25, 2)]
    for record in a["records"]:
        assert record.weights == ()
        # From the second interval on the predicted distance counts from the last mean, on demand or not.
        assert record.distance_measured == pytest.approx(record.distance_predicted, rel=1e-3)


def undone_fan_out(rank: int) -> list[Any]:
    model, optimizer = tasks.build("sgd", torch.float32)
    scheduler = hdet.OneCycleAutoLR(
        optimizer,
        max_lr=0.1,
        total_steps=20,
        ensemble_lr_spread_ratio=SPREAD,
        model_sync_interval=10,
        model=model,
    )
    records = []
    for step in range(20):
        loss = tasks.train_step(model, optimizer, rank, step)
        for parameter in model.parameters():
            torch.distributed.broadcast(parameter.data, 0)
        records.append(scheduler.step(loss))
    return [r for r in records if r]


def test_an_undone_fan_out_is_noticed(ranks: LocalProcesses) -> None:
    for record in ranks.run(undone_fan_out, size=2)[1]:
        assert max(record.distance_measured) == 0.0
        assert any("undoes the fan-out" in event for event in record.events)
