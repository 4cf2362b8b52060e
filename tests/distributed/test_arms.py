"""Gradients shared by all ranks, by arms or by none: what then differs, what is averaged, what is refused."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import hdet
from hdet import history
from hdet.replicas.launch import LocalProcesses
from tests.distributed import tasks

Answer = tuple[str, str, float]


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 12)
        self.norm = nn.BatchNorm1d(12)
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.drop(torch.tanh(self.norm(self.first(x)))))
        return out


def batch(rank: int, step: int, size: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(size, 6, generator=generator)
    noise = torch.randn(size, 3, generator=generator)
    return x, (x[:, :3] + 0.5 * noise).argmax(1)


def gradient(model: nn.Module, criterion: nn.Module, rank: int, step: int) -> Tensor:
    """Forward and backward; the dropout of a rank and step is always the same."""
    torch.manual_seed(7919 * step + rank)
    x, y = batch(rank, step)
    loss: Tensor = criterion(model(x), y)
    loss.backward()
    return loss


def advance(
    model: nn.Module, criterion: nn.Module, optimizer: torch.optim.Optimizer, rank: int, step: int
) -> Tensor:
    optimizer.zero_grad()
    loss = gradient(model, criterion, rank, step)
    optimizer.step()
    return loss.detach()


def probe_of(model: nn.Module, criterion: nn.Module, rank: int = 0) -> hdet.Probe:
    """Every rank probes batches of its own."""
    return hdet.Probe(
        lambda pair: criterion(model(pair[0]), pair[1]),
        [batch(rank, 10_000 + i, 64) for i in range(4)],
        model=model,
        per_sync=2,
    )


@contextmanager
def listening() -> Iterator[list[str]]:
    """What hdet logs on this rank."""
    heard: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    listener = Listener()
    logging.getLogger("hdet").addHandler(listener)
    try:
        yield heard
    finally:
        logging.getLogger("hdet").removeHandler(listener)


def answer_to(call: Callable[[], object]) -> Answer:
    began = time.monotonic()
    try:
        return "", repr(call()), time.monotonic() - began
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - began


def all_equal(tensors: list[Tensor]) -> bool:
    return all(torch.equal(tensors[0], other) for other in tensors)


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


def no_exploring(rank: int) -> dict[str, Any]:
    torch.manual_seed(0)
    model, criterion = Classifier(), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with listening() as heard:
        ensemble = hdet.Ensemble(optimizer, explore=[], gradients="none", sync_every=2, model=model)
        found = []
        for step in range(4):
            loss = advance(model, criterion, optimizer, rank, step)
            before = tasks.flat(model)
            record = ensemble.step(loss)
            found.append((before, tasks.flat(model), record))
    saved = json.loads(json.dumps(ensemble.state_dict()))
    ensemble.load_state_dict(saved)
    return {"found": found, "heard": heard, "explored": saved["explored"]}


def test_without_anything_to_explore_weights_are_averaged_and_that_is_all(ranks: LocalProcesses) -> None:
    results = ranks.run(no_exploring)
    assert results[0]["heard"] == []
    assert results[0]["explored"] == []
    for step in range(4):
        before = [r["found"][step][0] for r in results]
        after = [r["found"][step][1] for r in results]
        records = [r["found"][step][2] for r in results]
        assert not all_equal(before)
        if step % 2 == 0:
            assert records == [None] * 4
            assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))
            continue
        assert all_equal(after)
        exact = torch.stack(before).double().mean(0)
        torch.testing.assert_close(after[0].double(), exact, rtol=1e-6, atol=1e-7)
        assert all(record.hyperparameters == () for record in records)
        assert all(min(record.distance_measured) > 0 for record in records)


# ---------------------------------------------------------------------- optimizer state


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    names = {name for state in optimizer.state.values() for name in state} - {"step"}
    return {
        name: torch.cat([state[name].reshape(-1).clone() for state in optimizer.state.values()])
        for name in sorted(names)
    }


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


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_optimizer_state_is_not_touched_on_a_shared_gradient(ranks: LocalProcesses, kind: str) -> None:
    for result in ranks.run(with_state, kind, "lr", True, size=3):
        for name, before in result["before"].items():
            assert torch.equal(before, result["after"][name])


# ---------------------------------------------------------------------- a whole run

SYNC_EVERY, SYNCS, AT_SYNC, WITHIN = 4, 6, 12, 14


class Run:
    """One replica of a run that explores two regularisers on local gradients, judged by a probe."""

    def __init__(self, rank: int, path: str | None = None) -> None:
        self.rank = rank
        torch.manual_seed(0)
        self.model, self.criterion = Classifier(), nn.CrossEntropyLoss(label_smoothing=0.1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.02)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, SYNC_EVERY * SYNCS)
        self.ensemble = hdet.Ensemble(
            self.optimizer,
            [hdet.Dropout(self.model), hdet.LabelSmoothing(self.criterion)],
            gradients="none",
            probe=probe_of(self.model, self.criterion, rank),
            sync_every=SYNC_EVERY,
            total_steps=SYNC_EVERY * SYNCS,
            schedule=self.schedule,
            model=self.model,
            history=path,
        )

    @property
    def own(self) -> tuple[float, float]:
        return self.model.drop.p, self.criterion.label_smoothing

    def step(self, step: int) -> hdet.SyncRecord | None:
        loss = advance(self.model, self.criterion, self.optimizer, self.rank, step)
        return self.ensemble.step(loss)

    def save(self) -> dict[str, Any]:
        return {
            "model": {name: t.clone() for name, t in self.model.state_dict().items()},
            "optimizer": deepcopy(self.optimizer.state_dict()),
            "schedule": self.schedule.state_dict(),
            "ensemble": json.dumps(self.ensemble.state_dict()),
        }

    def load(self, saved: dict[str, Any]) -> None:
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.schedule.load_state_dict(saved["schedule"])
        self.ensemble.load_state_dict(json.loads(saved["ensemble"]))

    def finish(self) -> dict[str, Any]:
        self.ensemble.detach()
        return {
            "weights": torch.cat([t.double().reshape(-1) for t in self.model.state_dict().values()]),
            "state": optimizer_state(self.optimizer),
            "base": self.own,
        }


def timeless(record: hdet.SyncRecord) -> str:
    return replace(record, milliseconds=0.0).to_json()


def from_rank_zero(saved: dict[str, Any]) -> dict[str, Any]:
    sent: list[Any] = [saved]
    dist.broadcast_object_list(sent, 0)
    received: dict[str, Any] = sent[0]
    return received


def whole_run(rank: int, path: str) -> dict[str, Any]:
    with listening() as heard:
        run = Run(rank, path)
        records, path_of_own, within = [], [], []
        checkpoints: dict[int, dict[str, Any]] = {}
        for step in range(SYNC_EVERY * SYNCS):
            path_of_own.append(run.own)
            record = run.step(step)
            records += [record] if record else []
            within.append(tasks.flat(run.model))
            if step + 1 == WITHIN:
                run.ensemble.converge()
            if step + 1 in (AT_SYNC, WITHIN):
                checkpoints[step + 1] = run.save()
        found = {"records": [timeless(r) for r in records], "own": path_of_own, "within": within}
        found |= run.finish() | {"heard": list(heard)}
    for at, saved in checkpoints.items():
        # At a sync one rank's checkpoint serves all; within an interval the losses are each rank's own.
        again = Run(rank)
        again.load(from_rank_zero(saved) if at == AT_SYNC else saved)
        own, rest = [], []
        for step in range(at, SYNC_EVERY * SYNCS):
            own.append(again.own)
            record = again.step(step)
            rest += [timeless(record)] if record else []
            if step + 1 == WITHIN:
                again.ensemble.converge()
        found[f"resumed at {at}"] = {"own": own, "records": rest, **again.finish()}
    return found


@pytest.fixture(scope="module")
def whole(ranks: LocalProcesses, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Any], Path]:
    path = tmp_path_factory.mktemp("whole") / "history.jsonl"
    return ranks.run(whole_run, str(path)), path


def test_a_run_ends_with_one_model_and_one_set_of_values(whole: tuple[list[Any], Path]) -> None:
    results, _ = whole
    assert all_equal([r["weights"] for r in results])
    assert len({r["base"] for r in results}) == 1
    for name in results[0]["state"]:
        assert all_equal([r["state"][name] for r in results])
    for dropout, smoothing in [results[0]["base"]]:
        assert 0 <= dropout <= 0.9
        assert 0 <= smoothing <= 0.9
    assert results[0]["base"] != (0.2, 0.1), "the probe has moved them"
    together = [all_equal([r["within"][step] for r in results]) for step in range(SYNC_EVERY * SYNCS)]
    assert together == [(step + 1) % SYNC_EVERY == 0 for step in range(SYNC_EVERY * SYNCS)]
    assert not any("cannot" in said or "driven" in said for said in results[0]["heard"])


def test_the_records_agree_and_read_back_as_written(whole: tuple[list[Any], Path]) -> None:
    results, path = whole
    assert len(results[0]["records"]) == SYNCS
    assert all(r["records"] == results[0]["records"] for r in results)
    written = history.read(path)
    assert [timeless(record) for record in written] == results[0]["records"]
    for i, record in enumerate(written):
        assert (record.step, record.round) == (SYNC_EVERY * (i + 1), i)
        assert len(record.held_out) == 4
        assert all(map(math.isfinite, (*record.held_out, record.held_out_mean)))
        assert len(set(record.held_out)) == 4
        assert [h.name for h in record.hyperparameters] == ["dropout", "label_smoothing"]
        for k, known in enumerate(record.hyperparameters):
            assert known.spread > 0
            # What the record says each rank had is what stood there while it trained.
            first = i * SYNC_EVERY
            assert all(
                r["own"][first + j][k] == known.values[q] for q, r in enumerate(results) for j in range(4)
            )
            assert len(set(known.values)) == 2, "an orthogonal design has two levels"
            if i == SYNCS - 1:  # nothing would be trained at what the last step moves to
                assert math.isnan(known.slope)
                assert known.base_after == known.base_before
                continue
            assert math.isfinite(known.slope)
            assert known.error > 0
            if abs(known.slope) < known.error:
                assert known.base_after == known.base_before
            else:
                at_its_bound = known.base_before == 0 and known.slope > 0
                assert at_its_bound or (known.base_after - known.base_before) * known.slope < 0
                assert known.delta * known.slope < 0
    last = written[-1].hyperparameters
    assert tuple(known.base_after for known in last) == results[0]["base"]


@pytest.mark.parametrize("at", [AT_SYNC, WITHIN])
def test_a_resumed_run_goes_on_as_the_unbroken_one(whole: tuple[list[Any], Path], at: int) -> None:
    for result in whole[0]:
        again = result[f"resumed at {at}"]
        assert again["own"] == result["own"][at:], "the same assignments"
        assert again["records"] == result["records"][at // SYNC_EVERY :]
        assert again["base"] == result["base"]
        assert torch.equal(again["weights"], result["weights"])


def arms_judged_by_a_probe(rank: int) -> dict[str, Any]:
    torch.manual_seed(rank)
    model, criterion = Classifier(), nn.CrossEntropyLoss(label_smoothing=0.1)
    arms = hdet.Arms(2)
    wrapped = arms.wrap(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.02)
    ensemble = hdet.Ensemble(
        optimizer,
        [hdet.LabelSmoothing(criterion)],
        gradients=arms,
        probe=probe_of(model, criterion, rank),
        sync_every=2,
        model=wrapped,
    )
    records = []
    for step in range(6):
        record = ensemble.step(advance(wrapped, criterion, optimizer, rank, step))
        records += [record] if record else []
    ensemble.detach()
    return {
        "records": [timeless(r) for r in records],
        "held out": [len(r.held_out) for r in records],
        "losses": [len(r.losses) for r in records],
        "base": criterion.label_smoothing,
        "weights": tasks.flat(model),
    }


def test_an_arm_is_one_replica_measured_twice(ranks: LocalProcesses) -> None:
    results = ranks.run(arms_judged_by_a_probe)
    assert all(r["records"] == results[0]["records"] for r in results)
    assert results[0]["held out"] == [2] * 3
    assert results[0]["losses"] == [4] * 3
    assert len({r["base"] for r in results}) == 1
    assert all_equal([r["weights"] for r in results])


# ---------------------------------------------------------------------- refused, on every rank


def refused(rank: int, how: str) -> tuple[Answer, tuple[float, float], int]:
    torch.manual_seed(0)
    model, criterion = Classifier(), nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    options: dict[str, Any] = {"gradients": "none", "model": model}
    explore: list[Any] = [hdet.Dropout(model), hdet.LabelSmoothing(criterion)]
    if how == "arms of a part":
        halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        options["gradients"] = hdet.Arms(2, process_group=halves[rank // 2])
    elif how == "wired to all":
        options["model"] = DistributedDataParallel(model)
    elif how == "wired to none":
        options["gradients"], options["model"] = hdet.Arms(2), DistributedDataParallel(model)
    elif how == "too many":
        options["gradients"] = hdet.Arms(2)
        options["probe"] = probe_of(model, criterion)
    elif how == "orthogonal":
        options["design"] = "orthogonal"
        explore.append(hdet.GradientClip())  # which hooks into the optimizer
    elif how == "word":
        options["gradients"] = "some"
    elif how == "disagree":
        options["gradients"] = "all" if rank else "none"
    answer = answer_to(lambda: hdet.Ensemble(optimizer, explore, **options))
    hooks = len(optimizer._optimizer_step_pre_hooks)  # no public name counts them
    return answer, (model.drop.p, criterion.label_smoothing), hooks


@pytest.mark.parametrize(
    ("how", "size", "kind", "words"),
    [
        ("arms of a part", 4, "ValueError", ["Ensemble", "4 ranks", "of 2", "same process_group"]),
        ("wired to all", 4, "ValueError", ["Ensemble", "DistributedDataParallel over 4", "Arms(count).wrap"]),
        ("wired to none", 4, "ValueError", ["2 ranks share a gradient", "over 4"]),
        (
            "too many",
            4,
            "ValueError",
            ["at most 1", "got 2 (dropout, label_smoothing)", "more replicas"],
        ),
        ("orthogonal", 3, "ValueError", ["got 3", "use 2 replicas (or arms)", "design='permutation'"]),
        ("word", 2, "ValueError", ["gradients must be 'all', 'none' or an hdet.Arms", "'some'"]),
        ("disagree", 2, "RuntimeError", ["disagree", "gradients must be the same", "'none'", "'all'"]),
    ],
)
def test_what_cannot_work_is_refused_by_all_ranks_and_leaves_nothing_behind(
    ranks: LocalProcesses, how: str, size: int, kind: str, words: list[str]
) -> None:
    for (got, message, seconds), values, hooks in ranks.run(refused, how, size=size):
        assert got == kind, message
        assert all(word in message for word in words), message
        assert seconds < 20
        assert values == (0.2, 0.1)
        assert hooks == 0


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


def test_alone_there_is_one_arm() -> None:
    model = nn.Linear(2, 2)
    arms = hdet.Arms(1)
    assert arms.wrap(model) is model
    assert (arms.count, arms.size, arms.index) == (1, 1, 0)
    with pytest.raises(ValueError, match="count must divide the 1 rank, got 2; use one of 1"):
        hdet.Arms(2)


def unlike_start(rank: int) -> Answer:
    torch.manual_seed(0)
    model = Classifier()
    model.drop.p = 0.1 + 0.1 * rank
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return answer_to(lambda: hdet.Ensemble(optimizer, [hdet.Dropout(model)], gradients="none", model=model))


def test_ranks_must_start_from_one_value(ranks: LocalProcesses) -> None:
    for kind, message, _ in ranks.run(unlike_start, size=2):
        assert kind == "RuntimeError", f"not refused: {message}"
        assert "disagree" in message
        assert "dropout" in message


# ---------------------------------------------------------------------- doubted, and said once


def doubted(rank: int, how: str) -> dict[str, Any]:
    torch.manual_seed(rank if how in ("strangers", "wrapped") else 0)
    model, criterion = Classifier(), nn.CrossEntropyLoss()
    if how == "wrapped":
        hdet.Arms(dist.get_world_size()).wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with listening() as heard:
        ensemble = hdet.Ensemble(optimizer, [], gradients="none", sync_every=2, model=model)
        at_start = list(heard)
        records = []
        for step in range(4):
            seen_as = 0 if how == "same batches" else rank
            records.append(ensemble.step(advance(model, criterion, optimizer, seen_as, step)))
    return {"start": at_start, "all": list(heard), "events": [r.events for r in records if r]}


@pytest.mark.parametrize(("how", "warned"), [("strangers", True), ("wrapped", False), ("alike", False)])
def test_replicas_that_begin_as_strangers_are_doubted(ranks: LocalProcesses, how: str, warned: bool) -> None:
    results = ranks.run(doubted, how)
    assert any("norm apart" in said and "Arms.wrap(model)" in said for said in results[0]["start"]) == warned
    assert all(r["all"] == [] for r in results[1:]), "one rank speaks for all"
    if not warned:
        assert results[0]["all"] == []


def test_gradients_of_their_own_that_make_no_difference_are_doubted(ranks: LocalProcesses) -> None:
    results = ranks.run(doubted, "same batches", size=3)
    assert sum("same weights although each arm" in said for said in results[0]["all"]) == 1
    for result in results:
        for events in result["events"]:
            assert any("DistributedDataParallel over all ranks" in event for event in events)


def empty_signal(rank: int) -> list[list[str]]:
    """A regulariser judged by the training loss, then on a shared gradient."""
    found = []
    choices: list[Any] = ["none", "all"]
    for gradients in choices:
        torch.manual_seed(0)
        model = Classifier()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        probe = None if gradients == "none" else probe_of(model, nn.CrossEntropyLoss())
        with listening() as heard:
            hdet.Ensemble(
                optimizer,
                [hdet.Dropout(model)],
                gradients=gradients,
                controller=hdet.RegressionController(),
                probe=probe,
                model=model,
            )
        found.append(list(heard))
    return found


def test_a_signal_that_cannot_judge_is_said_to_be_one(ranks: LocalProcesses) -> None:
    by_loss, on_shared = ranks.run(empty_signal, size=2)[0]
    assert len(by_loss) == len(on_shared) == 1
    assert "driven to its lower bound. Give probe=" in by_loss[0]
    assert "shared by all replicas" in on_shared[0]
    assert "gradients='none' or hdet.Arms" in on_shared[0]


# ---------------------------------------------------------------------- failing together


def failing_probe(rank: int, calls: int) -> dict[str, Any]:
    """On rank 2 the probe raises in the given call, once; training goes on after it."""
    torch.manual_seed(0)
    model, criterion = Classifier(), nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    asked = 0

    def loss(pair: tuple[Tensor, Tensor]) -> Tensor:
        nonlocal asked
        asked += 1
        if rank == 2 and asked == calls:
            raise KeyError("no such sample")
        return F.cross_entropy(model(pair[0]), pair[1])

    ensemble = hdet.Ensemble(
        optimizer,
        [hdet.Dropout(model), hdet.LabelSmoothing(criterion)],
        gradients="none",
        probe=hdet.Probe(loss, [batch(rank, 9999)], model=model, per_sync=1),
        sync_every=2,
        model=model,
    )
    answers, records, own = [], [], []
    for step in range(6):
        own.append((model.drop.p, criterion.label_smoothing))
        value = advance(model, criterion, optimizer, rank, step)

        def go(value: Tensor = value) -> None:
            record = ensemble.step(value)
            records.extend([record] if record else [])

        answers.append(answer_to(go))
    weights = tasks.flat(model)
    ensemble.detach()
    return {
        "answers": answers,
        "records": records,
        "own": own,
        "weights": weights,
        "base": (model.drop.p, criterion.label_smoothing),
    }


@pytest.mark.parametrize("calls", [1, 2], ids=["at its own weights", "at the mean"])
def test_a_probe_that_fails_on_one_rank_fails_on_all(ranks: LocalProcesses, calls: int) -> None:
    results = ranks.run(failing_probe, calls)
    for rank, result in enumerate(results):
        kinds = [kind for kind, _, _ in result["answers"]]
        assert kinds == ["", "KeyError" if rank == 2 else "RuntimeError", "", "", "", ""]
        assert "no such sample" in result["answers"][1][1] if rank == 2 else True
        assert "probe raised on rank 2" in result["answers"][1][1] if rank != 2 else True
        assert result["answers"][1][2] < 20
        assert len(result["records"]) == 2
    assert all_equal([r["weights"] for r in results])
    assert len({r["base"] for r in results}) == 1
    for k, record in enumerate(results[0]["records"]):
        for h, known in enumerate(record.hyperparameters):
            stood = tuple(r["own"][2 * k + 2][h] for r in results)
            assert known.values == stood, "a replica is judged by the values that it had"


def one_sided(rank: int, how: str) -> Answer:
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 3), nn.Linear(6, 2)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    ensemble = hdet.Ensemble(optimizer, [], gradients="none", sync_every=2, model=model)

    def train() -> None:
        for step in range(2):
            x, y = batch(rank, step)
            used = [0] if how == "one more" else [rank % 2]
            if how == "one more" and rank == 1:
                used = [0, 1]
            loss = sum((F.cross_entropy(model[i](x), y) for i in used), torch.zeros(()))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ensemble.step(loss.detach())

    return answer_to(train)


@pytest.mark.parametrize("how", ["one more", "another of the same shape"])
def test_state_for_different_layers_is_an_error_on_all_ranks(ranks: LocalProcesses, how: str) -> None:
    for kind, message, seconds in ranks.run(one_sided, how):
        assert kind == "RuntimeError", f"the state of unlike layers was mixed: {message}"
        assert "some rank's gradient has not reached all parameters" in message
        assert seconds < 20
