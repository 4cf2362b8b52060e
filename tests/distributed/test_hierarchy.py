"""A hierarchy of means: an arm's every T steps, that of all every kT; decided is where all meet."""

from __future__ import annotations

import io
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import hdet
from hdet.replicas.launch import LocalProcesses
from tests.distributed.classifier import all_equal, answer_to, timeless
from tests.distributed.islands import Island

T, SYNC_EVERY, STEPS = 2, 6, 24


def island(rank: int, **options: Any) -> Island:
    arms = hdet.Arms(2, average_every=T)
    options = {"outer": None, "optimizer": "adamw", "sync_every": SYNC_EVERY, "total_steps": STEPS, **options}
    return Island(rank, options.pop("outer"), options.pop("explore", ()), gradients=arms, **options)


def kept(run: Island) -> Tensor:
    """All that is averaged: weights, buffers, what the optimizer remembers."""
    state = [t for one in run.optimizer.state.values() for t in one.values() if t.dim()]
    every = [*run.model.parameters(), *run.model.buffers(), *state]
    return torch.cat([t.detach().reshape(-1).double() for t in every])


def trained(rank: int, options: dict[str, Any]) -> dict[str, Any]:
    run = island(rank, **options)
    found: dict[str, Any] = {"own": [], "after": [], "sent": [], "within": [], "records": []}
    for step in range(STEPS):
        loss = run.train_once(step)
        found["own"].append(kept(run))
        within = run.ensemble._parts.within
        assert within is not None
        before = run.ensemble.replicas.sent_bytes, within.replicas.sent_bytes
        record = run.ensemble.step(loss)
        found["sent"].append(run.ensemble.replicas.sent_bytes - before[0])
        found["within"].append(within.replicas.sent_bytes - before[1])
        found["after"].append(kept(run))
        found["records"] += [record] if record else []
    return found


def test_an_arm_is_one_model_every_T_steps_and_all_are_every_kT(ranks: LocalProcesses) -> None:
    results = ranks.run(trained, {})
    for step in range(STEPS):
        own, after = ([r[what][step] for r in results] for what in ("own", "after"))
        everywhere, in_arm = (step + 1) % SYNC_EVERY == 0, (step + 1) % T == 0
        assert all_equal(after) == everywhere
        for arm in (0, 2):
            assert all_equal(after[arm : arm + 2]) == in_arm
            assert not all_equal(own[arm : arm + 2])
            if in_arm and not everywhere:
                mean = torch.stack(own[arm : arm + 2]).mean(0)
                torch.testing.assert_close(after[arm], mean, rtol=1e-5, atol=1e-6)
        if everywhere:  # all have the same weight, whatever came before
            torch.testing.assert_close(after[0], torch.stack(own).mean(0), rtol=1e-5, atol=1e-6)
            assert all(r["within"][step] > 0 for r in results)
        # Between machines nothing travels until all meet.
        assert all((r["sent"][step] > 0) == everywhere for r in results)
        assert all((r["within"][step] > 0) == in_arm for r in results)


def test_arms_are_compared_by_what_all_their_ranks_explore(ranks: LocalProcesses) -> None:
    vote = hdet.SoftmaxController("auto", momentum=0.0, step_size=0.5)
    explored = {"outer": hdet.Outer(), "wire": "int8", "explore": (hdet.OuterLR(),), "controller": vote}
    results = ranks.run(trained, explored)
    moved: list[float] = []
    for k in range(STEPS // SYNC_EVERY):
        records = [r["records"][k] for r in results]
        moved += [known.delta for known in records[0].hyperparameters]
        assert len({timeless(record) for record in records}) == 1, "all decide alike"
        assert all(len(known.values) == 2 for known in records[0].hyperparameters), "one value an arm"
        assert all_equal([r["after"][(k + 1) * SYNC_EVERY - 1] for r in results])
    assert any(moved)


def halved(rank: int, at: int | None) -> dict[str, Any]:
    run = island(rank, outer=hdet.Outer(), wire="int8")
    records = []
    for step in range(STEPS):
        if step == at:
            file = io.BytesIO()
            torch.save(run.save(), file)
            run.ensemble.detach()
            file.seek(0)
            run = island(rank, outer=hdet.Outer(), wire="int8")
            run.load(torch.load(file, weights_only=True))
        record = run.step(step)
        records += [timeless(record)] if record else []
    return {"end": kept(run), "records": records}


def test_a_resumed_run_is_the_unbroken_one_bit_for_bit(ranks: LocalProcesses) -> None:
    """At a sync of all, at a mean of the arms, and between."""
    unbroken = ranks.run(halved, None)
    for at in (SYNC_EVERY, SYNC_EVERY + T, SYNC_EVERY + T + 1):
        for whole, half in zip(unbroken, ranks.run(halved, at), strict=True):
            assert torch.equal(half["end"], whole["end"])
            assert half["records"] == whole["records"]


def evaluated(rank: int) -> dict[str, Any]:
    run = island(rank)
    found = {}
    for step in range(STEPS):
        run.step(step)
        if step == SYNC_EVERY + T:
            found["own"] = kept(run)
            run.ensemble.converge()
            found["mean"] = kept(run)
    return found | {"end": kept(run)}


def test_an_evaluation_and_the_end_are_of_all(ranks: LocalProcesses) -> None:
    results = ranks.run(evaluated)
    assert all_equal([r["mean"] for r in results])
    expected = torch.stack([r["own"] for r in results]).mean(0)
    torch.testing.assert_close(results[0]["mean"], expected, rtol=1e-5, atol=1e-6)
    assert all_equal([r["end"] for r in results])


def lose_one(rank: int, whole_arm: bool) -> dict[str, Any]:
    run = island(rank)
    found: dict[str, Any] = {"events": []}
    for step in range(STEPS):
        loss = run.train_once(step)
        if step == SYNC_EVERY + T - 1 and (rank == 1 or (whole_arm and rank == 0)):
            with torch.no_grad():
                run.model.one.weight[0, 0] = math.inf
        record = run.ensemble.step(loss)
        if step == SYNC_EVERY + T - 1:
            found["finite"] = bool(run.flat().isfinite().all())
        found["events"] += record.events if record else ()
    return found | {"end": kept(run)}


@pytest.mark.parametrize("whole_arm", [False, True])
def test_a_lost_rank_takes_no_other_with_it(ranks: LocalProcesses, whole_arm: bool) -> None:
    """One alone is healed by its arm at once; a lost arm is left out where all meet, and takes theirs."""
    results = ranks.run(lose_one, whole_arm)
    assert [r["finite"] for r in results] == [not whole_arm, not whole_arm, True, True]
    assert all_equal([r["end"] for r in results])
    assert bool(results[0]["end"].isfinite().all())
    left_out = [event for event in results[0]["events"] if "left out of the mean" in event]
    assert len(left_out) == (2 if whole_arm else 0)


def refused(rank: int, what: str) -> Any:
    model = torch.nn.Linear(5, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if what == "one arm":
        return answer_to(lambda: hdet.Arms(1, average_every=T))
    if what == "no steps":
        return answer_to(lambda: hdet.Arms(2, average_every=0))
    if what == "no machines":
        return answer_to(hdet.Arms)
    arms = hdet.Arms(2, average_every=T)
    if what == "wired":
        wired = hdet.Arms(2).wrap(model)
        return answer_to(lambda: hdet.Ensemble(optimizer, [], gradients=arms, model=wired, sync_every=T))
    if what == "apart":
        return answer_to(lambda: hdet.Ensemble(optimizer, [], gradients=arms, sync_every=3 * T + 1))
    probe = hdet.Probe(lambda x: model(x).square().mean(), [torch.ones(2, 5)] * 2, model=model)
    return answer_to(
        lambda: hdet.AutoTune(optimizer, [hdet.WeightDecay()], probe=probe, gradients=arms, total_steps=100)
    )


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("one arm", "average_every=2 is for means of several arms, and there is one"),
        ("no steps", "average_every must be a number of steps of at least 1, got 0"),
        ("no machines", "LOCAL_WORLD_SIZE='' does not divide the 4 ranks"),
        (
            "wired",
            "gradients= says that 1 rank has a gradient, and model is a DistributedDataParallel over 2",
        ),
        ("apart", "the arms' average_every must divide sync_every=7, got 2"),
        ("followed", "a horizon follows each rank's own path"),
    ],
)
def test_what_is_refused(ranks: LocalProcesses, what: str, said: str) -> None:
    for _, words, seconds in ranks.run(refused, what):
        assert said in words
        assert seconds < 30


def by_machine(rank: int) -> tuple[int, list[int], bool]:
    import os

    os.environ["LOCAL_WORLD_SIZE"] = "2"
    try:
        arms = hdet.Arms(average_every=T)
    finally:
        del os.environ["LOCAL_WORLD_SIZE"]
    model = torch.nn.Linear(3, 1)
    return arms.count, arms.members, arms.wrap(model) is model


def test_an_arm_is_a_machine_unless_told_otherwise(ranks: LocalProcesses) -> None:
    assert ranks.run(by_machine) == [(2, members, True) for members in ([0, 1], [0, 1], [2, 3], [2, 3])]
