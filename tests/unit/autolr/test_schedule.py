"""Shapes, how they are written into an optimizer, and the schedule that a run found, replayed."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

import hdet
from hdet.autolr.schedule import (
    SHAPES,
    Cosine,
    Decay,
    DrawnShape,
    FoundSchedule,
    OneCycle,
    WarmStableDecay,
)


@pytest.mark.parametrize("steps", [40, 77, 1000])
def test_one_cycle_is_torchs(steps: int) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
    torchs = OneCycleLR(optimizer, max_lr=1.0, total_steps=steps)
    shape = OneCycle(steps)
    for step in range(steps):
        assert shape(step) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-12)
        optimizer.step()
        if step < steps - 1:
            torchs.step()


@pytest.mark.parametrize("steps", [40, 77, 1000])
@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_peaks_at_one_and_ends_at_nothing(name: str, steps: int) -> None:
    shape = SHAPES[name](steps)
    values = [shape(step) for step in range(steps)]
    assert max(values) == pytest.approx(1.0, abs=0.01)
    assert max(values) <= 1.0
    assert all(value > 0 for value in values), "every step of the run is a step"
    assert shape(steps) == pytest.approx(0.0, abs=1e-5)
    assert shape(steps + 5) <= shape(steps), "and beyond it nothing rises again"
    peak = values.index(max(values))
    assert all(b <= a for a, b in pairwise(values[peak:]))


def test_wsd_is_constant_then_linear() -> None:
    shape = WarmStableDecay.of(200)
    assert [shape(step) for step in range(151)] == [1.0] * 151
    falls = [shape(step) - shape(step + 1) for step in range(150, 200)]
    assert falls == pytest.approx([1 / 50] * 50)
    assert shape.decay_from == 150
    assert WarmStableDecay.of(None)(10**9) == 1.0
    assert WarmStableDecay.of(None).decay_from is None


def test_cosine() -> None:
    assert Cosine(100)(0) == 1.0
    assert Cosine(100)(50) == pytest.approx(0.5)


# ---------------------------------------------------------------------- drawn


def optimizer(kind: str) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [{"params": [nn.Parameter(torch.ones(1))], "lr": lr} for lr in (0.1, 0.3)]
    for group in groups if kind == "tensor" else []:
        group["lr"] = torch.tensor(group["lr"])
    return torch.optim.SGD(groups)


@pytest.mark.parametrize("kind", ["float", "tensor"])
def test_it_keeps_the_ratios_of_the_groups_and_nothing_else_of_them(kind: str) -> None:
    trained = optimizer(kind)
    tensors = [group["lr"] for group in trained.param_groups]
    drawn = DrawnShape(trained, WarmStableDecay(4, 2))
    seen = []
    for _ in range(5):
        seen.append([float(group["lr"]) for group in trained.param_groups])
        drawn.step()
    assert seen == [pytest.approx([h, 3 * h]) for h in (1.0, 1.0, 1.0, 0.5, 0.0)]
    if kind == "tensor":
        assert all(group["lr"] is t for group, t in zip(trained.param_groups, tensors, strict=True))


def test_it_is_taken_up_where_it_was() -> None:
    first = DrawnShape(optimizer("float"), WarmStableDecay(4, 2))
    for _ in range(3):
        first.step()
    again = optimizer("float")
    second = DrawnShape(again, WarmStableDecay(4, 2))
    second.load_state_dict(first.state_dict())
    second.step()
    assert again.param_groups[1]["lr"] == 0.0


def test_of_several_optimizers_the_ratios_within_each_count() -> None:
    groups = [{"params": [nn.Parameter(torch.ones(1))], "lr": lr} for lr in (10.0, 0.1, 0.3)]
    trained = torch.optim.SGD(groups)
    assert DrawnShape(trained, WarmStableDecay(4, 2), sizes=(1, 2)).ratios == pytest.approx([1.0, 1.0, 3.0])


# ---------------------------------------------------------------------- replay


def weights(groups: int = 1) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [nn.Parameter(torch.ones(1))]} for _ in range(groups)], lr=0.3)


@given(st.lists(st.tuples(st.floats(1e-12, 10), st.sampled_from([0.1, 0.2])), min_size=1, max_size=40))
def test_a_schedule_reads_back_to_the_last_bit(lrs: list[tuple[float, float]]) -> None:
    schedule = FoundSchedule(2)
    for pair in lrs:
        schedule.add(pair)
    again = FoundSchedule.from_json(schedule.to_json())
    assert again.steps == len(lrs)
    first, second = again.lambdas()
    assert [(first(step), second(step)) for step in range(len(lrs))] == lrs
    assert first(len(lrs) + 3) == lrs[-1][0], "the last one stays"


@given(
    st.lists(st.sampled_from([0.1, 0.2, 0.3, "descent"]), min_size=1, max_size=30),
    st.sets(st.integers(0, 29)),
)
def test_steps_that_were_not_taken_are_dropped(kinds: list[Any], ago: set[int]) -> None:
    """Wherever they lie: among equal ones, within a descent, in a curve."""
    shape = WarmStableDecay(40, 0)
    descent = Decay(0.7, 1.0, shape)
    schedule = FoundSchedule(1)
    lrs = [descent(step) if kind == "descent" else kind for step, kind in enumerate(kinds)]
    for lr in lrs:
        schedule.add([lr], [descent])
    dropped = [k for k in ago if k < len(lrs)]
    schedule.drop(dropped)
    left = [lr for k, lr in enumerate(reversed(lrs)) if k not in dropped][::-1]
    schedule.add([0.4], [descent])
    again = FoundSchedule.from_json(schedule.to_json())
    assert again.steps == len(left) + 1
    (value,) = again.lambdas()
    assert [value(step) for step in range(again.steps)] == [*left, 0.4]


def test_replay_is_a_plain_scheduler_with_these_values(tmp_path: Any) -> None:
    schedule = FoundSchedule(2)
    lrs = [(0.1 * k / 3, 0.7 / (k + 1)) for k in range(1, 8)]
    for pair in lrs:
        schedule.add(pair)
    path = tmp_path / "schedule.json"
    path.write_text(schedule.to_json())
    optimizer = weights(2)
    scheduler = hdet.replay(optimizer, path)
    assert type(scheduler) is torch.optim.lr_scheduler.LambdaLR
    for pair in lrs:
        assert tuple(group["lr"] for group in optimizer.param_groups) == pair
        optimizer.step()
        scheduler.step()


def test_equal_steps_are_kept_as_one() -> None:
    schedule = FoundSchedule(1)
    for _ in range(1000):
        schedule.add([0.1])
    assert json.loads(schedule.to_json())["groups"] == [{"pieces": [[1000, 0.1]]}]


def lrs_of(schedule: FoundSchedule) -> list[float]:
    (value,) = schedule.lambdas()
    return [value(step) for step in range(schedule.steps)]


def test_a_decay_takes_no_more_bytes_the_longer_it_is() -> None:
    """A file of a hundred thousand steps down is as small as one of a hundred, and says the same values."""
    sizes = []
    for steps in (100, 100_000):
        schedule, shape = FoundSchedule(1), WarmStableDecay(2 * steps, steps)
        descent = Decay(0.0123, 0.3, shape)
        lrs = [0.0123 * (0.3 * shape(step)) for step in range(2 * steps)]
        for step, lr in enumerate(lrs):
            schedule.add([lr], [descent] if step >= steps else None)
        again = FoundSchedule.from_json(schedule.to_json())
        assert lrs_of(again) == lrs
        sizes.append(len(schedule.to_json()))
    assert sizes[1] < sizes[0] + 60


def test_a_value_that_does_not_follow_the_decay_is_stored_as_it_is() -> None:
    """Somebody else wrote it."""
    schedule, shape = FoundSchedule(1), WarmStableDecay(20, 10)
    lrs = [shape(step) for step in range(20)]
    lrs[13], lrs[14] = 0.7, 0.1
    for step, lr in enumerate(lrs):
        schedule.add([lr], [Decay(1.0, 1.0, shape)] if step >= 10 else None)
    assert lrs_of(FoundSchedule.from_json(schedule.to_json())) == lrs


def test_a_curve_takes_eight_bytes_a_step() -> None:
    """In JSON a third more; text took 28. Where it stays for a while, nothing."""
    schedule, shape = FoundSchedule(1), Cosine(3000)
    lrs = [0.01 * shape(step) for step in range(3000)] + [0.5] * 5000 + [0.1, 0.2, 0.2]
    for lr in lrs:
        schedule.add([lr])
    assert lrs_of(FoundSchedule.from_json(schedule.to_json())) == lrs
    assert len(schedule.to_json()) < 11 * 3000 + 300


def test_several_optimizers_have_a_scheduler_each(tmp_path: Any) -> None:
    schedule = FoundSchedule(3)
    schedule.add([0.1, 0.2, 0.3])
    path = tmp_path / "schedule.json"
    path.write_text(schedule.to_json())
    optimizers = [weights(1), weights(2)]
    assert len(hdet.replay(optimizers, path)) == 2
    assert [group["lr"] for one in optimizers for group in one.param_groups] == [0.1, 0.2, 0.3]
    with pytest.raises(ValueError, match=r"3, got 2; where AutoLR had several optimizers, give them all"):
        hdet.replay(optimizers[1], path)


def test_what_cannot_be_replayed(tmp_path: Any) -> None:
    path = tmp_path / "schedule.json"
    path.write_text('{"format": "something else"}')
    with pytest.raises(ValueError, match=r"format 'hdet schedule 3', got 'something else'"):
        hdet.replay(weights(), path)
    path.write_text('{"format": "hdet schedule 3", "steps"')
    with pytest.raises(ValueError, match=r"replay: the file must hold a schedule, got no JSON"):
        hdet.replay(weights(), path)
    path.write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"format 'hdet schedule 3', got 'list'"):
        hdet.replay(weights(), path)
    schedule = FoundSchedule(2)
    path.write_text(schedule.to_json())
    with pytest.raises(ValueError, match="at least one step, got none"):
        hdet.replay(weights(2), path)
    schedule.add([0.1, 0.2])
    path.write_text(schedule.to_json())
    with pytest.raises(ValueError, match=r"as many parameter groups as the schedule, 2, got 1"):
        hdet.replay(weights(1), path)


def test_a_flipped_bit_in_a_schedule_is_found() -> None:
    schedule, shape = FoundSchedule(1), WarmStableDecay(60, 20)
    for step in range(50):
        schedule.add([shape(step)], [Decay(1.0, 1.0, shape)] if step >= 20 else None)
    whole, chance, refused = schedule.to_json(), random.Random(0), 0
    for _ in range(400):
        bits = bytearray(whole.encode())
        bits[chance.randrange(len(bits))] ^= 1 << chance.randrange(8)
        try:
            found = FoundSchedule.from_json(bits.decode())
        except ValueError:
            refused += 1
        else:
            assert lrs_of(found) == lrs_of(schedule)
    assert refused > 300
