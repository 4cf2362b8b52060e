"""One run, two policies: a horizon finds the learning rate while a regression moves weight decay."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import hdet
from hdet.autolr.policy import Horizon
from hdet.autolr.rule import HorizonController
from hdet.autolr.schedule import DrawnShape, WarmStableDecay
from hdet.history import SyncRecord
from hdet.loop.cycle import Cycle
from hdet.loop.windows import Windows
from hdet.replicas import replicas_of
from hdet.replicas.launch import LocalProcesses
from hdet.tuning.policies import Regression
from hdet.tuning.regression import RegressionController
from tests.distributed import tasks

STEPS, RANKS = 120, 4
#: Windows end with the search, three quarters into the run.
WINDOWS = Windows(first=10, share=0.2, last=90)
SPIKE = 45


class Run:
    """One replica of a run on gradients of its own; ``spiked`` lets the loss explode once, on all."""

    def __init__(self, rank: int, *, spiked: bool = False) -> None:
        self.rank, self.spiked = rank, spiked
        self.model = tasks.Regression()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1.0, weight_decay=0.3)
        self.schedule = DrawnShape(self.optimizer, WarmStableDecay.of(STEPS))
        self.probe = hdet.Probe(self.loss, self.held_out, model=self.model, per_sync=4)
        horizon = Horizon([hdet.LearningRate(spread=0.0)], self.probe, HorizonController(), WINDOWS)
        regression = Regression(
            [hdet.WeightDecay(spread=0.7)], WINDOWS, RegressionController(), probe=self.probe
        )
        self.cycle = Cycle(
            self.optimizer,
            [horizon, regression],
            replicas_of("Cycle", self.optimizer, model=self.model, process_group=None),
            schedule=self.schedule,
            total_steps=STEPS,
            gradients="none",
            model=self.model,
        )
        self.decays_used: list[float] = []
        self.optimizer.register_step_pre_hook(
            lambda *_: self.decays_used.append(self.optimizer.param_groups[0]["weight_decay"])
        )

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        return (self.model(x) - y).square().mean()

    def held_out(self, draw: int) -> tuple[Tensor, Tensor]:
        return tasks.batch(self.rank, 100_000 + draw)

    def step(self, step: int) -> SyncRecord | None:
        value = self.loss(tasks.batch(self.rank, step))
        self.optimizer.zero_grad()
        value.backward()
        self.optimizer.step()
        if self.spiked and step == SPIKE:
            with torch.no_grad():
                for parameter in self.model.parameters():
                    parameter.mul_(30.0)
        return self.cycle.step(value)

    def save(self) -> bytes:
        kept = io.BytesIO()
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "cycle": self.cycle.state_dict(),
        }
        torch.save(state, kept)
        return kept.getvalue()

    def load(self, saved: bytes) -> None:
        state = torch.load(io.BytesIO(saved), weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.cycle.load_state_dict(state["cycle"])


def whole(rank: int, spiked: bool = False) -> dict[str, Any]:
    run = Run(rank, spiked=spiked)
    records, weights = [], {}
    for step in range(STEPS):
        record = run.step(step)
        if record:
            records.append(replace(record, milliseconds=0.0))
            weights[record.step] = tasks.flat(run.model).clone()
    return {
        "records": records,
        "weights": weights,
        "end": tasks.flat(run.model).clone(),
        "decays_used": run.decays_used,
        "lr": run.optimizer.param_groups[0]["lr"],
    }


@pytest.fixture(scope="module")
def results(ranks: LocalProcesses) -> list[dict[str, Any]]:
    return ranks.run(whole, size=RANKS, timeout=120)


def test_the_weights_are_one_model_after_every_sync(results: list[dict[str, Any]]) -> None:
    first, *others = results
    assert len(first["weights"]) == len(first["records"]) > 5
    for other in others:
        assert other["weights"].keys() == first["weights"].keys()
        assert all(torch.equal(other["weights"][step], first["weights"][step]) for step in first["weights"])
        assert torch.equal(other["end"], first["end"]), "and at the end"


def test_each_policy_moves_its_own_and_both_stand_in_the_records(results: list[dict[str, Any]]) -> None:
    records: list[SyncRecord] = results[0]["records"]
    for other in results[1:]:
        assert [r.to_json() for r in other["records"]] == [r.to_json() for r in records]
    judged = [record for record in records if record.step <= 90]
    for record in judged:
        names = [known.name for known in record.hyperparameters]
        assert names == ["lr/0", "weight_decay"]
        assert len(record.horizon) == 1
        assert len(record.held_out) == RANKS
    first, *_, last = [record.hyperparameters[0] for record in judged]
    assert last.base_after > 1e3 * first.base_before, "the horizon climbs from next to nothing"
    decays = [record.hyperparameters[1] for record in judged]
    assert len({known.base_after for known in decays}) > 2, "the regression moves"
    assert all(len(set(known.values)) > 1 for known in decays), "and explores all the time"
    assert any(math.isfinite(known.slope) and known.error > 0 for known in decays)
    assert all(len(set(record.hyperparameters[0].values)) == 1 for record in judged), "the rate does not part"


def test_replicas_part_in_weight_decay_until_the_search_ends(results: list[dict[str, Any]]) -> None:
    used = [result["decays_used"] for result in results]
    apart = [len({decays[step] for decays in used}) > 1 for step in range(STEPS)]
    assert all(apart[:90])
    assert not any(apart[90:]), "what is not learnt any more, nobody explores"
    assert results[0]["lr"] == 0.0


def halved(rank: int, at: int) -> list[str]:
    first = Run(rank)
    for step in range(at):
        first.step(step)
    saved = first.save()
    first.cycle.detach()
    second = Run(rank)
    second.load(saved)
    records = [second.step(step) for step in range(at, STEPS)]
    return [replace(record, milliseconds=0.0).to_json() for record in records if record]


def test_a_resumed_run_goes_on_as_the_unbroken_one(
    ranks: LocalProcesses, results: list[dict[str, Any]]
) -> None:
    """Within a window, where every rank resumes from its own state."""
    at = 57
    unbroken = [record.to_json() for record in results[0]["records"] if record.step > at]
    assert unbroken
    for records in ranks.run(halved, at, size=RANKS, timeout=120):
        assert records == unbroken


def test_what_was_seen_in_a_window_that_is_undone_moves_nothing(ranks: LocalProcesses) -> None:
    """The horizon goes back; the losses that the regression has seen were those of weights that are gone."""
    for result in ranks.run(whole, True, size=RANKS, timeout=120):
        (back,) = [r for r in result["records"] if r.horizon and r.horizon[0].action == "back"]
        decay = back.hyperparameters[1]
        assert decay.base_after == decay.base_before
        assert math.isnan(decay.slope)
        later = [r.hyperparameters[1] for r in result["records"] if r.step > back.step and r.horizon]
        assert any(known.base_after != known.base_before for known in later), "and later ones do"
