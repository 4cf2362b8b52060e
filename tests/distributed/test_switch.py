"""AutoTune in DDP: one gradient until a window does not improve, then each its own."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import hdet
from hdet.history import SyncRecord
from hdet.replicas.launch import LocalProcesses
from tests.distributed import tasks

STEPS = 300
EVENT = "the loss falls no more: from here on every replica has a gradient of its own"
NOT_SHARED = "average gradients while trains_alone is False"


class Run:
    """Each rank learns noise by heart, from a few samples: the held-out loss falls, and then it does not."""

    def __init__(
        self, rank: int, explores: bool = True, *, wrapped: bool = True, gradients: Any = None
    ) -> None:
        torch.manual_seed(0)
        net = tasks.Regression()
        self.model: nn.Module = DistributedDataParallel(net) if wrapped else net
        self.optimizer = torch.optim.AdamW(net.parameters(), weight_decay=0.1)
        x, y = tasks.batch(rank, 0)
        draw = torch.Generator().manual_seed(rank)
        self.samples = x[:8], y[:8] + 0.5 * torch.randn(8, 1, generator=draw, dtype=y.dtype)
        held_out = [tasks.batch(rank, 10_000 + k) for k in range(8)]
        self.measured = 0
        probe = hdet.Probe(self.measure, held_out, model=self.model)
        self.tune = hdet.AutoTune(
            self.optimizer,
            [hdet.WeightDecay()] if explores else [],
            probe=probe,
            total_steps=STEPS,
            gradients=gradients,
        )

    def loss(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        return (self.model(pair[0]) - pair[1]).square().mean()

    def measure(self, pair: tuple[Tensor, Tensor]) -> Tensor:
        self.measured += 1
        return self.loss(pair)

    def step(self, *, by_hand: bool = False) -> SyncRecord | None:
        self.optimizer.zero_grad()
        self.loss(self.samples).backward()
        if by_hand and not self.tune.trains_alone:
            for parameter in self.model.parameters():
                assert parameter.grad is not None
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        self.optimizer.step()
        return self.tune.step()

    def seen(self) -> dict[str, Any]:
        """After a step."""
        return {
            "weights": tasks.flat(self.model),
            "alone": self.tune.trains_alone,
            "apart": self.tune.apart,
            "shares": getattr(self.model, "require_backward_grad_sync", None),
            "measured": self.measured,
        }

    def save(self) -> bytes:
        parts = self.model, self.optimizer, self.tune
        file = io.BytesIO()
        torch.save([part.state_dict() for part in parts], file)
        return file.getvalue()

    def load(self, saved: bytes) -> None:
        states = torch.load(io.BytesIO(saved), weights_only=True)
        for part, state in zip((self.model, self.optimizer, self.tune), states, strict=True):
            part.load_state_dict(state)


def whole(rank: int, explores: bool) -> dict[str, Any]:
    """What there was after every step, the states, and what DDP does when all is over."""
    run = Run(rank, explores)
    steps, records, states = [run.seen()], [], [run.save()]
    for _ in range(STEPS):
        record = run.step()
        records += [replace(record, milliseconds=0.0)] if record else []
        steps.append(run.seen())
        states.append(run.save())
    run.tune.finish_()
    ends = run.seen()
    return {"explores": explores, "steps": steps, "records": records, "states": states, "ends": ends}


@pytest.fixture(
    scope="module",
    params=[(2, True), (2, False)],
    ids=["explores", "averages alone"],
)
def results(ranks: LocalProcesses, request: pytest.FixtureRequest) -> list[dict[str, Any]]:
    size, explores = request.param
    return ranks.run(whole, explores, size=size, timeout=120)


def switched_at(result: dict[str, Any]) -> int:
    (step,) = [record.step for record in result["records"] if EVENT in record.events]
    assert 20 < step < 0.6 * STEPS, "there are windows before it, and after it"
    return int(step)


def equal(results: list[dict[str, Any]], step: int) -> bool:
    first, *others = (result["steps"][step]["weights"] for result in results)
    return all(torch.equal(first, other) for other in others)


def test_ranks_are_equal_until_the_switch_and_then_at_syncs_alone(results: list[dict[str, Any]]) -> None:
    switch = switched_at(results[0])
    syncs = {record.step for record in results[0]["records"]}
    after = [step for step in range(switch + 1, STEPS) if step not in syncs]
    assert len(after) > 50
    assert all(equal(results, step) for step in range(switch + 1)), "bit for bit"
    assert not any(equal(results, step) for step in after)
    assert all(equal(results, step) for step in syncs)


def test_all_ranks_are_alone_from_the_same_step_on(results: list[dict[str, Any]]) -> None:
    switch = switched_at(results[0])
    for result in results:
        assert [seen["alone"] for seen in result["steps"]] == [k >= switch for k in range(STEPS + 1)]
        assert [seen["shares"] for seen in result["steps"]] == [k < switch for k in range(STEPS + 1)]
        assert not any(seen["apart"] for seen in result["steps"][: switch + 1])
        assert result["steps"][switch + 1]["apart"]
        assert [r.to_json() for r in result["records"]] == [r.to_json() for r in results[0]["records"]]


def test_equal_replicas_are_not_measured_twice(results: list[dict[str, Any]]) -> None:
    """Four batches at the mean and two at the end; once they differ, four at each one's own mean as well."""
    switch, explores = switched_at(results[0]), results[0]["explores"]
    measured = [seen["measured"] for seen in results[0]["steps"]]
    syncs = [record.step for record in results[0]["records"]]
    passes = {step: measured[step] - measured[step - 1] for step in syncs}
    assert {passes[step] for step in syncs[2:] if step <= switch} == {6}
    later = [step for step in syncs if switch < step < STEPS]
    assert max(passes[step] for step in later) == (10 if explores else 6)


def test_nothing_is_explored_before_the_switch(results: list[dict[str, Any]]) -> None:
    switch, explores = switched_at(results[0]), results[0]["explores"]
    decays = [
        (record.step, h.values)
        for record in results[0]["records"]
        for h in record.hyperparameters
        if h.name == "weight_decay"
    ]
    assert all(set(values) == {0.1} for step, values in decays if step <= switch)
    assert any(len(set(values)) == 2 for step, values in decays if step > switch) == explores


def detached(rank: int, states: list[bytes], explores: bool) -> list[bool]:
    """Whether DDP shares before detach() and after it."""
    run = Run(rank, explores)
    run.load(states[rank])
    before = run.seen()["shares"]
    run.tune.detach()
    return [before, run.seen()["shares"]]


def test_ddp_shares_again_when_all_is_over(ranks: LocalProcesses, results: list[dict[str, Any]]) -> None:
    for result in results:
        assert not result["steps"][-1]["shares"]
        assert result["ends"]["shares"], "after finish_()"
    switch, explores = switched_at(results[0]), results[0]["explores"]
    states = [result["states"][switch] for result in results]
    assert ranks.run(detached, states, explores, size=len(states)) == [[False, True]] * len(states)


# ---------------------------------------------------------------------- resume


def resumed(rank: int, states: list[bytes], at: int, explores: bool) -> list[dict[str, Any]]:
    run = Run(rank, explores)
    run.load(states[rank])
    steps = [run.seen()]
    for _ in range(at, STEPS):
        run.step()
        steps.append(run.seen())
    run.tune.detach()
    return steps


@pytest.mark.parametrize("later", [-3, 0, 4], ids=lambda n: str(n))
def test_a_resumed_run_shares_as_the_unbroken_one_does(
    ranks: LocalProcesses, results: list[dict[str, Any]], later: int
) -> None:
    """From before the switch, at it and after it, within a window and at its end."""
    at, explores = switched_at(results[0]) + later, results[0]["explores"]
    states = [result["states"][at] for result in results]
    again = ranks.run(resumed, states, at, explores, size=len(states), timeout=120)
    for result, steps in zip(results, again, strict=True):
        for expected, found in zip(result["steps"][at:], steps, strict=True):
            assert (found["alone"], found["shares"]) == (expected["alone"], expected["shares"])
            assert torch.equal(found["weights"], expected["weights"])


def test_while_they_share_the_state_of_one_rank_will_do_for_all(
    ranks: LocalProcesses, results: list[dict[str, Any]]
) -> None:
    at, explores = switched_at(results[0]) - 3, results[0]["explores"]
    size = len(results)
    again = ranks.run(resumed, [results[0]["states"][at]] * size, at, explores, size=size, timeout=120)
    for result, steps in zip(results, again, strict=True):
        assert torch.equal(steps[-1]["weights"], result["steps"][-1]["weights"])


def begun(rank: int) -> bytes:
    run = Run(rank)
    for _ in range(20):
        run.step()
    run.tune.detach()
    return run.save()


def taken_up(rank: int, saved: bytes) -> dict[str, Any]:
    run = Run(rank)
    run.load(saved)
    seen = run.seen()
    run.tune.detach()
    return seen


def test_what_one_process_began_two_share(ranks: LocalProcesses) -> None:
    """It had nobody to share gradients with, and has not stood."""
    (saved,) = ranks.run(begun, size=1)
    for seen in ranks.run(taken_up, saved, size=2):
        assert seen["shares"]
        assert not seen["alone"]


# ---------------------------------------------------------------------- who does not share, or may not switch


def warned(rank: int, by_hand: bool) -> tuple[list[str], bool]:
    run = Run(rank, wrapped=False, gradients="switch")
    events: list[str] = []
    for _ in range(STEPS):
        record = run.step(by_hand=by_hand)
        events += record.events if record else ()
        if EVENT in events:
            break
    return events, run.tune.trains_alone


@pytest.mark.parametrize("by_hand", [False, True])
def test_who_does_not_share_is_told(ranks: LocalProcesses, by_hand: bool) -> None:
    """By DDP, or by hand until they switch."""
    for events, alone in ranks.run(warned, by_hand, size=2, timeout=60):
        assert any(NOT_SHARED in event for event in events) != by_hand
        assert alone, "they have switched nevertheless"


def refused(rank: int) -> str:
    model, optimizer = tasks.build()
    with pytest.raises(ValueError, match="gradients must be 'all', 'none'") as caught:
        hdet.Ensemble(optimizer, [hdet.WeightDecay()], sync_every=10, model=model, gradients="switch")
    return str(caught.value)


def test_an_ensemble_does_not_know_when_to_switch(ranks: LocalProcesses) -> None:
    for said in ranks.run(refused, size=2):
        assert "got 'switch'" in said
        assert "hdet.AutoTune" in said
