"""Runs that are timed beside each other."""

from __future__ import annotations

from itertools import repeat

import torch
from torch.optim import SGD

from benchmarks.speed.autolr import _in_turn, _Run


def test_runs_take_turns_forwards_and_backwards_and_the_device_is_waited_for_after_each() -> None:
    told: list[str] = []
    weight = torch.ones(1, requires_grad=True)

    class Schedule:
        def __init__(self, name: str) -> None:
            self._name = name

        def step(self) -> None:
            told.append(self._name)

    runs = [
        _Run(lambda _: weight.sum(), repeat((weight, weight)), SGD([weight], lr=0.1), Schedule(name))
        for name in "ab"
    ]
    _in_turn(runs, steps=5, turn=2, wait=lambda: told.append("|"))
    assert "".join(told) == "bb|aa|aa|bb|b|a|"
    assert all(run.seconds >= run.in_calls > 0 for run in runs)
