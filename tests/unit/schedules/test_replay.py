"""A found schedule, written down and run again."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import hdet
from hdet.schedules.replay import FoundSchedule


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
