"""The outer optimizer's learning rate and momentum as hyperparameters: where they stand, and where not."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import hdet
from hdet.hyperparameters import place_outer
from tests.fakes import Alike


def bound(item: Any, **group: float) -> Any:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    (placed,) = place_outer([item], {"lr": 0.7, "momentum": 0.9, **group})
    (axis,) = placed.bind(optimizer)
    return axis


def test_a_learning_rate_is_spread_by_factors() -> None:
    axis = bound(hdet.OuterLR(spread=0.5))
    assert axis.name == "outer_lr"
    assert axis.values([-1.0, 0.0, 1.0]) == pytest.approx((0.7 * math.exp(-0.5), 0.7, 0.7 * math.exp(0.5)))
    axis.shift(10.0)
    assert axis.base == pytest.approx(4.0), "the upper bound"


def test_a_momentum_is_spread_by_its_distance_from_one() -> None:
    axis = bound(hdet.OuterMomentum(spread=math.log(2)))
    assert axis.name == "outer_momentum"
    assert axis.values([-1.0, 0.0, 1.0]) == pytest.approx((0.8, 0.9, 0.95))
    assert bound(hdet.OuterMomentum(), momentum=0.0).values([-1.0]) == (0.0,)


def test_an_outer_optimizer_must_be_there() -> None:
    for item in (hdet.OuterLR(), hdet.OuterMomentum()):
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
        name = type(item).__name__
        with pytest.raises(ValueError, match=rf"{name}: there must be an outer optimizer.*outer=hdet.Outer"):
            hdet.Ensemble(optimizer, [item], gradients="none", replicas=Alike())


@pytest.mark.parametrize(
    ("item", "said"),
    [
        (hdet.OuterLR(bounds=(0.0, 1.0)), "OuterLR: bounds must be two numbers above 0"),
        (hdet.OuterMomentum(bounds=(0.0, 1.0)), "OuterMomentum: bounds must be two numbers of at least 0"),
        (hdet.OuterLR(spread=-1.0), "outer_lr: spread must be"),
        (hdet.OuterLR(bounds=(1.0, 2.0)), "outer_lr: bounds must include the value to start from"),
    ],
)
def test_what_they_may_be(item: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        bound(item)


def test_all_ranks_say_the_same_of_them() -> None:
    assert repr(hdet.OuterLR(0.2)) == "OuterLR(spread=0.2, bounds=(0.01, 4.0))"
    assert repr(place_outer([hdet.OuterLR(0.2)], {"lr": 0.7})[0]) == repr(hdet.OuterLR(0.2))
    assert hdet.OuterLR() in place_outer([hdet.OuterLR()], None)
