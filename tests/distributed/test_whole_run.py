"""A whole run on gradients of their own, judged by a probe: its records, its end, and resuming it."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import hdet
from hdet import history
from hdet.history import SyncRecord
from hdet.replicas.launch import LocalProcesses
from tests.distributed import tasks
from tests.distributed.classifier import (
    Classifier,
    advance,
    all_equal,
    listening,
    optimizer_state,
    probe_of,
    timeless,
)

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

    def step(self, step: int) -> SyncRecord | None:
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
    written = history.read_history(path)
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
            gone = sum(earlier.hyperparameters[k].delta for earlier in written[:i])
            leash = 2 * written[0].hyperparameters[k].spread
            if abs(known.slope) < known.error or (known.delta == 0 and abs(gone) == pytest.approx(leash)):
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
