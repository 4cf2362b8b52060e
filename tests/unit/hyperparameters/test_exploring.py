"""What spans all hyperparameters: values stay in bounds, zero can be left, a state is known by its names."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

import hdet
from hdet.published.softmax import SoftmaxController
from hdet.tuning.regression import RegressionController
from tests.fakes import Alike, Attention
from tests.states import inside
from tests.unit.hyperparameters.scenes import hold, train, weights


class Noisy(Alike):
    """A sync finds losses drawn at random: a function of step and rank, as a resumed run needs it."""

    def gather(self, row: Sequence[float]) -> list[list[float]]:
        rows = super().gather(row)
        if len(row) < 7:
            return rows
        losses = [random.Random(f"{row[0]} {rank}").gauss(2.0, 0.5) for rank in range(self.size)]
        return [[*row[:3], loss * row[4], *row[4:]] for loss in losses]


# ---------------------------------------------------------------------- bounds


@pytest.mark.parametrize("controller", [SoftmaxController("auto"), RegressionController()])
def test_no_controller_drives_a_value_out_of_its_bounds(controller: Any) -> None:
    """Whatever the losses say, as wide as an adaptive spread may get."""
    model = nn.ModuleDict({"drop": nn.Dropout(0.05), "attention": Attention(torch.tensor(0.5))})
    criterion = nn.CrossEntropyLoss(label_smoothing=0.9)
    optimizer = SGD(weights(1), lr=0.1, momentum=0.01, weight_decay=1.0)
    explored = {
        "dropout": hdet.Dropout(model, bounds=(0.0, 0.5), spread=2.0),
        "label_smoothing": hdet.LabelSmoothing(criterion, spread=0.1),
        "temperature": hdet.Temperature(model, bounds=(0.25, 1.0)),
        "weight_decay": hdet.WeightDecay(spread=20.0),
        "momentum": hdet.Momentum(),
    }
    ensemble = hdet.Ensemble(
        optimizer, list(explored.values()), sync_every=1, controller=controller, process_group=Noisy(3, 8)
    )
    bounds = {name: item.bounds for name, item in explored.items()}  # type: ignore[attr-defined]
    seen: dict[str, set[float]] = {name: set() for name in bounds}
    for _ in range(200):
        record, _ = train(optimizer, ensemble, [0.0], lambda: None)
        for hyperparameter in record.hyperparameters:
            values = {*hyperparameter.values, hyperparameter.base_after}
            low, high = bounds[hyperparameter.name]
            assert low <= min(values) <= max(values) <= high, hyperparameter
            seen[hyperparameter.name].add(hyperparameter.base_after)
        own = [model["drop"].p, criterion.label_smoothing, float(model["attention"].scale)]  # type: ignore[arg-type]
        assert all(low <= v <= high for v, (low, high) in zip(own, bounds.values(), strict=False))
    assert min(map(len, seen.values())) > 3, "all of them have moved"


@pytest.mark.parametrize(
    "build",
    [
        lambda p: (SGD(p, lr=1.0), hdet.WeightDecay()),
        lambda p: (Adam(p, betas=(0.0, 0.0)), hdet.Betas(2)),
        lambda p: (SGD(p, lr=1.0), hdet.Dropout(nn.Dropout(0))),
        lambda p: (SGD(p, lr=1.0), hold({"x": 0.0})),
    ],
    ids=["decay", "beta", "dropout", "log scale"],
)
def test_zero_can_be_left(build: Any) -> None:
    """By those that spread upwards, by the base when it moves, and again after it came back to 0."""
    optimizer, item = build(weights(1))
    (axis,) = item.bind(optimizer)
    for _ in range(2):
        assert axis.base == 0
        assert axis.values([-1.0, 0.0]) == (0.0, 0.0)
        small, large = axis.values([0.5, 1.0])
        assert 0 < small < large
        assert axis.offsets([-1.0, 1.0]) == (0.0, pytest.approx(axis.spread))
        axis.shift(axis.spread)
        assert axis.base == pytest.approx(large) != 0
        axis.shift(-2 * axis.spread)


# ---------------------------------------------------------------------- state


class Run:
    """Six hyperparameters of all kinds, on rank 3 of 8, and a controller that moves and respreads them."""

    def __init__(self, *, reverse: bool = False, controller: Any = None) -> None:
        self.model = nn.ModuleDict({"drop": nn.Dropout(0.1), "attention": Attention(torch.tensor(0.5))})
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
        self.place = {"x": 0.5}
        self.optimizer = AdamW(weights(1), lr=0.1, weight_decay=0.1)
        explored: list[Any] = [
            hdet.LearningRate(0.2),
            hdet.WeightDecay(),
            hdet.Dropout(self.model),
            hdet.Temperature(self.model),
            hdet.LabelSmoothing(self.criterion),
            hold(self.place),
        ]
        self.ensemble = hdet.Ensemble(
            self.optimizer,
            explored[:1] + explored[:0:-1] if reverse else explored,
            sync_every=2,
            controller=controller or RegressionController(),
            process_group=Noisy(3, 8),
        )

    def train(self, intervals: int) -> list[Any]:
        done = []
        for _ in range(intervals):
            record, _ = train(self.optimizer, self.ensemble, [1.0, 0.5], lambda: None)
            done.append(record.hyperparameters)
        return done

    def standing(self) -> dict[str, float]:
        """What a replica trains with, and the base values in the optimizer."""
        (group,) = self.optimizer.param_groups
        return {
            "lr": float(group["lr"]),
            "weight_decay": group["weight_decay"],
            "dropout": self.model["drop"].p,  # type: ignore[dict-item]
            "temperature": float(self.model["attention"].scale),  # type: ignore[arg-type]
            "label_smoothing": self.criterion.label_smoothing,
            "x": self.place["x"],
        }


@pytest.mark.parametrize("controller", [RegressionController(), SoftmaxController("auto")])
def test_a_resumed_run_goes_on_as_the_unbroken_one(controller: Any) -> None:
    """Through JSON: base values, spreads and what the controller remembers."""
    unbroken = Run(controller=controller)
    start = inside(unbroken.ensemble.state_dict())["explored"]
    unbroken.train(6)
    state = json.loads(json.dumps(unbroken.ensemble.state_dict(), allow_nan=False))
    changed = [(a, b) for a, b in zip(start, inside(state)["explored"], strict=True) if a != b]
    assert len(changed) >= 4, "otherwise there would be little to remember"
    resumed = Run(controller=controller)
    resumed.optimizer.load_state_dict(unbroken.optimizer.state_dict())
    resumed.ensemble.load_state_dict(state)
    assert resumed.standing() == unbroken.standing()
    assert json.loads(json.dumps(resumed.ensemble.state_dict())) == state
    assert repr(resumed.train(4)) == repr(unbroken.train(4))
    assert resumed.standing() == unbroken.standing()


def test_a_state_holds_base_values_although_the_replicas_own_stand() -> None:
    run = Run()
    own = run.standing()
    explored = inside(run.ensemble.state_dict())["explored"]
    assert [saved["base"] for saved in explored[1:]] == [0.1, 0.1, 0.5, 0.1, 0.5]
    assert run.standing() == own
    assert all(own[name] != 0.1 for name in ("dropout", "label_smoothing"))
