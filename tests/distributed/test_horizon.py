"""AutoLR on real ranks: one decision for all, whoever looked at what."""

from __future__ import annotations

import logging
import math
import statistics
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import hdet
from hdet.autolr.rule import HorizonController
from hdet.history import SyncRecord
from hdet.replicas.launch import LocalProcesses
from tests.distributed import tasks
from tests.unit.training import searched

#: Every step is taken on so many batches, and every window judged by so many, however many ranks share them.
PARTS, STEPS = 4, 120


def share(step: int, rank: int) -> tuple[Tensor, Tensor]:
    """This rank's part of a step's batch."""
    each = PARTS // dist.get_world_size()
    parts = [tasks.batch(part, step) for part in range(rank * each, (rank + 1) * each)]
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def loss_of(model: Any, batch: tuple[Tensor, Tensor]) -> Tensor:
    x, y = batch
    return (model(x) - y).square().mean()


def build(rank: int, kind: str, *, own: bool = False, **options: Any) -> tuple[Any, ...]:
    """Model, optimizer and AutoLR. ``own``: probes on two batches that no other rank has."""
    torch.manual_seed(0)
    model = DistributedDataParallel(tasks.Regression())
    parameters = list(model.parameters())
    optimizer: Any = (
        torch.optim.SGD(parameters, lr=1.0, momentum=0.9)
        if kind == "sgd"
        else torch.optim.AdamW(parameters, lr=1.0)
    )
    if kind == "pair":
        optimizer = [
            torch.optim.SGD(parameters[:1], lr=1.0, momentum=0.9),
            torch.optim.AdamW(parameters[1:], lr=1.0),
        ]
    per_sync = 2 if own else PARTS // dist.get_world_size()

    def probed(draw: int) -> tuple[Tensor, Tensor]:
        sync, k = divmod(draw, per_sync)
        return tasks.batch(rank * per_sync + k, 100_000 + sync)

    settings: dict[str, Any] = {"total_steps": STEPS, **options}
    loss_fn = settings.pop("loss_fn", None) or (lambda batch: loss_of(model.module, batch))
    own_options = {name: settings.pop(name) for name in ("per_sync", "choose_by") if name in settings}
    probe = hdet.Probe(loss_fn, probed, model=model, **{"per_sync": per_sync, **own_options})
    return model, optimizer, hdet.AutoLR(optimizer, probe=probe, **settings)


def train_step(model: Any, optimizer: Any, step: int, rank: int, scale: float = 1.0) -> None:
    model.zero_grad()
    (scale * loss_of(model, share(step, rank))).backward()
    for one in optimizer if isinstance(optimizer, list) else [optimizer]:
        one.step()


def flat(model: torch.nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])


def comparable(records: list[SyncRecord]) -> list[str]:
    return [replace(record, milliseconds=0.0).to_json() for record in records]


def search(rank: int, kind: str, options: dict[str, Any]) -> dict[str, Any]:
    """One run; windows of 10 steps get as many probe batches as are there, not one for 50 steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hdet.autolr.policy._STEPS_PER_BATCH", 2)
        poisoned = options.pop("poisoned", None)
        model, optimizer, auto = build(rank, kind, **options)
        records, weights = [], {}
        for step in range(STEPS):
            scale = math.nan if step == poisoned and rank == dist.get_world_size() - 1 else 1.0
            train_step(model, optimizer, step, rank, scale)
            record = auto.step()
            records += [record] if record else []
            weights[step + 1] = flat(model)
    return {"records": records, "weights": weights}


# ---------------------------------------------------------------------- one decision


@pytest.mark.parametrize(("size", "kind"), [(2, "sgd"), (4, "adamw")])
def test_all_ranks_decide_alike(ranks: LocalProcesses, size: int, kind: str) -> None:
    """Each has looked at batches of its own; what was seen is pooled, so all act on everything."""
    results = ranks.run(search, kind, {"own": True}, size=size)
    first = results[0]
    assert len(searched(first["records"])) == 8
    assert first["weights"][STEPS].isfinite().all()
    for other in results[1:]:
        assert comparable(other["records"]) == comparable(first["records"])
        assert all(torch.equal(other["weights"][step], first["weights"][step]) for step in first["weights"])


def of_fewer_batches(rank: int) -> dict[str, Any]:
    """From where anything is gained half of the batches will do: how many are left, and what was decided."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hdet.autolr.best._AGREE", 10.0)
        model, optimizer, auto = build(rank, "adamw", own=True, per_sync=8)
        records = []
        for step in range(STEPS):
            train_step(model, optimizer, step, rank)
            record = auto.step()
            records += [record] if record else []
        best = auto.finish_()
    left = auto._horizon.incumbent.weights.count
    return {"left": left, "records": comparable(records), "best": repr(best), "weights": flat(model)}


def test_all_ranks_measure_fewer_batches_together(ranks: LocalProcesses) -> None:
    first, other = ranks.run(of_fewer_batches, size=2)
    assert first["left"] == other["left"] == 2
    assert first["records"] == other["records"]
    assert first["best"] == other["best"]
    assert torch.equal(first["weights"], other["weights"])


def test_how_many_ranks_share_the_work_does_not_matter(ranks: LocalProcesses) -> None:
    """The same batches to train on and to look at, on 1, 2 or 4 ranks: the same decisions."""
    one, two, four = (ranks.run(search, "sgd", {}, size=size)[0] for size in (1, 2, 4))
    assert len(searched(one["records"])) == 8
    assert len({record.horizon[0].action for record in one["records"]}) > 1
    for other in (two, four):
        for a, b in zip(one["records"], other["records"], strict=True):
            for p, q in zip(a.horizon, b.horizon, strict=True):
                assert (p.action, p.why) == (q.action, q.why)
                assert (p.speed, p.loss_mean) == pytest.approx((q.speed, q.loss_mean), rel=1e-6, nan_ok=True)
                assert (p.gap, p.progress) == pytest.approx(
                    (q.gap, q.progress), rel=1e-5, abs=1e-9, nan_ok=True
                )
            for p, q in zip(a.hyperparameters, b.hyperparameters, strict=True):
                assert p.base_after == pytest.approx(q.base_after, rel=1e-6)
        torch.testing.assert_close(other["weights"][STEPS], one["weights"][STEPS], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", ["adamw", "pair"])
def test_all_ranks_go_back_together(ranks: LocalProcesses, kind: str) -> None:
    """One rank's loss is NaN once; the shared gradient takes it to all, and all return."""
    results = ranks.run(search, kind, {"own": True, "poisoned": 54}, size=2)
    for result in results:
        assert {r.step: r.horizon[0].action for r in result["records"] if r.horizon}[60] == "back"
        assert not result["weights"][59].isfinite().all()
        assert torch.equal(result["weights"][60], result["weights"][50])
        assert torch.equal(result["weights"][STEPS], results[0]["weights"][STEPS])
        assert result["weights"][STEPS].isfinite().all()
        assert comparable(result["records"]) == comparable(results[0]["records"])


# ---------------------------------------------------------------------- ranks that do not fit together


def disagree(rank: int) -> list[str]:
    """What each rank hears, for one disagreement after the other."""
    options: list[dict[str, Any]] = [
        {"per_sync": 1 + rank},
        {"rule": HorizonController(growth=1.0 + rank)},
        {"offload": bool(rank)},
        {"patience": 1 + rank},
        {"schedule": "cosine" if rank else "onecycle"},
        {"total_steps": 3 if rank else 200},
    ]
    heard = []
    for option in options:
        try:
            build(rank, "sgd", own=True, **option)
        except RuntimeError as error:
            heard.append(str(error))
    return heard


def test_ranks_that_disagree_are_told_so(ranks: LocalProcesses) -> None:
    """Also where one rank alone has given something that cannot be used: the other does not wait for it."""
    expected = [
        "probe batches a sync must be the same on all: rank 0 has 1; rank 1 has 2",
        "horizon controller must be the same on all",
        "offload must be the same on all: rank 0 has False; rank 1 has True",
        "patience must be the same on all: rank 0 has 1; rank 1 has 2",
        "schedule must be the same on all: rank 0 has 'onecycle'; rank 1 has 'cosine'",
        "arguments must be the same on all: rank 0 has usable; rank 1 has AutoLR: total_steps must be",
    ]
    for heard in ranks.run(disagree, size=2, timeout=30):
        for message, words in zip(heard, expected, strict=True):
            assert message.startswith(f"AutoLR: the ranks disagree. {words}")


def blind_on_one_rank(rank: int) -> tuple[int, str]:
    model, optimizer, auto = build(rank, "sgd", own=True, loss_fn=(lambda batch: math.nan) if rank else None)
    for step in range(30):
        train_step(model, optimizer, step, rank)
        try:
            auto.step()
        except ValueError as error:
            return step + 1, str(error)
    return 30, ""


def test_one_blind_probe_stops_all_ranks_at_once(ranks: LocalProcesses) -> None:
    for step, message in ranks.run(blind_on_one_rank, size=2, timeout=30):
        assert step == 20
        assert "step 20: the probe's loss must be finite" in message


def raising_on_one(rank: int) -> str:
    def raises(batch: tuple[Tensor, Tensor]) -> Tensor:
        if rank == 1:
            raise OSError("a disk was away")
        return batch[0].sum()

    model, optimizer, auto = build(rank, "sgd", loss_fn=raises)
    try:
        for step in range(40):
            train_step(model, optimizer, step, rank)
            auto.step()
    except (OSError, RuntimeError) as error:
        return str(error)
    return "nothing"


def test_a_probe_that_raises_on_one_rank_leaves_none_waiting(ranks: LocalProcesses) -> None:
    first, second = ranks.run(raising_on_one, size=2, timeout=60)
    assert "the probe raised on rank 1" in first
    assert second == "a disk was away"


def misled(rank: int) -> tuple[list[SyncRecord], list[str]]:
    """Rank 1 alone trains on batches of its probe; all give losses that are sums."""
    lines: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda line: lines.append(line.getMessage())  # type: ignore[method-assign]
    logging.getLogger("hdet").addHandler(listener)
    try:
        model, optimizer, auto = build(rank, "sgd", own=True, per_sync=4)
        records = []
        for step in range(40):
            batch = tasks.batch(rank * 2 + step % 2, 100_000 + step // 2) if rank else share(step, rank)
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            record = auto.step(50 * loss)
            records += [record] if record else []
    finally:
        logging.getLogger("hdet").removeHandler(listener)
    return records, lines


def test_what_one_rank_does_wrong_is_said_by_the_first(ranks: LocalProcesses) -> None:
    (first, said), (other, silence) = ranks.run(misled, size=2)
    assert comparable(first) == comparable(other)
    events = [event for record in first for event in record.events]
    for words in ("were trained on (among", "at the same weights the training loss is"):
        assert sum(words in event for event in events) == 1
        assert sum(words in line for line in said) == 1
        assert not any(words in line for line in silence)


# ---------------------------------------------------------------------- what is handed over


def hand_over(rank: int) -> dict[str, Any]:
    """Too little to learn from, for too long: noise is learnt by heart."""
    model, optimizer, auto = build(rank, "adamw", own=True, total_steps=400, patience=None)
    x, y = tasks.batch(rank, 0)
    x, y = x[:8], y[:8] + torch.randn(8, 1, generator=torch.Generator().manual_seed(rank), dtype=y.dtype)
    for _ in range(400):
        optimizer.zero_grad()
        loss_of(model, (x, y)).backward()
        optimizer.step()
        auto.step()
        if auto.finished:
            break
    end = flat(model)
    before = sum(loss_of(model.module, tasks.batch(k, 200_000)).item() for k in range(64)) / 64
    handed = auto.finish_()
    after = sum(loss_of(model.module, tasks.batch(k, 200_000)).item() for k in range(64)) / 64
    again = auto.best
    return {"handed": handed, "again": again, "end": end, "weights": flat(model), "losses": (before, after)}


def test_all_ranks_hand_over_the_same_weights(ranks: LocalProcesses) -> None:
    first, other = ranks.run(hand_over, size=2)
    assert first["handed"] == other["handed"] == first["again"]
    assert torch.equal(first["weights"], other["weights"])
    assert first["handed"].kind == "mean"
    assert first["handed"].step < 400
    assert not torch.equal(first["weights"], first["end"])
    before, after = first["losses"]
    assert after < 0.9 * before, "better than the end on samples that nobody has seen"
    assert abs(first["handed"].estimate - after) < 0.5 * after


def chosen_by_accuracy(rank: int) -> dict[str, Any]:
    """Each rank measures its own batches, and what is off is off by the rank alone."""

    def accuracy(batch: tuple[Tensor, Tensor]) -> Tensor:
        return ((model.module(batch[0]) > 0) == (batch[1] > 0)).float().mean()

    lines: list[Any] = []
    model, optimizer, auto = build(rank, "adamw", own=True, choose_by=accuracy, history=lines.append)
    for step in range(STEPS):
        train_step(model, optimizer, step, rank)
        auto.step()
    best = auto.finish_()
    halves = auto._horizon.incumbent.weights.probe.halves()
    with torch.no_grad():
        own = [[float(accuracy(batch)) for batch in half] for half in halves]
    return {"best": best, "own": own, "weights": flat(model), "lines": lines}


def test_a_metric_chooses_alike_on_all_ranks_by_all_their_batches(ranks: LocalProcesses) -> None:
    first, second = ranks.run(chosen_by_accuracy, size=2)
    assert repr(first["best"]) == repr(second["best"])
    assert torch.equal(first["weights"], second["weights"])
    for k, found in enumerate((first["best"].metric, first["best"].metric_estimate)):
        assert found == pytest.approx(statistics.fmean([*first["own"][k], *second["own"][k]]))
    seen = [line["horizon"][0]["metric"] for line in first["lines"] if "kind" not in line]
    assert 0.5 < max(seen) <= first["best"].metric + 0.02
    (handed,) = [line["weights"] for line in first["lines"] if line.get("kind") == "handed"]
    assert handed["metric_estimate"] == first["best"].metric_estimate
