"""Gradients shared by all ranks, by arms or by none: what then differs, and what is averaged."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hdet
from hdet.replicas.launch import LocalProcesses
from tests.distributed import tasks
from tests.distributed.classifier import (
    Answer,
    Classifier,
    advance,
    all_equal,
    answer_to,
    batch,
    gradient,
    optimizer_state,
)

# ---------------------------------------------------------------------- who shares what


def in_arms(rank: int) -> dict[str, Any]:
    torch.manual_seed(rank)  # no two ranks begin alike
    model, criterion = Classifier(), nn.CrossEntropyLoss()
    statistics: Any = model.norm.running_mean
    statistics.fill_(float(rank))
    before = tasks.flat(model)
    arms = hdet.Arms(2)
    wrapped = arms.wrap(model)
    found: dict[str, Any] = {
        "arm": (arms.index, arms.count, arms.size),
        "before": before,
        "start": tasks.flat(model),
        "buffer": statistics.clone(),
    }
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
    ensemble = hdet.Ensemble(
        optimizer, [hdet.Dropout(model)], gradients=arms, sync_every=3, seed=4, model=wrapped
    )
    for step in range(8):
        torch.manual_seed(7919 * step + rank)
        x, y = batch(rank, step)
        kept = [b.clone() for b in model.buffers()]
        own = torch.autograd.grad(criterion(model(x), y), list(model.parameters()))
        for buffer, old in zip(model.buffers(), kept, strict=True):
            buffer.copy_(old)
        optimizer.zero_grad()
        loss = gradient(wrapped, criterion, rank, step)
        shared = [p.grad for p in model.parameters() if p.grad is not None]
        row: dict[str, Any] = {
            "own": torch.cat([g.reshape(-1) for g in own]),
            "shared": torch.cat([g.reshape(-1) for g in shared]),
            "dropout": model.drop.p,
        }
        optimizer.step()
        row["diverged"] = tasks.flat(model)
        record = ensemble.step(loss.detach())
        row["synced"] = record is not None
        row["values"] = None if record is None else record.hyperparameters[0].values
        if step == 4:
            ensemble.converge()
            row["synced"] = True
        row["after"] = tasks.flat(model)
        row["buffers"] = torch.cat([b.reshape(-1).double() for b in model.buffers()])
        found[f"step {step}"] = row
    ensemble.detach()
    found["left with"] = model.drop.p
    return found


def test_gradients_are_shared_inside_an_arm_and_weights_by_all(ranks: LocalProcesses) -> None:
    a, b, *_ = results = ranks.run(in_arms)
    assert [r["arm"] for r in results] == [(0, 2, 2), (0, 2, 2), (1, 2, 2), (1, 2, 2)]
    assert not torch.equal(b["before"], a["before"])
    for r in results:
        assert torch.equal(r["start"], a["before"]), "all start from rank 0's weights"
        assert r["buffer"].eq(0).all(), "and from its buffers"
        assert r["left with"] == 0.2
    explored = set()
    for step in range(8):
        rows = [r[f"step {step}"] for r in results]
        for one, two in (rows[:2], rows[2:]):
            assert torch.equal(one["shared"], two["shared"])
            assert torch.equal(one["diverged"], two["diverged"])
            assert one["dropout"] == two["dropout"]
            mean = (one["own"] + two["own"]) / 2
            torch.testing.assert_close(one["shared"], mean, rtol=1e-4, atol=1e-6)
        assert not torch.equal(rows[0]["own"], rows[1]["own"])
        assert not torch.equal(rows[0]["shared"], rows[2]["shared"])
        assert not torch.equal(rows[0]["diverged"], rows[2]["diverged"])
        assert rows[0]["dropout"] != rows[2]["dropout"]
        explored.add((rows[0]["dropout"], rows[2]["dropout"]))
        assert rows[0]["synced"] == (step in (2, 4, 5))
        assert all_equal([row["after"] for row in rows]) == rows[0]["synced"]
        if rows[0]["synced"]:
            assert all_equal([row["buffers"] for row in rows])
            exact = (rows[0]["diverged"].double() + rows[2]["diverged"].double()) / 2
            torch.testing.assert_close(rows[0]["after"].double(), exact, rtol=1e-6, atol=1e-7)
        if rows[0]["values"] is not None:
            assert rows[0]["values"] == (rows[0]["dropout"], rows[2]["dropout"]), "one value for each arm"
    assert len(explored) == 2, "and another deal in another round"


def trained(rank: int, how: str) -> dict[str, Any]:
    torch.manual_seed(0)
    model, criterion = Classifier(), nn.CrossEntropyLoss()
    gradients: Any = "none"
    wrapped: nn.Module = model
    if how.startswith("arms"):
        gradients = hdet.Arms(int(how[-1]))
        wrapped = gradients.wrap(model)
    elif how == "all":
        gradients, wrapped = "all", DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05, momentum=0.9)
    ensemble = hdet.Ensemble(
        optimizer, [hdet.LearningRate(0.3)], gradients=gradients, sync_every=3, model=wrapped
    )
    path, rates = [], []
    for step in range(7):
        rates.append(ensemble.replica_lrs)
        loss = advance(wrapped, criterion, optimizer, rank, step)
        path.append(tasks.flat(model))
        ensemble.step(loss)
    return {
        "wrapped": wrapped is model,
        "among": dist.get_world_size(wrapped.process_group)
        if isinstance(wrapped, DistributedDataParallel)
        else 1,
        "path": path,
        "rates": rates,
        "gradient": torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]),
    }


@pytest.mark.parametrize(("arms", "same"), [("arms 4", "none"), ("arms 1", "all")])
def test_the_two_ends_are_local_gradients_and_plain_data_parallelism(
    ranks: LocalProcesses, arms: str, same: str
) -> None:
    one, two = ranks.run(trained, arms), ranks.run(trained, same)
    for a, b in zip(one, two, strict=True):
        assert a["wrapped"] == b["wrapped"] == (same == "none")
        assert a["among"] == b["among"] == (1 if same == "none" else 4)
        assert a["rates"] == b["rates"]
        assert all(torch.equal(x, y) for x, y in zip(a["path"], b["path"], strict=True))
    assert len({a["rates"][0][0] for a in one}) == 4, "four sets of values at either end"
    assert all_equal([a["gradient"] for a in one]) == (same == "all")


# ---------------------------------------------------------------------- optimizer state


def with_state(rank: int, kind: str, explore: str, shared: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    if shared:
        model = DistributedDataParallel(model)
    optimizer: torch.optim.Optimizer
    if kind == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    explored: Any = {
        "nothing": [],
        "lr": [hdet.LearningRate(0.3)],
        "momentum": [hdet.Momentum()],
        "beta2": [hdet.Betas(2)],
    }[explore]
    ensemble = hdet.Ensemble(
        optimizer, explored, gradients="all" if shared else "none", sync_every=4, model=model
    )
    for step in range(8):
        loss = advance(model, nn.CrossEntropyLoss(), optimizer, rank, step)
        if explore == "lr" and shared:  # it would be the same everywhere: make it tell whether it is averaged
            with torch.no_grad():
                for state in optimizer.state.values():
                    for name in set(state) - {"step"}:
                        state[name] += 0.001 * (rank + 1)
        before = optimizer_state(optimizer)
        ensemble.step(loss)
    return {"before": before, "after": optimizer_state(optimizer), "weights": tasks.flat(model)}


@pytest.mark.parametrize(
    ("kind", "explore", "shared"),
    [
        ("adamw", "nothing", False),
        ("sgd", "lr", False),
        ("adamw", "beta2", True),
        ("adamw", "momentum", True),
        ("sgd", "momentum", True),
    ],
)
def test_optimizer_state_is_averaged_where_it_differs(
    ranks: LocalProcesses, kind: str, explore: str, shared: bool
) -> None:
    results = ranks.run(with_state, kind, explore, shared)
    names = {"adamw": {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"}, "sgd": {"momentum_buffer"}}[kind]
    assert all_equal([r["weights"] for r in results])
    assert set(results[0]["after"]) == names
    for name in names:
        before, after = ([r[when][name] for r in results] for when in ("before", "after"))
        assert all_equal(after)
        exact = torch.stack(before).double().mean(0)
        torch.testing.assert_close(after[0].double(), exact, rtol=1e-5, atol=1e-9)
    bent = {"beta2": "exp_avg_sq", "momentum": "exp_avg" if kind == "adamw" else "momentum_buffer"}
    differing = [bent[explore]] if shared else names
    assert all(not all_equal([r["before"][name] for r in results]) for name in differing)


# ---------------------------------------------------------------------- arms


def arms_of(rank: int, counts: list[Any]) -> list[Answer]:
    answers = [answer_to(lambda count=count: hdet.Arms(count)) for count in counts]  # type: ignore[misc]
    dist.barrier()  # nobody leaves before all have come
    return answers


def test_arms_must_divide_the_ranks(ranks: LocalProcesses) -> None:
    for answers in ranks.run(arms_of, [3, 8, 0, -2, True, 2.0, 4]):
        for kind, message, _ in answers[:-1]:
            assert kind == "ValueError", message
            assert "Arms: count must divide the 4 ranks" in message
            assert "use one of 1, 2, 4" in message
        assert answers[-1][:2] == ("", "Arms(4 of 1)")
    for answers in ranks.run(arms_of, [2, 3], size=3):
        assert "use one of 1, 3" in answers[0][1]
        assert answers[1][0] == ""
