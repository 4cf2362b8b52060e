"""Lost weights are noticed within a window."""

from __future__ import annotations

import math

import pytest
import torch

from hdet.autolr.alarm import Alarm


def looks(steps: int, *, lost_at: int, by: float) -> list[bool]:
    weights = [torch.ones(4), torch.ones(3, 3)]
    alarm = Alarm(weights, size=math.sqrt(13), steps=steps)
    rang = []
    for step in range(1, steps + 1):
        if step == lost_at:
            weights[1][0, 0] = by
        rang.append(alarm.rings())
    return rang


@pytest.mark.parametrize("by", [math.nan, math.inf, 1e6])
@pytest.mark.parametrize("steps", [4, 10, 100])
def test_it_rings_within_a_quarter(by: float, steps: int) -> None:
    at = steps // 2
    rang = looks(steps, lost_at=at, by=by)
    assert not any(rang[: at - 1])
    assert any(rang[: at + max(2, steps // 4)])


@pytest.mark.parametrize("by", [0.0, -1.0, 50.0])
def test_weights_of_their_usual_size_do_not_ring(by: float) -> None:
    assert not any(looks(100, lost_at=10, by=by))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_on_a_device_what_was_seen_is_read_a_look_later() -> None:
    weight = torch.ones(8, device="cuda")
    alarm = Alarm([weight], size=3.0, steps=8)
    weight.fill_(math.nan)
    assert [alarm.rings() for _ in range(4)] == [False, False, False, True]
