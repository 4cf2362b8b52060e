"""The length of windows, the shapes of a run, and a found schedule run again."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

import hdet
from hdet.schedules.replay import FoundSchedule
from hdet.schedules.shapes import SHAPES, Cosine, OneCycle, WarmStableDecay
from hdet.schedules.windows import Windows


def ends(windows: Windows, until: int) -> list[int]:
    found, step = [], windows.end_after(0)
    while step is not None and step <= until:
        found.append(step)
        step = windows.end_after(step)
    return found


# ---------------------------------------------------------------------- windows


def test_windows_grow_with_the_run() -> None:
    assert ends(Windows(), 150) == [10, 20, 30, 40, 50, 60, 72, 86, 103, 123, 147]


@given(st.integers(1, 50), st.floats(0, 1), st.one_of(st.none(), st.integers(1, 3000)))
def test_windows_cover_the_search_without_gap_or_stub(first: int, share: float, last: int | None) -> None:
    windows = Windows(first, share, last)
    found = [0, *ends(windows, 5000)]
    lengths = [b - a for a, b in pairwise(found)]
    for start, length in zip(found, lengths, strict=False):
        asked = max(first, int(share * start))
        if start + length != last:
            assert length == asked
        else:
            assert 0 < length < 1.5 * asked + 1, "the last one takes in a rest that is too short"
    if last is not None and len(lengths) > 1:
        assert lengths[-1] >= lengths[-2] // 2, "so none is a stub"
    if last is not None:
        assert found[-1] == last
        assert windows.end_after(last) is None
        assert windows.end_after(last + 7) is None


def test_fixed_windows() -> None:
    assert ends(Windows(first=25, share=0.0), 110) == [25, 50, 75, 100]
    assert ends(Windows(first=25, share=0.0, last=110), 200) == [25, 50, 75, 110], "a rest of 10 is added"
    assert ends(Windows(first=25, share=0.0, last=115), 200) == [25, 50, 75, 100, 115], "one of 15 is not"


@pytest.mark.parametrize(("options", "words"), [
    ({"first": 0}, "first must be an integer of at least 1, got 0"),
    ({"first": 2.5}, "first must be an integer of at least 1, got 2.5"),
    ({"share": -0.1}, r"share must be in \[0, 1\], got -0.1"),
    ({"share": 1.5}, r"share must be in \[0, 1\], got 1.5"),
])  # fmt: skip
def test_bad_windows(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Windows(**options)


# ---------------------------------------------------------------------- shapes


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
    assert shape.search_until == 150
    assert WarmStableDecay.of(None)(10**9) == 1.0
    assert WarmStableDecay.of(None).search_until is None


def test_cosine() -> None:
    assert Cosine(100)(0) == 1.0
    assert Cosine(100)(50) == pytest.approx(0.5)


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
    assert json.loads(schedule.to_json())["groups"] == [{"runs": [[1000, 0.1]]}]


def test_what_cannot_be_replayed(tmp_path: Any) -> None:
    path = tmp_path / "schedule.json"
    path.write_text('{"format": "something else"}')
    with pytest.raises(ValueError, match=r"format 'hdet schedule 1', got 'something else'"):
        hdet.replay(weights(), path)
    path.write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"format 'hdet schedule 1', got 'list'"):
        hdet.replay(weights(), path)
    schedule = FoundSchedule(2)
    path.write_text(schedule.to_json())
    with pytest.raises(ValueError, match="at least one step, got none"):
        hdet.replay(weights(2), path)
    schedule.add([0.1, 0.2])
    path.write_text(schedule.to_json())
    with pytest.raises(ValueError, match=r"as many parameter groups as the schedule, 2, got 1"):
        hdet.replay(weights(1), path)
