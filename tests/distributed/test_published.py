"""Auto-LR on real ranks against the serial twin, and its behaviour where losses are broken."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import hdet
from hdet.loop.levels import permutation
from hdet.replicas.launch import LocalProcesses
from tests import reference
from tests.distributed import tasks

STEPS, EVERY, WARMUP, SEED = 66, 8, 16, 5
MAX_LR = [0.02, 0.05, 0.03, 0.1]


def train(rank: int, kind: str, spread: float, options: dict[str, Any]) -> dict[str, Any]:
    model, optimizer = tasks.build(kind)
    scheduler = hdet.OneCycleAutoLR(
        optimizer,
        max_lr=MAX_LR,
        total_steps=STEPS,
        ensemble_lr_spread_ratio=spread,
        model_sync_interval=EVERY,
        auto_lr_warmup_steps=WARMUP,
        enable_auto_lr=True,
        seed=SEED,
        model=model,
        **options,
    )
    base_lrs, momenta, records, shown = [], [], [], []
    for step in range(STEPS):
        group = optimizer.param_groups[0]
        base_lrs.append([g["lr"] for g in optimizer.param_groups])
        shown.append(scheduler.get_last_lr())
        momenta.append(group["momentum"] if kind == "sgd" else group["betas"][0])
        loss = tasks.train_step(model, optimizer, rank, step)
        record = scheduler.step(loss)
        if record is not None:
            records.append(record)
    return {
        "base_lrs": base_lrs,
        "shown": shown,
        "momenta": momenta,
        "records": records,
        "weights": tasks.flat(model),
    }


@pytest.mark.parametrize(
    ("size", "kind", "decay", "temperature"),
    [
        (1, "sgd", "schedule", 0.1),
        (4, "sgd", "schedule", 0.1),
        (3, "adam", "schedule", "auto"),
        (2, "sgd", "geometric", 0.05),
        (2, "sgd", "literal", 0.1),
    ],
)
def test_equals_the_serial_twin(
    ranks: LocalProcesses, size: int, kind: str, decay: str, temperature: float | str
) -> None:
    options = {"decay": decay, "loss_scale": temperature}
    spread = 0.3
    settings = reference.Settings(
        replicas=size,
        steps=STEPS,
        max_lr=MAX_LR,
        spread=spread,
        sync_every=EVERY,
        warmup=WARMUP,
        temperature=temperature,
        decay=decay,
        optimizer=kind,
    )
    if decay == "literal":  # as printed the rate grows; with the default factor beyond all bounds
        options["final_div_factor"] = 40.0
        settings.final_div_factor = 40.0
    twin = reference.run(
        tasks.start(),
        tasks.loss,
        settings,
        lambda round, group: permutation(size, seed=SEED, round=round, name=f"lr/{group}"),
    )
    results = ranks.run(train, kind, spread, options, size=size)

    controlled = [r for r in results[0]["records"] if r.weights]
    assert len(controlled) >= 6
    for result in results:
        torch.testing.assert_close(result["weights"], results[0]["weights"], rtol=0, atol=0)
        assert result["base_lrs"] == results[0]["base_lrs"]
        assert result["shown"] == result["base_lrs"]
    first = results[0]
    torch.testing.assert_close(first["weights"], _flat(twin.weights), rtol=1e-6, atol=1e-9)
    assert first["base_lrs"] == _close(twin.base_lrs)
    assert first["momenta"] == _close(twin.momenta)
    assert [list(r.losses) for r in first["records"]] == _close(twin.losses)
    assert [[h.delta for h in r.hyperparameters] for r in controlled] == _close(twin.deltas)
    assert [[h.velocity for h in r.hyperparameters] for r in controlled] == _close(twin.velocities)
    assert all(lr > 0 for lrs in first["base_lrs"] for lr in lrs)
    if size > 1:
        moved = [lr / 0.02 for lr in (lrs[0] for lrs in first["base_lrs"])]
        assert len({round(x, 6) for x in moved[WARMUP + EVERY :]}) > 4


def test_schedule_and_momentum_run_on_between_syncs(ranks: LocalProcesses) -> None:
    first = ranks.run(train, "sgd", 0.3, {"loss_scale": 0.1}, size=2)[0]
    plain = torch.optim.lr_scheduler.OneCycleLR(
        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1, momentum=0.9),
        max_lr=MAX_LR[0],
        total_steps=STEPS,
    )
    curve, momenta = [], []
    for _ in range(STEPS):
        curve.append(plain.get_last_lr()[0])
        momenta.append(plain.optimizer.param_groups[0]["momentum"])
        plain.optimizer.step()
        plain.step()
    assert first["momenta"] == momenta
    lrs = [step[0] for step in first["base_lrs"]]
    for begin in range(WARMUP, STEPS - EVERY, EVERY):
        interval = slice(begin, begin + EVERY)
        assert len(set(lrs[interval])) == EVERY
        factors = {round(lr / c, 9) for lr, c in zip(lrs[interval], curve[interval], strict=True)}
        assert len(factors) == 1, "within an interval the base rate is one factor times OneCycle's curve"


def train_with_losses(rank: int, broken: dict[int, float], history: str) -> dict[str, Any]:
    model, optimizer = tasks.build("sgd")
    scheduler = hdet.OneCycleAutoLR(
        optimizer,
        max_lr=0.05,
        total_steps=24,
        ensemble_lr_spread_ratio=0.3,
        model_sync_interval=6,
        auto_lr_warmup_steps=0,
        enable_auto_lr=True,
        loss_scale=0.1,
        model=model,
        history=history,
    )
    records = []
    for step in range(24):
        loss = tasks.train_step(model, optimizer, rank, step)
        if 6 <= step < 12 and rank in broken:
            loss = loss * broken[rank]
        record = scheduler.step(loss)
        if record:
            records.append(record)
    return {"records": records, "lrs": scheduler.get_last_lr()}


@pytest.mark.parametrize("poison", [math.nan, -math.inf])
def test_a_broken_loss_has_no_vote(ranks: LocalProcesses, tmp_path: Any, poison: float) -> None:
    path = tmp_path / "history.jsonl"
    results = ranks.run(train_with_losses, {1: poison}, str(path), size=3)
    for result in results:
        assert result["records"][1].weights[1] == 0.0
        assert sum(result["records"][1].weights) == pytest.approx(1.0)
        assert any("replica 1 left out" in event for event in result["records"][1].events)
        assert result["records"][2].events == ()
        assert all(math.isfinite(lr) for lr in result["lrs"])
        assert result["lrs"] == results[0]["lrs"]
    written = hdet.history.read_history(path)
    assert [record.step for record in written] == [6, 12, 18, 24]
    assert math.isnan(written[1].losses[1])


def test_no_finite_loss_leaves_the_schedule_alone(ranks: LocalProcesses, tmp_path: Any) -> None:
    broken = dict.fromkeys(range(3), math.nan)
    for result in ranks.run(train_with_losses, broken, str(tmp_path / "h.jsonl"), size=3):
        for h in result["records"][1].hyperparameters:
            assert h.base_after == h.base_before
            assert h.delta == 0.0


def _flat(weights: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([w.reshape(-1) for w in weights])


def _close(values: Any) -> Any:
    """Nested approx to one part in a million."""

    class Nested:
        def __eq__(self, other: object) -> bool:
            a = torch.tensor(other, dtype=torch.float64)
            b = torch.tensor(values, dtype=torch.float64)
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-12)
            return True

        __hash__ = None  # type: ignore[assignment]

    return Nested()
