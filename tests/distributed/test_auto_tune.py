"""One run tunes everything, on four replicas: what each policy may claim, and what must hold of any run."""

from __future__ import annotations

import io
import logging
import math
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import hdet
from hdet.autolr.policy import Horizon
from hdet.autolr.rule import HorizonController
from hdet.autolr.schedule import DrawnShape, WarmStableDecay
from hdet.history import SyncRecord
from hdet.loop.cycle import Cycle
from hdet.loop.policy import Policy
from hdet.loop.windows import Windows
from hdet.replicas import replicas_of
from hdet.replicas.launch import LocalProcesses
from hdet.tuning.policies import Regression, WindowRegression
from hdet.tuning.regression import RegressionController
from tests.distributed import classifier
from tests.standing import standing

STEPS, RANKS = 400, 4


class Run:
    """A replica that trains by itself between syncs, on samples of its own, and explores from the start."""

    def __init__(
        self, rank: int, explored: tuple[str, ...] = ("weight_decay", "dropout", "label_smoothing")
    ) -> None:
        torch.manual_seed(0)
        self.rank = rank
        self.model, self.criterion = classifier.Classifier(), nn.CrossEntropyLoss(label_smoothing=0.1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1.0, weight_decay=0.1)
        kinds = {
            "weight_decay": hdet.WeightDecay(bounds=(0.0, 2.0)),
            "dropout": hdet.Dropout(self.model, bounds=(0.0, 0.6)),
            "label_smoothing": hdet.LabelSmoothing(self.criterion, bounds=(0.0, 0.4)),
        }
        self.tune = hdet.AutoTune(
            self.optimizer,
            [kinds[name] for name in explored],
            probe=classifier.probe_of(self.model, self.criterion, rank),
            total_steps=STEPS,
        )
        standing(self.tune)

    def step(self, step: int) -> SyncRecord | None:
        classifier.advance(self.model, self.criterion, self.optimizer, self.rank, step)
        return self.tune.step()

    def save(self) -> bytes:
        kept = io.BytesIO()
        with self.tune.at_base():
            state = {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "tune": self.tune.state_dict(),
            }
        torch.save(state, kept)
        return kept.getvalue()

    def load(self, saved: bytes) -> None:
        state = torch.load(io.BytesIO(saved), weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.tune.load_state_dict(state["tune"])


def flat(model: nn.Module) -> Tensor:
    return torch.cat([t.detach().double().reshape(-1) for t in (*model.parameters(), *model.buffers())])


def whole(
    rank: int, explored: tuple[str, ...] = ("weight_decay", "dropout", "label_smoothing")
) -> dict[str, Any]:
    run = Run(rank, explored)
    records, weights = [], []
    for step in range(STEPS):
        if record := run.step(step):
            records.append(replace(record, milliseconds=0.0))
            weights.append(flat(run.model))
    return {
        "records": records,
        "weights": weights,
        "end": flat(run.model),
        "handed": run.tune.finish_(),
        "values": run.tune.values,
        "finished": run.tune.finished,
        "drop": run.model.drop.p,
    }


@pytest.fixture(scope="module")
def results(ranks: LocalProcesses) -> list[dict[str, Any]]:
    return ranks.run(whole, size=RANKS, timeout=180)


def test_weights_are_equal_on_all_ranks_after_every_sync(results: list[dict[str, Any]]) -> None:
    first, *others = results
    assert len(first["weights"]) > 8
    for other in others:
        assert all(map(torch.equal, first["weights"], other["weights"]))
        assert torch.equal(first["end"], other["end"])
        assert [r.to_json() for r in other["records"]] == [r.to_json() for r in first["records"]]
        assert other["handed"] == first["handed"]


def test_everything_moves_within_its_bounds(results: list[dict[str, Any]]) -> None:
    bounds = {"weight_decay": (0.0, 2.0), "dropout": (0.0, 0.6), "label_smoothing": (0.0, 0.4)}
    records = results[0]["records"]
    for name, (low, high) in bounds.items():
        known = [h for record in records for h in record.hyperparameters if h.name == name]
        assert all(low <= value <= high for h in known for value in (*h.values, h.base_after))
        assert len({h.base_after for h in known}) > 1, "it moves"
        assert results[0]["values"][name] == known[-1].base_after
    rates = [record.hyperparameters[0] for record in records]
    assert max(h.base_after for h in rates) > 1e3 * rates[0].base_before, "and the learning rate is found"
    assert results[0]["finished"]
    assert results[0]["drop"] == results[0]["values"]["dropout"], "which the model is left with"


def test_the_loss_falls_and_is_honestly_told(results: list[dict[str, Any]]) -> None:
    handed, first = results[0]["handed"], results[0]["records"][0].held_out_mean
    assert handed.loss < 0.8 * first
    assert handed.estimate == pytest.approx(handed.loss, rel=0.3)


def test_what_is_searched_for_no_more_nobody_explores(results: list[dict[str, Any]]) -> None:
    for record in results[0]["records"]:
        _, *others = record.hyperparameters
        assert all((len(set(h.values)) > 1) == (record.step <= 0.75 * STEPS) for h in others)


def halved(rank: int, at: int) -> list[str]:
    first = Run(rank)
    for step in range(at):
        first.step(step)
    saved = first.save()
    first.tune.detach()
    second = Run(rank)
    second.load(saved)
    records = [second.step(step) for step in range(at, STEPS)]
    return [replace(record, milliseconds=0.0).to_json() for record in records if record]


def test_a_resumed_run_equals_the_unbroken_one(ranks: LocalProcesses, results: list[dict[str, Any]]) -> None:
    """Within a window, where every rank resumes from its own state."""
    at = 67
    unbroken = [record.to_json() for record in results[0]["records"] if record.step > at]
    assert unbroken
    for records in ranks.run(halved, at, size=RANKS, timeout=180):
        assert records == unbroken


# ---------------------------------------------------------------------- no policy claims what another did


class Always(WindowRegression):
    """Every window decides."""

    move = Regression.move


class World(nn.Module):
    """A weight that moves by the learning rate in each step, and a value that nobody trains."""

    def __init__(self) -> None:
        super().__init__()
        self.walked = nn.Parameter(torch.full((4,), 100.0, dtype=torch.float64))
        self.dial = 5.0


def claimed(rank: int, rate_from: int, dial_from: int) -> list[tuple[float, float, float, float, float]]:
    """Of every judged window: progress claimed by the horizon and true; slope of the dial claimed and true,
    and its move.

    Held-out loss: what was walked since one step, and the dial from another one on, without noise.
    """
    world = World()
    optimizer = torch.optim.SGD(world.parameters(), lr=1.0)
    start, done = world.walked.detach().clone(), 0
    by_rate = by_dial = 0.0

    def held_out(_: int) -> Tensor:
        return 1e4 - by_rate * (world.walked - start).mean() + by_dial * world.dial

    probe = hdet.Probe(held_out, list(range(8)), model=world)
    windows = Windows(10, 0.2, 150)
    horizon = Horizon([hdet.LearningRate(spread=0.0)], probe, HorizonController(memory=0.0), windows)
    horizon.stood = True  # there was a window that did not improve: the dial is explored
    write = lambda value: setattr(world, "dial", value)  # noqa: E731
    dial = hdet.Hyperparameter("dial", lambda: world.dial, write, scale="linear", spread=0.1, bounds=(0, 1e3))
    cycle = Cycle(
        optimizer,
        [horizon, Always([dial], horizon, RegressionController(memory=0.0))],
        replicas_of("Cycle", optimizer, model=world, process_group=None),
        schedule=DrawnShape(optimizer, WarmStableDecay.of(200)),
        total_steps=200,
        gradients="none",
        model=world,
    )
    found, before, since = [], 0.0, []
    for done in range(1, 151):
        (-world.walked.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
        since.append(float((world.walked.detach() - start).mean()))
        if record := cycle.step(torch.zeros(())):
            # Of a long window every k-th iterate counts, and the last.
            counted = since[:: -max(1, len(since) // 8)]
            mean = math.fsum(counted) / len(counted)
            (moved,) = [h for h in record.hyperparameters if h.name == "dial"]
            (seen,) = record.horizon
            found.append((seen.progress, by_rate * (mean - before), moved.slope, by_dial, moved.delta))
            before, since = mean, []
            # An effect that begins must not look like one: walk, dial and loss go on from where they are.
            if (done >= rate_from and not by_rate) or (done >= dial_from and not by_dial):
                by_rate, by_dial = float(done >= rate_from), 2.0 * (done >= dial_from)
                found.append((math.nan,) * 5)
    return found


@pytest.mark.parametrize(("rate_from", "dial_from"), [(0, 80), (80, 0), (0, 999)], ids=lambda n: str(n))
def test_no_policy_claims_what_another_did(ranks: LocalProcesses, rate_from: int, dial_from: int) -> None:
    """Two effects of known size, one for each policy, one after the other, and one alone."""
    for found in ranks.run(claimed, rate_from, dial_from, size=RANKS, timeout=120):
        breaks = [i for i, row in enumerate(found) if math.isnan(row[1])]
        # The window after an effect began compares losses of two worlds, and the one before is its start.
        usual = [row for i, row in enumerate(found) if not any(i - 2 <= b <= i for b in breaks)]
        slopes = [(slope, true) for _, _, slope, true, _ in usual if math.isfinite(slope)]
        judged = [(progress, true) for progress, true, *_ in usual if math.isfinite(progress)]
        assert len(slopes) > 3
        assert len(judged) > 3
        for told, true in (*slopes, *judged):
            assert told == pytest.approx(true, rel=1e-6, abs=1e-6)
        assert any(move for *_, move in usual if math.isfinite(move)) == (dial_from < 999)
        assert any(true > 0 for _, true in judged) == (rate_from < 999)


def test_the_horizon_comes_first() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    probe = hdet.Probe(lambda x: model(x).mean(), [torch.ones(1, 2)] * 8, model=model)
    horizon = Horizon([hdet.LearningRate(spread=0.0)], probe, HorizonController(), Windows(10, 0.2, 150))
    policies: list[Policy] = [
        WindowRegression([hdet.WeightDecay()], horizon, RegressionController()),
        horizon,
    ]
    with pytest.raises(ValueError, match="the horizon must come first"):
        Cycle(optimizer, policies, replicas_of("Cycle", optimizer), total_steps=200)


def in_arms(rank: int) -> tuple[list[str], Tensor, list[tuple[float, ...]]]:
    torch.manual_seed(0)
    model, criterion = classifier.Classifier(), nn.CrossEntropyLoss()
    arms = hdet.Arms(2)
    net = arms.wrap(model, broadcast_buffers=False)
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.1)
    probe = classifier.probe_of(net, criterion, rank)
    tune = hdet.AutoTune(optimizer, [hdet.Dropout(net)], probe=probe, total_steps=300, gradients=arms)
    records = []
    for step in range(300):
        classifier.advance(net, criterion, optimizer, rank, step)
        if record := tune.step():
            records.append(replace(record, milliseconds=0.0))
    values = [h.values for r in records for h in r.hyperparameters if h.name == "dropout"]
    return [record.to_json() for record in records], flat(model), values


def test_arms_of_several_ranks_are_one_replica_each(ranks: LocalProcesses) -> None:
    first, *others = ranks.run(in_arms, size=RANKS, timeout=120)
    for records, weights, _ in others:
        assert records == first[0]
        assert torch.equal(weights, first[1])
    assert all(len(values) == 2 for values in first[2])
    assert any(len(set(values)) == 2 for values in first[2])


# ---------------------------------------------------------------------- explore="auto"


def explored(rank: int, wrapped: bool, shares: bool, gradients: Any) -> dict[str, Any]:
    """A few steps in which each rank trains by itself, or in DDP, which may be within no_sync, once a window
    did not improve."""
    torch.manual_seed(0)
    model: nn.Module = classifier.Classifier()
    model = DistributedDataParallel(model) if wrapped else model
    unshared = model.no_sync() if wrapped and not shares else nullcontext()  # type: ignore[operator]
    criterion, optimizer = nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters())

    def loss(batch: Any) -> Tensor:
        found: Tensor = criterion(model(batch[0]), batch[1])
        return found

    probe = hdet.Probe(loss, [classifier.batch(9, step) for step in range(8)], model=model)
    log = logging.getLogger("hdet")
    log.setLevel(logging.INFO)
    own: list[float] = []
    with unshared, classifier.listening() as heard:
        tune = standing(hdet.AutoTune(optimizer, probe=probe, total_steps=40, gradients=gradients))
        optimizer.register_step_pre_hook(lambda *_: own.append(optimizer.param_groups[0]["weight_decay"]))
        for step in range(12):
            loss(classifier.batch(rank, step)).backward()
            optimizer.step()
            optimizer.zero_grad()
            tune.step()
    log.setLevel(logging.NOTSET)
    return {
        "own": own,
        "values": tune.values,
        "said": [line for line in heard if "explores" in line or "left out" in line],
    }


@pytest.mark.parametrize(
    ("wrapped", "shares", "gradients", "why"),
    [
        (False, False, None, "2 replicas tell 1 apart"),
        (True, False, None, "2 replicas tell 1 apart"),
        (True, True, None, "2 replicas tell 1 apart"),
        (True, True, "all", "through the gradient"),
    ],
)
def test_two_ranks_explore_one_and_say_what_is_left_out(
    ranks: LocalProcesses, wrapped: bool, shares: bool, gradients: str | None, why: str
) -> None:
    a, b = ranks.run(explored, wrapped, shares, gradients, size=2)
    assert set(a["values"]) == set(b["values"]) == {"lr/0", "weight_decay"}
    assert a["own"][0] != b["own"][0], "each trains at its own"
    left_out, started = a["said"]
    assert b["said"] == []
    assert "; explores weight_decay from 0.01; " in started
    assert left_out.startswith("AutoTune: left out: dropout (")
    assert left_out.count(why) == 2


# ---------------------------------------------------------------------- replicas that are not alike


def told(rank: int, noise: float) -> list[str]:
    """What two classes of points are told of: the last rank has labels that are wrong so often."""
    torch.manual_seed(0)
    model, criterion = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters())
    draw = torch.Generator().manual_seed(rank)
    points = torch.randn(512, 6, generator=torch.Generator().manual_seed(99))

    def loss_of(x: Tensor, wrong: float = 0.0) -> Tensor:
        labels = (x.sum(1) > 0) ^ (torch.rand(len(x), generator=draw) < wrong)
        return criterion(model(x), labels.long())  # type: ignore[no-any-return]

    tune = hdet.AutoTune(
        optimizer,
        [hdet.WeightDecay()],
        probe=hdet.Probe(loss_of, points.split(64), model=model),
        total_steps=400,
    )
    records = []
    for _ in range(400):
        optimizer.zero_grad()
        loss_of(torch.randn(32, 6, generator=draw), noise if rank == RANKS - 1 else 0.0).backward()
        optimizer.step()
        records.append(tune.step())
        if tune.finished:
            break
    return [event for record in records if record is not None for event in record.events]


def heard(rank: int) -> list[str]:
    log = logging.getLogger("hdet")
    log.setLevel(logging.INFO)
    try:
        with classifier.listening() as lines:
            told(rank, 0.0)
    finally:
        log.setLevel(logging.NOTSET)
    return [line for line in lines if "fell until the end" in line]


def test_where_the_loss_falls_until_the_end_a_shared_gradient_is_recommended(ranks: LocalProcesses) -> None:
    first, *others = ranks.run(heard, size=RANKS, timeout=180)
    assert [line[:46] for line in first] == ["AutoTune: the loss fell until the end: there a"]
    assert not any(others), "rank 0 says it"


def test_a_replica_on_other_data_is_told(ranks: LocalProcesses) -> None:
    said = [e for e in ranks.run(told, 0.45, size=RANKS, timeout=180)[0] if "whatever its values" in e]
    assert len(said) == 1
    assert said[0].startswith(f"replica {RANKS - 1} is worse than the others, whatever its values")


def test_replicas_that_are_alike_are_told_nothing(ranks: LocalProcesses) -> None:
    said = ranks.run(told, 0.0, size=RANKS, timeout=180)[0]
    assert not [event for event in said if "whatever its values" in event]
