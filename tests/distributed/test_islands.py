"""Islands: replicas train by themselves for a round, and an outer optimizer steps from their mean."""

from __future__ import annotations

import io
import math
import statistics
import time
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import hdet
from hdet.replicas import ProcessReplicas
from hdet.replicas.launch import LocalProcesses
from tests.distributed.classifier import all_equal, answer_to, listening, timeless
from tests.distributed.islands import STEPS, SYNC_EVERY, Island, Net, batch
from tests.states import inside

# ---------------------------------------------------------------------- the outer step


def trained(rank: int, outer: hdet.Outer | None, options: dict[str, Any]) -> dict[str, Any]:
    island = Island(rank, outer, **options)
    ends, after, records = [], [], []
    for step in range(STEPS):
        loss = island.train_once(step)
        ends.append(island.flat())
        records.append(island.ensemble.step(loss))
        after.append(island.flat())
    kept = [t for state in island.optimizer.state.values() for t in state.values() if t.dim()]
    return {
        "ends": ends,
        "after": after,
        "records": [timeless(record) for record in records if record],
        "buffers": torch.cat([b.reshape(-1).double() for b in island.model.buffers()]),
        "state": torch.cat([t.reshape(-1) for t in kept]) if kept else torch.zeros(0),
    }


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_mean_and_nesterov_by_hand(ranks: LocalProcesses, optimizer: str) -> None:
    results = ranks.run(trained, hdet.Outer(0.7, 0.9), {"optimizer": optimizer})
    theta = v = torch.zeros(0, dtype=torch.float64)
    for step in range(STEPS):
        if step % SYNC_EVERY == 0:
            before = results[0]["after"][step - 1] if step else None
        if step % SYNC_EVERY < SYNC_EVERY - 1:
            continue
        assert all_equal([r["after"][step] for r in results])
        assert not all_equal([r["ends"][step] for r in results])
        mean = torch.stack([r["ends"][step].double() for r in results]).mean(0)
        if before is not None:
            theta = before.double()
            g = theta - mean
            v = 0.9 * v + g
            expected = theta - 0.7 * (g + 0.9 * v)
            torch.testing.assert_close(results[0]["after"][step].double(), expected, rtol=1e-5, atol=1e-6)
        else:  # round 0: its start is the model as it was made
            torch.manual_seed(0)
            theta = torch.cat([p.detach().reshape(-1) for p in Net().parameters()]).double()
            v = theta - mean
            expected = theta - 0.7 * 1.9 * v
            torch.testing.assert_close(results[0]["after"][step].double(), expected, rtol=1e-5, atol=1e-6)
    assert all_equal([r["buffers"] for r in results])
    assert all_equal([r["state"] for r in results])


def test_a_rate_of_one_without_momentum_is_the_plain_mean_bit_for_bit(ranks: LocalProcesses) -> None:
    for size in (2, 3):
        plain = ranks.run(trained, None, {"optimizer": "adamw"}, size=size)
        outer = ranks.run(trained, hdet.Outer(1.0, 0.0), {"optimizer": "adamw"}, size=size)
        for a, b in zip(plain, outer, strict=True):
            assert all(torch.equal(x, y) for x, y in zip(a["after"], b["after"], strict=True))
            assert torch.equal(a["state"], b["state"])
            assert a["records"] == b["records"]


def in_arms(rank: int) -> Tensor:
    torch.manual_seed(rank)
    model = torch.nn.Linear(5, 1)
    arms = hdet.Arms(2)
    wrapped = arms.wrap(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05)
    ensemble = hdet.Ensemble(
        optimizer, [], gradients=arms, outer=hdet.Outer(), wire="int8", sync_every=3, model=wrapped
    )
    for step in range(6):
        x, y = batch(rank, step)
        optimizer.zero_grad()
        loss = (wrapped(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        ensemble.step(loss.detach())
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def test_islands_may_be_arms(ranks: LocalProcesses) -> None:
    assert all_equal(ranks.run(in_arms))


# ---------------------------------------------------------------------- what one rank alone runs into


def lose_one(rank: int, wire: Any, by: str) -> dict[str, Any]:
    island = Island(rank, hdet.Outer(), wire=wire)
    events: list[str] = []
    velocities = []
    for step in range(STEPS):
        loss = island.train_once(step)
        if step == 2 * SYNC_EVERY - 1 and rank == 1:
            with torch.no_grad():
                island.model.one.weight[0, 0] = math.inf if by == "weights" else math.nan
            loss = loss if by == "weights" else loss * math.nan
        record = island.ensemble.step(loss)
        if record:
            events += record.events
            velocities.append(island.velocity())
    return {"events": events, "velocities": velocities, "end": island.flat()}


@pytest.mark.parametrize("by", ["loss", "weights"])
@pytest.mark.parametrize("wire", [None, "bf16", "int8"])
def test_a_lost_replica_is_left_out_and_not_remembered(
    ranks: LocalProcesses, wire: str | None, by: str
) -> None:
    results = ranks.run(lose_one, wire, by, size=3)
    why = "its weights are not finite" if by == "weights" else "its loss is nan"
    for result in results:
        said = [event for event in result["events"] if "travel" not in event]
        assert said == [f"replica 1 left out of the mean: {why}"]
        assert all(bool(v.isfinite().all()) for v in result["velocities"])
        assert bool(result["end"].isfinite().all())
    assert all_equal([r["end"] for r in results])


def begin_apart(rank: int) -> Any:
    island = Island(rank, hdet.Outer(), seed=rank)
    for step in range(SYNC_EVERY - 1):
        island.step(step)
    loss = island.train_once(SYNC_EVERY - 1)
    return answer_to(lambda: island.ensemble.step(loss))


def test_replicas_that_began_apart_are_refused_on_all_ranks(ranks: LocalProcesses) -> None:
    for kind, said, seconds in ranks.run(begin_apart, size=3):
        assert kind == "RuntimeError"
        assert (
            "with outer= all replicas must begin with the same weights, and rank 1 began with others" in said
        )
        assert "Arms.wrap(model)" in said
        assert seconds < 30


def skip_first(rank: int) -> Tensor:
    """A GradScaler skips a step on one rank alone, the first one of a round."""
    island = Island(rank, hdet.Outer(), (hdet.OuterLR(),), wire="int8")
    for step in range(STEPS):
        if rank == 2 and step % SYNC_EVERY == 0:
            island.ensemble.step(1.0)
        else:
            island.step(step)
        if step % SYNC_EVERY == 0:
            island.ensemble.converge()
    return island.flat()


def test_a_skipped_step_keeps_nobody_waiting(ranks: LocalProcesses) -> None:
    assert all_equal(ranks.run(skip_first, size=3))


# ---------------------------------------------------------------------- eight bits


def sent(rank: int, outer: hdet.Outer, momentum: float, wire: Any = None) -> dict[str, Any]:
    torch.manual_seed(0)
    model = torch.nn.Linear(200, 200)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=momentum)
    at_syncs = []
    with listening() as heard:
        ensemble = hdet.Ensemble(
            optimizer, [], gradients="none", outer=outer, wire=wire, sync_every=2, model=model
        )
        for step in range(6):
            x = torch.randn(8, 200, generator=torch.Generator().manual_seed(10 * step + rank))
            loss = (model(x) - x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            before = ensemble.replicas.sent_bytes
            if ensemble.step(loss.detach()):
                at_syncs.append(ensemble.replicas.sent_bytes - before)
    return {"sent": at_syncs, "heard": heard, "end": model.weight.detach()}


def test_bytes_on_the_wire(ranks: LocalProcesses) -> None:
    """All that a rank sends at a sync, what ranks tell each other included; of the optimizer's state all."""
    plain, packed = (ranks.run(sent, hdet.Outer(), 0.0, how) for how in (None, "int8"))
    heavy = ranks.run(sent, hdet.Outer(), 0.9, "int8")
    weights = 200 * 201
    for a, b, c in zip(plain, packed, heavy, strict=True):
        for full, little, more in zip(a["sent"], b["sent"], c["sent"], strict=True):
            assert full == pytest.approx(6 * weights, rel=0.01)
            assert little <= 0.3 * full
            assert little == pytest.approx(1.5 * weights, rel=0.02)
            assert more == pytest.approx(7.5 * weights, rel=0.02)
    (told,) = packed[0]["heard"]
    assert told.startswith(f"Ensemble: step 2: {weights} weights travel in int8: a rank sends 60")
    assert told.endswith(" bytes for them at a sync, 0.25 of the 241200 of float32")
    assert all_equal([r["end"] for r in packed])


def wait_in_vain(rank: int, way: str) -> Any:
    replicas = ProcessReplicas(None, torch.device("cpu"), patience=timedelta(seconds=1))
    if rank == 1:
        time.sleep(3)
        return ("RuntimeError", "waited in vain", 0.0)
    rows = torch.zeros(2, 8, dtype=torch.uint8)
    return answer_to(lambda: replicas.scatter_bytes(rows) if way == "to" else replicas.gather_bytes(rows[0]))


@pytest.mark.parametrize("way", ["to", "from"])
def test_no_wait_for_bytes_is_without_a_bound(ranks: LocalProcesses, way: str) -> None:
    for kind, said, seconds in ranks.run(wait_in_vain, way, size=2):
        assert kind == "RuntimeError"
        assert "waited in vain" in said
        assert seconds < 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("size", "wire"), [(2, "int8"), (3, "int8"), (4, "int8"), (3, "bf16")])
def test_all_ranks_decode_the_same_and_stay_near_the_exact_run(
    ranks: LocalProcesses, dtype: torch.dtype, size: int, wire: str
) -> None:
    exact = ranks.run(trained, hdet.Outer(), {"dtype": dtype}, size=size)
    packed = ranks.run(trained, hdet.Outer(), {"dtype": dtype, "wire": wire}, size=size)
    for step in range(SYNC_EVERY - 1, STEPS, SYNC_EVERY):
        assert all_equal([r["after"][step] for r in packed])
    moved = (exact[0]["after"][-1] - exact[0]["ends"][0]).double().norm()
    apart = (exact[0]["after"][-1] - packed[0]["after"][-1]).double().norm()
    assert apart < (0.15 if dtype == torch.bfloat16 else 0.05) * moved


# ---------------------------------------------------------------------- state

HOW: dict[str, tuple[tuple[Any, ...], Any]] = {
    "plain": ((), None),
    "int8": ((), "int8"),
    "bf16": ((), "bf16"),
    "explored exactly": ((hdet.OuterLR(),), None),
    "explored": ((hdet.OuterLR(), hdet.OuterMomentum()), "int8"),
}


def island_of(rank: int, how: str) -> Island:
    explore, wire = HOW[how]
    return Island(rank, hdet.Outer(), explore, wire=wire, optimizer="adamw")


def halved(rank: int, how: str, at: int | None) -> dict[str, Any]:
    island = island_of(rank, how)
    records = []
    for step in range(STEPS):
        if step == at:
            file = io.BytesIO()
            torch.save(island.save(), file)
            island.ensemble.detach()
            file.seek(0)
            island = island_of(rank, how)
            island.load(torch.load(file, weights_only=True))
        record = island.step(step)
        records += [timeless(record)] if record else []
    return {"end": island.flat(), "records": records, "velocity": island.velocity()}


@pytest.mark.parametrize("how", HOW)
def test_a_resumed_run_is_the_unbroken_one_bit_for_bit(ranks: LocalProcesses, how: str) -> None:
    """At a sync, and within a round, where every rank resumes from its own state."""
    unbroken = ranks.run(halved, how, None)
    for at in (2 * SYNC_EVERY, 2 * SYNC_EVERY + 3):
        for whole, half in zip(unbroken, ranks.run(halved, how, at), strict=True):
            assert torch.equal(half["end"], whole["end"])
            assert torch.equal(half["velocity"], whole["velocity"])
            assert half["records"] == whole["records"]


def from_rank_0(rank: int, how: str) -> dict[str, Any]:
    island = island_of(rank, how)
    for step in range(2 * SYNC_EVERY):
        island.step(step)
    saved = [island.save()]
    dist.broadcast_object_list(saved)
    island = island_of(rank, how)
    island.load(saved[0])
    for step in range(2 * SYNC_EVERY, STEPS):
        island.step(step)
    return {"end": island.flat()}


@pytest.mark.parametrize("how", ["plain", "int8", "explored exactly"])
def test_at_a_sync_one_ranks_checkpoint_is_the_run(ranks: LocalProcesses, how: str) -> None:
    """Replicas part with the first step of a round, so that also with explored values all are alike before.
    What one rank has not sent yet is its own, and lost with this."""
    results = ranks.run(from_rank_0, how)
    assert all_equal([r["end"] for r in results])
    unbroken = ranks.run(halved, how, None)
    assert torch.equal(results[0]["end"], unbroken[0]["end"]) == (how != "int8")


# ---------------------------------------------------------------------- explored


class Watched(Island):
    """Looks at the weights between the pre-step hook and the step: where this replica begins."""

    def begin(self, step: int) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(batch(self.rank, step))
        loss.backward()
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            parameter.grad.zero_()
        self.optimizer.step()  # without a gradient SGD stays where the hook has put the weights
        begun = self.flat()
        self.ensemble.step(loss.detach())
        return begun


def explored(rank: int) -> dict[str, Any]:
    island = Watched(rank, hdet.Outer(0.7, 0.5), (hdet.OuterLR(0.5), hdet.OuterMomentum(0.5)))
    found: list[dict[str, Any]] = []
    ends: list[Tensor] = []
    for step in range(STEPS):
        row: dict[str, Any] = {"before": island.flat()}
        if step % SYNC_EVERY == 0:
            values = island.ensemble._fan_out.values_of
            row["values"] = values("outer_lr"), values("outer_momentum")
            row["base"] = dict(island.ensemble.values)
            with island.ensemble.at_base():
                row["at base"] = dict(island.ensemble._parts.converge.outer.group)  # type: ignore[union-attr]
            if step == SYNC_EVERY:
                island.ensemble.converge()
                row["converged"] = island.flat()
            row["v"] = island.velocity() if step else None
            row["start"] = island.begin(step)
            row["after"] = island.flat()
            found.append(row)
            continue
        loss = island.train_once(step)
        ends.append(island.flat())
        record = island.ensemble.step(loss)
        if record:
            found[-1] |= {"end": ends[-1], "next": island.flat(), "record": record}
    return {"found": found, "kept": inside(island.ensemble.state_dict())["outer"]["start"]}


def test_replicas_begin_apart_on_one_line_and_meet_at_the_base_point(ranks: LocalProcesses) -> None:
    results = ranks.run(explored)
    for k in range(STEPS // SYNC_EVERY):
        rows = [r["found"][k] for r in results]
        assert all_equal([row["before"] for row in rows]), "after a sync all have the one model"
        assert all_equal([row["next"] for row in rows])
        assert rows[0]["at base"] == {
            "lr": rows[0]["base"]["outer_lr"],
            "momentum": rows[0]["base"]["outer_momentum"],
        }
        lrs, momenta = rows[0]["values"]
        assert len(set(lrs)) > 1
        recorded = {known.name: known.values for known in rows[0]["record"].hyperparameters}
        assert recorded == {"outer_lr": lrs, "outer_momentum": momenta}
        if k == 0:  # nothing is known of a direction
            assert all_equal([row["start"] for row in rows])
            continue
        starts = torch.stack([row["start"] for row in rows]).double()
        theta = rows[0]["before"].double()
        torch.testing.assert_close(starts.mean(0), theta, rtol=1e-6, atol=1e-7)
        last = results[0]["found"][k - 1]
        mean = torch.stack([r["found"][k - 1]["end"] for r in results]).double().mean(0)
        g, v = last["before"].double() - mean, whole(rows[0]["v"].double())
        b = [lr * mu for lr, mu in zip(lrs, momenta, strict=True)]
        for r in range(4):
            moved = -(lrs[r] - sum(lrs) / 4) * g - (b[r] - sum(b) / 4) * v
            torch.testing.assert_close(starts[r] - theta, moved, rtol=1e-3, atol=1e-6)
            assert float(moved.norm()) > 1e-3
    converged = [r["found"][1]["converged"] for r in results]
    assert all(torch.equal(weights, results[0]["found"][1]["before"]) for weights in converged)
    assert not results[0]["kept"]


def whole(velocity: Tensor) -> Tensor:
    """v of each memory once, as the parameters of the model, of which two are one matrix."""
    one, tied = Net(), Net().one.weight.numel()
    bias = one.one.bias.numel()
    matrix = velocity[:tied].view_as(one.one.weight)
    upto = tied + bias + 2 * one.norm.weight.numel()
    return torch.cat([velocity[:upto], matrix.t().reshape(-1), velocity[upto:]])


class Chase:
    """A target that wanders from round to round; a round leads half of the way to it. The step that would
    have met the last target is twice the displacement: an outer rate of 2."""

    def __init__(self, rank: int, lr: float, rounds: int, every: int = 5) -> None:
        self.model = torch.nn.Linear(12, 1, bias=False)
        torch.nn.init.zeros_(self.model.weight)
        self.target = torch.zeros(12)
        self.noise = torch.Generator().manual_seed(100 + rank)
        self.drift = torch.Generator().manual_seed(7)
        self.every, self.rounds = every, rounds
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=(1 - 0.5 ** (1 / every)) / 2)
        probe = hdet.Probe(lambda _: self.loss(), [torch.zeros(1)], model=self.model)
        self.ensemble = hdet.Ensemble(
            self.optimizer,
            [hdet.OuterLR(0.3)],
            gradients="none",
            outer=hdet.Outer(lr, 0.0),
            probe=probe,
            sync_every=every,
            total_steps=rounds * every,
            model=self.model,
        )

    def loss(self, noise: Tensor | float = 0.0) -> Tensor:
        return (self.model.weight[0] - self.target - noise).square().sum()

    def run(self) -> dict[str, Any]:
        values = []
        for step in range(self.rounds * self.every):
            if step % self.every == 0:
                self.target = self.target + torch.randn(12, generator=self.drift)
            self.optimizer.zero_grad()
            loss = self.loss(0.3 * torch.randn(12, generator=self.noise))
            loss.backward()
            self.optimizer.step()
            if self.ensemble.step(loss.detach()):
                values.append(self.ensemble.values["outer_lr"])
        return {"values": values, "end": self.model.weight.detach()[0]}


def chase(rank: int, lr: float, rounds: int) -> dict[str, Any]:
    return Chase(rank, lr, rounds).run()


@pytest.mark.parametrize("lr", [0.5, 3.5])
def test_a_better_outer_rate_is_found(ranks: LocalProcesses, lr: float) -> None:
    results = ranks.run(chase, lr, 60)
    values = results[0]["values"]
    assert all(r["values"] == values for r in results)
    assert all_equal([r["end"] for r in results])
    assert 1.5 < statistics.median(values[30:]) < 2.5


def ended(rank: int) -> dict[str, Any]:
    island = Island(rank, hdet.Outer(), (hdet.OuterLR(), hdet.OuterMomentum()))
    found = {}
    for step in range(STEPS):
        island.step(step)
        if step == 2 * SYNC_EVERY + 1:
            island.ensemble.end_search()
            found["search"] = island.flat()
            found["levels"] = [set(row) for row in island.ensemble._fan_out.levels]
    return found | {"run": island.flat()}


def test_all_are_at_one_point_when_the_search_ends_and_when_the_run_does(ranks: LocalProcesses) -> None:
    results = ranks.run(ended)
    assert all_equal([r["search"] for r in results])
    assert all(r["levels"] == [{0.0}, {0.0}] for r in results)
    assert all_equal([r["run"] for r in results])
