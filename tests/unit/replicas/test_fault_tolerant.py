"""Replicas that fail and come back, on a stand-in for torchft's Manager (tests/fake_torchft.py).

torchft itself is not installed here; docs/log.md says how much of it has been run.
"""

from __future__ import annotations

import copy
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hdet
from hdet import history
from hdet.engine.design import multipliers
from hdet.replicas import Undone
from tests.fake_torchft import FakeManager, Killed, Lighthouse
from tests.states import inside

T, SPREAD = 5, 0.2
BOUND_S = 60


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1))


TEMPLATE = network()


class Replica:
    """One replica group of torchft: a process, here a thread, with its model, manager and ensemble."""

    def __init__(self, lighthouse: Lighthouse, name: str, path: Path | None = None, **options: Any) -> None:
        self.name, self.lighthouse = name, lighthouse
        self.model = copy.deepcopy(TEMPLATE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda _: 1.0)
        parts = {"model": self.model, "optimizer": self.optimizer, "schedule": self.schedule}

        def load(state: dict[str, Any]) -> None:
            for key, part in parts.items():
                part.load_state_dict(state[key])

        self.manager = FakeManager(
            lighthouse,
            name,
            load_state_dict=load,
            state_dict=lambda: {key: part.state_dict() for key, part in parts.items()},
            init_sync=options.pop("init_sync", False),
            min_replica_size=options.pop("min_replica_size", 1),
        )
        settings: dict[str, Any] = {
            "explore": [hdet.LearningRate(spread=SPREAD), hdet.WeightDecay(1e-3)],
            "controller": hdet.RegressionController(),
            "total_steps": 40,
            "gradients": "none",
            "sync_every": T,
        }
        self.ensemble = hdet.Ensemble(
            self.optimizer,
            **{**settings, **options},
            schedule=self.schedule,
            model=self.model,
            replicas=hdet.FaultTolerantReplicas(self.manager),
            history=path,
        )
        self.generator = torch.Generator().manual_seed(sum(map(ord, name)))
        self.records: dict[int, hdet.SyncRecord] = {}
        #: The weights before and after every step that ended in a sync, or should have.
        self.before: dict[int, Tensor] = {}
        self.after: dict[int, Tensor] = {}
        self.known: dict[int, Any] = {}

    def weights(self) -> Tensor:
        state = [value.reshape(-1).double() for value in self.model.state_dict().values()]
        kept = [of["momentum_buffer"].reshape(-1).double() for of in self.optimizer.state.values() if of]
        return torch.cat([*state, *kept])

    def step(self) -> None:
        x = torch.randn(8, 4, generator=self.generator)
        loss = F.mse_loss(self.model(x), x[:, :1] * x[:, 1:2])
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        due = (self.ensemble.steps + 1) % T == 0
        before = self.as_it_came = self.weights() if due else None
        record = self.ensemble.step(loss)
        if before is not None:  # one who joins has leapt to the others' step
            at = self.ensemble.steps
            self.before[at], self.after[at] = before, self.weights()
            saved = inside(self.ensemble.state_dict())
            self.known[at] = {key: saved[key] for key in ("steps", "round", "explored", "policies", "arms")}
        if record is not None:
            self.records[record.step] = record

    def train(self, until: int) -> None:
        while self.ensemble.steps < until:
            self.step()


def together(*work: Callable[[], None]) -> None:
    """All at once, each in a thread of its own; what one raises is raised, but for the death of a process."""
    failures: list[BaseException] = []

    def run(what: Callable[[], None]) -> None:
        try:
            what()
        except Killed:
            pass
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(what,), daemon=True) for what in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(BOUND_S)
        assert not thread.is_alive(), "a replica waits for ever"
    if failures:
        raise failures[0]


def train(replicas: list[Replica], until: int) -> None:
    together(*(lambda r=r: r.train(until) for r in replicas))


def alike(replicas: list[Replica], step: int) -> bool:
    first = replicas[0]
    return all(
        torch.equal(r.after[step], first.after[step]) and r.known[step] == first.known[step]
        for r in replicas[1:]
    )


def dies_at_sum(number: int) -> Callable[[FakeManager], None]:
    def before_sum(manager: FakeManager) -> None:
        if manager.sums == number:
            manager.lighthouse.leave(manager.name)
            raise Killed

    return before_sum


def sums_of_a_sync() -> int:
    """How many sums a sync of this model takes."""
    lighthouse = Lighthouse()
    alone = Replica(lighthouse, "a")
    alone.train(T)
    return alone.manager.sums


def test_from_three_to_two_to_three(tmp_path: Path) -> None:
    lighthouse = Lighthouse()
    path = tmp_path / "history.jsonl"
    a, b, c = (Replica(lighthouse, name, path) for name in "abc")
    train([a, b, c], 12)
    # In the first round nobody knew of the others: all trained at the base, and all are averaged.
    assert a.records[5].hyperparameters[0].multipliers == (1.0, 1.0, 1.0)
    assert sorted(a.records[10].hyperparameters[0].multipliers) == list(multipliers(3, SPREAD))
    assert alike([a, b, c], 5)
    assert alike([a, b, c], 10)

    lighthouse.leave("c")  # between two syncs
    spread = inside(a.ensemble.state_dict())["explored"][0]["spread"]
    train([a, b], 22)
    # The two who are left are heard for the values that they were dealt when they were three.
    third = a.records[15]
    assert len(third.losses) == 2
    assert set(third.hyperparameters[0].multipliers) < set(multipliers(3, spread))
    assert "2 replicas are here, 0 of them new; values were dealt to 3" in third.events
    torch.testing.assert_close(a.after[15], (a.before[15] + b.before[15]) / 2, rtol=0, atol=1e-6)
    # From then on values are dealt to two.
    fourth = a.records[20].hyperparameters[0]
    assert sorted(fourth.multipliers) == pytest.approx(multipliers(2, fourth.spread))
    assert alike([a, b], 20)

    d = Replica(lighthouse, "d", path)  # takes the place of the one that was lost
    with torch.no_grad():
        d.model[0].weight.fill_(100.0)  # whatever it trains until it meets the others
    train([a, b, d], 25)
    joins = a.records[25]
    assert d.ensemble.steps == 25
    assert "3 replicas are here, 1 of them new; values were dealt to 2" in joins.events
    assert len(joins.losses) == 2  # what it trained says nothing
    torch.testing.assert_close(a.after[25], (a.before[25] + b.before[25]) / 2, rtol=0, atol=1e-6)
    assert alike([a, b, d], 25)
    assert d.manager.step == a.manager.step
    # What was known is kept, by all.
    assert d.known[25]["policies"][0]["joint"][0][1] > 0

    train([a, b, d], 40)
    assert len(d.records[30].losses) == 3
    last = a.records[40].hyperparameters[0]
    assert sorted(last.multipliers) == pytest.approx(multipliers(3, last.spread))
    assert alike([a, b, d], 40)
    assert [record.step for record in history.read(path)] == list(range(5, 41, 5))


@pytest.mark.parametrize("at", ["the roll", "the mean", "the end"])
def test_one_that_dies_during_a_sync_leaves_it_undone(
    at: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lighthouse = Lighthouse()
    path = tmp_path / "history.jsonl"
    a, b, c = (Replica(lighthouse, name, path) for name in "abc")
    train([a, b, c], 9)
    a.manager.before_sum = dies_at_sum({"the roll": 1, "the mean": 5, "the end": sums_of_a_sync() - 1}[at])
    dealt = {r.name: r.ensemble.replica_lrs for r in (b, c)}
    known = {r.name: (r.known[5]["explored"], r.known[5]["policies"]) for r in (b, c)}
    with caplog.at_level(logging.WARNING, "hdet"):
        train([a, b, c], 10)
    for r in (b, c):
        assert 10 not in r.records
        assert torch.equal(r.after[10], r.before[10])  # bit for bit
        assert r.ensemble.replica_lrs == dealt[r.name]
        assert (r.known[10]["explored"], r.known[10]["policies"]) == known[r.name]
        assert r.manager.step == 1
    train([b, c], 20)
    assert "values were dealt to 3" in b.records[15].events[0]
    assert alike([b, c], 15)
    assert alike([b, c], 20)
    torch.testing.assert_close(b.after[15], (b.before[15] + c.before[15]) / 2, rtol=0, atol=1e-6)
    # Who is rank 0 now goes on with the history.
    assert [record.step for record in history.read(path)] == [5, 15, 20]


def test_a_large_tensor_that_is_summed_where_it_lies_is_put_back() -> None:
    lighthouse = Lighthouse()
    managers = [FakeManager(lighthouse, name, load_state_dict=print, state_dict=dict) for name in "ab"]
    weights = [torch.full((1 << 20,), float(i)) for i in range(2)]

    def meet(i: int) -> None:
        replicas = hdet.FaultTolerantReplicas(managers[i])
        mean = replicas.plan_mean([weights[i]])
        for number in (None, 1):  # the first sum compares arguments
            if i == 1 and number is not None:
                managers[i].before_sum = dies_at_sum(number)
            with replicas.meeting():
                replicas.keep([weights[i]])
                mean()

    with pytest.raises(Undone, match="connection closed by peer"):
        together(lambda: meet(0), lambda: meet(1))
    assert torch.equal(weights[0], torch.full((1 << 20,), 0.5))  # the first mean, and not what was left after


def test_one_that_alone_could_not_commit_takes_up_the_others_state(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lighthouse = Lighthouse()
    a, b, c = (Replica(lighthouse, name) for name in "abc")
    train([a, b, c], 9)
    c.manager.loses = sums_of_a_sync() - 1  # the others have what it brought
    train([a, b, c], 10)
    assert 10 in a.records
    assert 10 not in c.records
    assert torch.equal(c.after[10], c.before[10])
    assert (a.manager.step, c.manager.step) == (2, 1)

    c.manager.loses = None
    train([a, b, c], 15)
    assert alike([a, b, c], 15)
    assert (a.manager.step, c.manager.step) == (3, 3)
    assert len(c.records[15].losses) == 2  # its own round was dealt by a sync that it had no part in
    train([a, b, c], 20)
    assert len(c.records[20].losses) == 3
    assert alike([a, b, c], 20)


def test_a_first_sync_brings_all_to_one_start() -> None:
    """``init_sync``: whoever began elsewhere takes the state of one, and nothing is decided by that round."""
    lighthouse = Lighthouse()
    replicas = [Replica(lighthouse, name, init_sync=True) for name in "ab"]
    with torch.no_grad():
        replicas[1].model[0].weight.add_(1.0)
    train(replicas, 10)
    assert alike(replicas, 5)
    assert torch.equal(replicas[0].after[5], replicas[0].before[5])
    assert len(replicas[0].records[5].losses) == 1
    assert len(replicas[0].records[10].losses) == 2


def test_too_few_replicas_do_not_commit_and_the_end_says_so() -> None:
    lighthouse = Lighthouse()
    a, b = (Replica(lighthouse, name, min_replica_size=2, total_steps=10) for name in "ab")
    train([a, b], 7)
    lighthouse.leave("b")
    with pytest.raises(Undone, match="lost on the way"):
        a.train(10)
    assert torch.equal(a.weights(), a.as_it_came)
    b2 = Replica(lighthouse, "b", min_replica_size=2, total_steps=10)
    b2.ensemble.load_state_dict(a.ensemble.state_dict())
    together(a.ensemble.converge, b2.ensemble.converge)  # once there are enough again
    assert torch.equal(a.weights(), b2.weights())
    assert torch.equal(a.weights(), a.as_it_came)  # one who joins has no part in the mean


def test_a_newcomer_with_other_arguments_is_told_and_the_others_go_on() -> None:
    lighthouse = Lighthouse()
    a, b = (Replica(lighthouse, name) for name in "ab")
    train([a, b], 7)
    stranger = Replica(lighthouse, "c", total_steps=99)

    def comes() -> None:
        with pytest.raises(RuntimeError, match="not those of the other replicas"):
            stranger.train(T)
        lighthouse.leave("c")

    together(lambda: a.train(15), lambda: b.train(15), comes)
    assert sorted(a.records) == [5, 15]
    assert alike([a, b], 15)


def test_converge_within_a_round_and_a_mismatch_are_met() -> None:
    lighthouse = Lighthouse()
    a, b = (Replica(lighthouse, name) for name in "ab")
    train([a, b], 8)
    together(a.ensemble.converge, b.ensemble.converge)
    assert torch.equal(a.weights(), b.weights())
    train([a, b], 9)
    before = a.weights(), b.weights()
    with pytest.raises(Undone, match="different things"):
        together(a.ensemble.converge, b.step)
    assert torch.equal(a.weights(), before[0])
    assert 10 not in b.records


def refused(message: str, **options: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Replica(Lighthouse(), "a", **options)


def test_what_cannot_be_taken_back_is_refused() -> None:
    refused("gradients of its own; pass gradients='none', got 'all'", gradients="all")
    refused("outer= is not taken back", outer=hdet.Outer())


def test_a_manager_that_recovers_too_late_is_refused() -> None:
    manager = Replica(Lighthouse(), "a").manager
    manager._use_async_quorum = True  # type: ignore[misc]
    with pytest.raises(ValueError, match="use_async_quorum=False"):
        hdet.FaultTolerantReplicas(manager)
    manager._use_async_quorum = False  # type: ignore[misc]
    manager._group_world_size = 2  # type: ignore[misc]
    with pytest.raises(ValueError, match="one process, got a group of 2"):
        hdet.FaultTolerantReplicas(manager)


def test_a_horizon_is_refused() -> None:
    replica = Replica(Lighthouse(), "a")
    model = copy.deepcopy(TEMPLATE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = hdet.Probe(lambda x: F.mse_loss(model(x), x[:, :1]), [torch.randn(4, 4)] * 8, model=model)
    with pytest.raises(TypeError, match=r"a horizon keeps weights of the past.*use hdet\.Ensemble"):
        hdet.AutoTune(
            optimizer,
            [hdet.WeightDecay(1e-3)],
            probe=probe,
            total_steps=40,
            gradients="none",
            replicas=hdet.FaultTolerantReplicas(replica.manager),
        )
