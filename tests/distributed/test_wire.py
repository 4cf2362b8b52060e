"""What replicas have moved by travels in fewer bits: the same weights everywhere, and near the exact ones."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor

import hdet
from hdet.replicas.launch import LocalProcesses
from tests.distributed import tasks
from tests.distributed.classifier import all_equal, answer_to, listening, timeless

T, STEPS = 5, 40


class Trained:
    """A rank of a DDP run behind the paper's door, its rates moved by its losses."""

    def __init__(self, wire: Any, dtype: torch.dtype = torch.float32, **options: Any) -> None:
        self.model, self.optimizer = tasks.build("adamw", dtype, groups=1)
        self.dtype = dtype
        self.scheduler = hdet.OneCycleAutoLR(
            self.optimizer,
            max_lr=0.02,
            total_steps=STEPS,
            ensemble_lr_spread_ratio=0.5,
            model_sync_interval=T,
            enable_auto_lr=True,
            auto_lr_warmup_steps=10,
            model=self.model,
            **({} if wire == "left out" else {"wire": wire}),
            **options,
        )

    def step(self, rank: int, step: int) -> Any:
        x, y = tasks.batch(rank, step, self.dtype)
        self.optimizer.zero_grad()
        loss = (self.model(x) - y).square().mean()
        loss.backward()
        self.optimizer.step()
        return self.scheduler.step(loss.detach())


def trained(rank: int, wire: Any, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    run = Trained(wire, dtype)
    after, records, sent, distances = [], [], [], []
    for step in range(STEPS):
        before = run.scheduler._engine.replicas.sent_bytes
        record = run.step(rank, step)
        if record:
            after.append(tasks.flat(run.model))
            records.append(timeless(record))
            distances.append((record.distance_measured, record.distance_predicted))
            sent.append(run.scheduler._engine.replicas.sent_bytes - before)
    return {"after": after, "records": records, "sent": sent, "distances": distances}


@pytest.mark.parametrize("wire", ["bf16", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [2, 3])
def test_on_one_gradient_all_are_alike_after_every_sync_and_near_the_exact_run(
    ranks: LocalProcesses, wire: str, dtype: torch.dtype, size: int
) -> None:
    exact = ranks.run(trained, None, dtype, size=size)
    packed = ranks.run(trained, wire, dtype, size=size)
    for k in range(STEPS // T):
        assert all_equal([r["after"][k] for r in packed])
        assert all(r["records"][k] == packed[0]["records"][k] for r in packed), "all decide alike"
    start = tasks.flat(tasks.Regression(dtype)).double()
    moved = (exact[0]["after"][-1].double() - start).norm()
    apart = (exact[0]["after"][-1].double() - packed[0]["after"][-1].double()).norm()
    assert 0 < apart < (0.1 if dtype == torch.bfloat16 else 0.03) * moved
    if dtype == torch.float32:  # replicas are on one line still
        measured, predicted = packed[0]["distances"][2]
        assert measured == pytest.approx(predicted, rel=0.1, abs=0.1 * max(predicted))


def test_none_is_the_run_that_knows_of_no_wire_bit_for_bit(ranks: LocalProcesses) -> None:
    for a, b in zip(ranks.run(trained, "left out", size=3), ranks.run(trained, None, size=3), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a["after"], b["after"], strict=True))
        assert a["records"] == b["records"]
        assert a["sent"] == b["sent"]


def weighed(rank: int, wire: Any, dtype: torch.dtype) -> dict[str, Any]:
    """What a rank sends at a sync for a matrix of so many weights, and what it says of it."""
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 300, bias=False, dtype=dtype))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    sent = []
    with listening() as heard:
        ensemble = hdet.Ensemble(optimizer, [hdet.LearningRate(0.3)], wire=wire, sync_every=2, model=model)
        for step in range(6):
            x = torch.randn(4, 300, generator=torch.Generator().manual_seed(10 * step + rank)).to(dtype)
            optimizer.zero_grad()
            loss = (model(x) - x).square().mean()
            loss.backward()
            optimizer.step()
            before = ensemble.replicas.sent_bytes
            if ensemble.step(loss.detach()):
                sent.append(ensemble.replicas.sent_bytes - before)
    return {"sent": sent[1:], "heard": heard}  # the first also compares where all began


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_on_the_wire(ranks: LocalProcesses, dtype: torch.dtype) -> None:
    """Whatever the weights are, by default their mean travels in float32: four bytes, 2·(N−1)/N times."""
    full = 2 * 4 * 90_000 * 3 / 4
    for wire, share in ((None, 1.0), ("bf16", 0.5), ("int8", 0.25)):
        for result in ranks.run(weighed, wire, dtype):
            assert all(share * full <= one < 1.02 * share * full + 1000 for one in result["sent"])
        said = [line for line in ranks.run(weighed, wire, dtype)[0]["heard"] if "travel" in line]
        assert len(said) == (wire is not None)


def halved(rank: int, wire: str, at: int | None) -> dict[str, Any]:
    run = Trained(wire)
    records = []
    for step in range(STEPS):
        if step == at:
            parts = (run.model, run.optimizer, run.scheduler)
            file = io.BytesIO()
            torch.save([part.state_dict() for part in parts], file)
            file.seek(0)
            saved = torch.load(file, weights_only=True)
            run = Trained(wire)
            for part, state in zip((run.model, run.optimizer, run.scheduler), saved, strict=True):
                part.load_state_dict(state)
        record = run.step(rank, step)
        records += [timeless(record)] if record else []
    return {"end": tasks.flat(run.model), "records": records, "lrs": run.scheduler.get_last_lr()}


@pytest.mark.parametrize("wire", ["bf16", "int8"])
def test_a_resumed_run_is_the_unbroken_one_bit_for_bit(ranks: LocalProcesses, wire: str) -> None:
    """What was not sent yet is each rank's own, so each resumes from its own state. (How far replicas should
    be apart is counted from there on.)"""
    unbroken = ranks.run(halved, wire, None, size=2)
    for at in (2 * T, 2 * T + 3):
        for whole, half in zip(unbroken, ranks.run(halved, wire, at, size=2), strict=True):
            assert torch.equal(half["end"], whole["end"])
            assert half["lrs"] == whole["lrs"]
            assert half["records"] == whole["records"] or at % T


def begun_apart(rank: int) -> list[Tensor]:
    """A warm noisy start (Eq. 10): no two ranks begin alike."""
    model, optimizer = tasks.build("sgd", torch.float32, groups=1)
    hdet.warm_start_(model, noise=0.1)
    ensemble = hdet.Ensemble(optimizer, [hdet.LearningRate(0.3)], wire="int8", sync_every=T, model=model)
    found = [tasks.flat(model)]
    for step in range(2 * T):
        x, y = tasks.batch(rank, step, torch.float32)
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        for group in optimizer.param_groups:
            group["lr"] = 0.01
        optimizer.step()
        if ensemble.step(loss.detach()):
            found.append(tasks.flat(model))
    return found


def test_replicas_that_begin_apart_meet_exactly_once(ranks: LocalProcesses) -> None:
    results = ranks.run(begun_apart, size=3)
    assert not all_equal([r[0] for r in results])
    assert all_equal([r[1] for r in results])
    assert all_equal([r[2] for r in results])


def looked_at(rank: int, wire: str) -> dict[str, Any]:
    """An evaluation within a round sees the exact mean, and the round goes on."""
    run = Trained(wire)
    found = {}
    for step in range(STEPS):
        run.step(rank, step)
        if step == 2 * T + 2:
            found["own"] = tasks.flat(run.model)
            run.scheduler.converge()
            found["mean"] = tasks.flat(run.model)
    return found | {"end": tasks.flat(run.model)}


def test_converge_on_demand_is_exact(ranks: LocalProcesses) -> None:
    results = ranks.run(looked_at, "int8", size=3)
    mean = torch.stack([r["own"] for r in results]).double().mean(0)
    torch.testing.assert_close(results[0]["mean"].double(), mean, rtol=1e-6, atol=1e-7)
    assert all_equal([r["mean"] for r in results])
    assert all_equal([r["end"] for r in results])


def refused(rank: int, wire: Any, with_probe: bool) -> Any:
    model, optimizer = tasks.build("sgd", torch.float32)
    probe = hdet.Probe(lambda b: (model(b[0]) - b[1]).square().mean(), [tasks.batch(0, 1)] * 2, model=model)
    options: Any = {"controller": "horizon", "probe": probe} if with_probe else {}
    if wire == "on rank 1 alone":
        wire = "int8" if rank == 1 else None
    return answer_to(lambda: hdet.OneCycleAutoLR(optimizer, 0.1, 10, wire=wire, model=model, **options))


@pytest.mark.parametrize(
    ("wire", "with_probe", "said"),
    [
        ("int4", False, "wire must be None, 'bf16' or 'int8', got 'int4'"),
        ("int8", True, "wire='int8' rounds the weights' displacements alone, and a horizon's window mean"),
        ("on rank 1 alone", False, "wire must be the same on all: rank 0 has None; rank 1 has 'int8'"),
    ],
)
def test_what_is_refused(ranks: LocalProcesses, wire: str, with_probe: bool, said: str) -> None:
    for _, words, seconds in ranks.run(refused, wire, with_probe, size=2):
        assert said in words
        assert seconds < 30
