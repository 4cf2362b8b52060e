"""Any scalar of the user's own, by its reader and writer."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

import hdet
from hdet.loop.levels import levels
from tests.fakes import Alike
from tests.unit.hyperparameters.scenes import explore


@pytest.mark.parametrize(("scale", "acts"), [("linear", "forward"), ("log", "step")])
def test_any_scalar_of_the_users_own(scale: Any, acts: Any) -> None:
    """Linear adds, logarithmic multiplies; it stands throughout, or while the optimizer steps alone."""
    for rank, level in enumerate(levels(3)):
        place = {"margin": 1.0}
        item = hdet.Hyperparameter(
            "margin",
            lambda place=place: place["margin"],
            lambda value, place=place: place.update(margin=value),
            scale=scale,
            bounds=(0.1, 10.0),
            spread=0.5,
            acts=acts,
        )
        ensemble = explore(item, rank, size=3)
        inside: list[float] = []
        ensemble.optimizer.step(lambda place=place, inside=inside: inside.append(place["margin"]) or 0.0)
        own = 1 + 0.5 * level if scale == "linear" else math.exp(0.5 * level)
        assert inside == [pytest.approx(own)]
        assert place["margin"] == pytest.approx(own if acts == "forward" else 1.0)


def test_a_place_that_rounds_is_refused() -> None:
    place = {"x": 3}
    rounded = hdet.Hyperparameter(
        "x", lambda: place["x"], lambda v: place.update(x=round(v)), bounds=(0.0, 10.0), spread=3.0
    )
    with pytest.raises(ValueError, match=r"x: what is written must be read back, wrote 4.5 and read 4;"):
        hdet.Ensemble(SGD([nn.Parameter(torch.zeros(1))], lr=1.0), [rounded], process_group=Alike())
    assert place == {"x": 3}
