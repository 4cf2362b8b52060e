"""What is explored: every hyperparameter changes what its name says, within its bounds, and is remembered."""

from __future__ import annotations

import json
import logging
import math
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

import hdet
from hdet.engine.design import levels
from hdet.history import SyncRecord
from hdet.hyperparameters import ScalarAxis
from hdet.hyperparameters.scalar import Place
from hdet.hyperparameters.scales import LinearScale, LogScale, Scale
from hdet.replicas import SoloReplica
from tests.fakes import Alike, Attention


class Noisy(Alike):
    """A sync finds losses drawn at random: a function of step and rank, as a resumed run needs it."""

    def gather(self, row: Sequence[float]) -> list[list[float]]:
        rows = super().gather(row)
        if len(row) < 7:
            return rows
        losses = [random.Random(f"{row[0]} {rank}").gauss(2.0, 0.5) for rank in range(self.size)]
        return [[*row[:3], loss * row[4], *row[4:]] for loss in losses]


def weights(*sizes: int) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(size, dtype=torch.float64)) for size in sizes]


def train(
    optimizer: Optimizer, ensemble: hdet.Ensemble, gradients: Sequence[float], seen: Callable[[], Any]
) -> tuple[SyncRecord, list[Any]]:
    """An interval, one step for each gradient; its record, and what was seen after every step."""
    observed, record = [seen()], None
    for gradient in gradients:
        for group in optimizer.param_groups:
            for weight in group["params"]:
                weight.grad = torch.full_like(weight, gradient)
        optimizer.step()
        observed.append(seen())
        record = ensemble.step(1.0)
    assert record is not None
    return record, observed


# ---------------------------------------------------------------------- the optimizer's

#: An optimizer of one weight 1 at a learning rate of 1, and what to explore; the key it stands under; the
#: gradients of an interval; and how the weight, or Adam's state, tells which value it was trained with.
IN_THE_OPTIMIZER: dict[str, tuple[Any, Any, str, list[float], Any]] = {
    "weight decay of SGD": (
        lambda p: SGD(p, lr=1.0, weight_decay=0.1),
        hdet.WeightDecay(),
        "weight_decay",
        [0.0],
        lambda w, _: 1 - w[1] / w[0],
    ),
    "weight decay of AdamW": (
        lambda p: AdamW(p, lr=1.0, weight_decay=0.1),
        hdet.WeightDecay(),
        "weight_decay",
        [0.0],
        lambda w, _: 1 - w[1] / w[0],
    ),
    "momentum of SGD": (
        lambda p: SGD(p, lr=1.0, momentum=0.9),
        hdet.Momentum(),
        "momentum",
        [1.0, 0.0],
        lambda w, _: (w[1] - w[2]) / (w[0] - w[1]),
    ),
    "momentum of Adam is β₁": (
        lambda p: Adam(p, betas=(0.9, 0.99)),
        hdet.Momentum(),
        "betas",
        [1.0],
        lambda _, state: 1 - float(state["exp_avg"]),
    ),
    "β₁": (
        lambda p: AdamW(p, betas=(0.9, 0.99)),
        hdet.Betas(1),
        "betas",
        [1.0],
        lambda _, state: 1 - float(state["exp_avg"]),
    ),
    "β₂": (
        lambda p: Adam(p, betas=(0.9, 0.99)),
        hdet.Betas(2),
        "betas",
        [1.0],
        lambda _, state: 1 - float(state["exp_avg_sq"]),
    ),
}


@pytest.mark.parametrize("case", IN_THE_OPTIMIZER)
def test_each_replica_steps_with_a_value_of_its_own_and_shows_the_base(case: str) -> None:
    """The value at work, found from what a step does to the weight, is the one in the record."""
    build, explored, key, gradients, find = IN_THE_OPTIMIZER[case]
    found = []
    for rank in range(3):
        (weight,) = weights(1)
        optimizer = build([weight])
        group = optimizer.param_groups[0]
        base = group[key]
        ensemble = hdet.Ensemble(
            optimizer, [explored], sync_every=len(gradients), replicas=Alike(rank, size=3)
        )
        record, path = train(optimizer, ensemble, gradients, lambda w=weight: w.item())
        assert group[key] == base
        found.append(find(path, optimizer.state[weight]))
        (hyperparameter,) = record.hyperparameters
        assert found[-1] == pytest.approx(hyperparameter.values[rank], rel=1e-9)
        if rank == 1:
            assert hyperparameter.values[rank] == hyperparameter.base_before
    assert found[0] < found[1] < found[2]


def test_while_the_optimizer_steps_its_groups_show_the_replicas_own() -> None:
    optimizer = SGD(weights(1), lr=1.0, momentum=0.5, weight_decay=0.25)
    hdet.Ensemble(optimizer, [hdet.WeightDecay(), hdet.Momentum()], replicas=Alike())
    seen: list[tuple[float, float]] = []

    def closure() -> float:
        group = optimizer.param_groups[0]
        seen.append((group["weight_decay"], group["momentum"]))
        return 0.0

    optimizer.step(closure)
    closure()
    assert seen[0][0] == pytest.approx(0.25 * math.exp(0.5), rel=1e-3)
    assert seen[0][1] == pytest.approx(1 - 0.5 * math.exp(-0.5))
    assert seen[1] == (0.25, 0.5)


def test_a_tensor_of_betas_is_written_in_place() -> None:
    """Captured steps read the very same memory."""
    betas = (torch.tensor(0.9), torch.tensor(0.99))
    optimizer = Adam(weights(1), lr=1.0, betas=betas)
    ensemble = hdet.Ensemble(optimizer, [hdet.Betas(2)], sync_every=1, replicas=Alike())
    held = optimizer.param_groups[0]["betas"][1]
    before = held.clone()
    train(optimizer, ensemble, [1.0], lambda: None)
    (weight,) = optimizer.param_groups[0]["params"]
    assert 1 - float(optimizer.state[weight]["exp_avg_sq"]) > 0.992
    assert optimizer.param_groups[0]["betas"][1].data_ptr() == held.data_ptr()
    assert torch.equal(held, before)


def test_groups_are_explored_together_or_each_by_itself() -> None:
    def decays(explored: hdet.WeightDecay) -> list[float]:
        first, second, third = weights(1, 1, 1)
        groups: Any = [
            {"params": [first], "weight_decay": 0.1},
            {"params": [second], "weight_decay": 0.1},
            {"params": [third]},
        ]
        optimizer = SGD(groups, lr=1.0)
        ensemble = hdet.Ensemble(optimizer, [explored], sync_every=1, replicas=Alike())
        train(optimizer, ensemble, [0.0], lambda: None)
        return [1 - weight.item() for weight in (first, second, third)]

    together = decays(hdet.WeightDecay())
    assert together[0] == together[1] > 0.15
    assert together[2] == 0.0, "by default those that decay"
    each = decays(hdet.WeightDecay(each=True, spread=[0.1, 0.5]))
    assert each == pytest.approx([0.1 * math.exp(0.1), together[1], 0.0], rel=1e-3)
    assert decays(hdet.WeightDecay(groups=[1])) == pytest.approx([0.1, together[1], 0.0])
    assert decays(hdet.WeightDecay(groups=[2]))[2] > 0, "a group that did not decay may begin to"


def test_learning_rates_have_a_spread_for_each_group() -> None:
    for rank, level in enumerate(levels(3)):
        first, second = weights(1, 1)
        optimizer = SGD([{"params": [first]}, {"params": [second], "lr": 0.2}], lr=0.1)
        ensemble = hdet.Ensemble(
            optimizer, [hdet.LearningRate(spread=[0.1, 0.5])], sync_every=1, replicas=Alike(rank, size=3)
        )
        train(optimizer, ensemble, [1.0], lambda: None)
        moved = [1 - weight.item() for weight in (first, second)]
        assert moved == pytest.approx([0.1 * (1 + 0.1 * level), 0.2 * (1 + 0.5 * level)])


@pytest.mark.parametrize(
    "how", ["plain", "scaled", "fused and scaled", "fused, scaled, unscaled by the user"]
)
def test_the_gradient_is_clipped_at_the_replicas_norm(how: str) -> None:
    """At a learning rate of 1 the step is as long as the gradient that the optimizer saw."""
    lengths = []
    for rank in range(3):
        parameters = weights(3, 1)
        optimizer = SGD(parameters, lr=1.0, fused="fused" in how)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled="scaled" in how)
        ensemble = hdet.Ensemble(
            optimizer, [hdet.GradientClip(2.0)], sync_every=1, replicas=Alike(rank, size=3)
        )

        def step(
            slope: float, parameters: Any = parameters, scaler: Any = scaler, o: Any = optimizer
        ) -> float:
            before = [parameter.detach().clone() for parameter in parameters]
            o.zero_grad()
            scaler.scale(sum(slope * parameter.sum() for parameter in parameters)).backward()
            if "user" in how:
                scaler.unscale_(o)
            scaler.step(o)
            scaler.update()
            return math.sqrt(
                sum(float((p.detach() - b).square().sum()) for p, b in zip(parameters, before, strict=True))
            )

        assert step(0.25) == pytest.approx(0.5), "a short gradient stays as it is"
        lengths.append(step(50.0))
        record = ensemble.step(1.0)
        assert record is not None
        assert lengths[-1] == pytest.approx(record.hyperparameters[0].values[rank], rel=1e-5)
    assert lengths == pytest.approx([2.0 * math.exp(0.5 * level) for level in levels(3)], rel=1e-5)


# ---------------------------------------------------------------------- what the forward pass reads


class Softmax(Attention):
    def forward(self, logits: Tensor) -> Tensor:
        return torch.softmax(super().forward(logits), -1)


class Functional(nn.Module):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.drop_rate = rate

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.drop_rate, self.training)


def explore(item: Any, rank: int = 1, size: int = 2, **options: Any) -> hdet.Ensemble:
    """An ensemble around a weight that matters to nobody."""
    optimizer = SGD(weights(1), lr=0.1)
    return hdet.Ensemble(optimizer, [item], replicas=Alike(rank, size), gradients="none", **options)


def values_of(ensemble: hdet.Ensemble) -> tuple[float, ...]:
    """The replicas' values of the one hyperparameter, as the next record has them."""
    optimizer = ensemble._optimizer
    record, _ = train(optimizer, ensemble, [0.0], lambda: None)
    return record.hyperparameters[0].values


KINDS = [nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout]


def test_every_dropout_layer_has_the_replicas_probability() -> None:
    for rank in range(3):
        layers = [kind(0.2) for kind in KINDS]
        attention = nn.MultiheadAttention(4, 2, dropout=0.2)
        model = nn.Sequential(nn.Sequential(*layers[:3]), *layers[3:], attention, nn.Linear(2, 2))
        ensemble = explore(hdet.Dropout(model), rank, size=3, sync_every=1)
        standing = {attention.dropout, *(layer.p for layer in layers)}
        assert standing == {values_of(ensemble)[rank]}
        assert (standing == {0.2}) == (rank == 1)


def test_only_the_layers_named_are_explored() -> None:
    model = nn.ModuleDict({name: nn.Dropout(0.2) for name in "abc"})
    explore(hdet.Dropout(model, layers=["a", "c"]))
    assert model["a"].p == model["c"].p > 0.3  # type: ignore[operator]
    assert model["b"].p == 0.2


@pytest.mark.parametrize("functional", [False, True])
def test_as_many_activations_are_zero_as_the_replicas_probability_says(functional: bool) -> None:
    count = 100_000
    shares = []
    for rank in range(3):
        torch.manual_seed(rank)
        model = Functional(0.3) if functional else nn.Dropout(0.3)
        item = hdet.Dropout(model, attribute="drop_rate" if functional else None, bounds=(0.0, 0.6))
        ensemble = explore(item, rank, size=3, sync_every=1)
        shares.append(float((model(torch.ones(count)) == 0).double().mean()))
        p = values_of(ensemble)[rank]
        assert abs(shares[-1] - p) < 5 * math.sqrt(p * (1 - p) / count)
    assert shares[0] + 0.05 < shares[1] < shares[2] - 0.05


def test_the_loss_is_smoothed_by_the_replicas_share() -> None:
    """(1 − s)·(−log p_target) + s·mean(−log p), at logits that are known."""
    logits, target = torch.tensor([[2.0, 0.5, -1.0]], dtype=torch.float64), torch.tensor([0])
    log_p = torch.log_softmax(logits, -1)[0]
    losses = []
    for rank in range(3):
        criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
        ensemble = explore(hdet.LabelSmoothing(criterion), rank, size=3, sync_every=1)
        losses.append(float(criterion(logits, target)))
        s = values_of(ensemble)[rank]
        assert losses[-1] == pytest.approx(float(-(1 - s) * log_p[0] - s * log_p.mean()), rel=1e-12)
    assert losses[0] < losses[1] < losses[2]


@pytest.mark.parametrize("held", ["a float", "a buffer", "a buffer of one element"])
def test_attention_multiplies_its_logits_by_the_replicas_temperature(held: str) -> None:
    """A buffer stays where it is in memory, so that captured graphs see what is written there."""
    for rank, level in enumerate(levels(3)):
        shape = () if held == "a buffer" else (1,)
        scale = 0.5 if held == "a float" else torch.full(shape, 0.5)
        model = nn.Sequential(Softmax(scale))
        ensemble = explore(hdet.Temperature(model), rank, size=3, sync_every=1)
        p = model(torch.tensor([3.0, 0.0]))
        expected = 0.5 * math.exp(0.5 * level)
        assert float(torch.log(p[0] / p[1]) / 3) == pytest.approx(expected, rel=1e-5)
        assert values_of(ensemble)[rank] == pytest.approx(expected)
        if isinstance(scale, Tensor):
            assert model[0].scale.data_ptr() == scale.data_ptr()


# ---------------------------------------------------------------------- anything else


@pytest.mark.parametrize("acts", ["forward", "step"])
@pytest.mark.parametrize("scale", ["linear", "log"])
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
        ensemble._optimizer.step(lambda place=place, inside=inside: inside.append(place["margin"]) or 0.0)
        own = 1 + 0.5 * level if scale == "linear" else math.exp(0.5 * level)
        assert inside == [pytest.approx(own)]
        assert place["margin"] == pytest.approx(own if acts == "forward" else 1.0)


# ---------------------------------------------------------------------- bounds


def random_scale(draw: random.Random) -> Scale:
    kind = draw.choice(["linear", "linear", "log with a unit", "log", "mirrored"])
    if kind == "linear":
        low = draw.uniform(-1, 1) * 10 ** draw.uniform(-3, 6)
        return LinearScale(low, low + 10 ** draw.uniform(-3, 6))
    if kind == "mirrored":
        low = draw.choice([0.0, draw.uniform(0, 0.9)])
        return LogScale(low, draw.uniform(low + 1e-3, 0.9999), mirrored=True)
    if kind == "log":
        low = 10 ** draw.uniform(-9, 3)
        return LogScale(low, low * 10 ** draw.uniform(0.01, 9))
    low = draw.choice([0.0, 10 ** draw.uniform(-9, 0)])
    high = low + 10 ** draw.uniform(-6, 3)
    return LogScale(low, high, unit=high * 10 ** draw.uniform(-5, 0))


def test_values_never_leave_their_bounds() -> None:
    """10,000 random rounds: spread, fanned out, restored and moved, wherever the base has got to."""
    draw = random.Random(4)
    rounds = 0
    while rounds < 10_000:
        scale = random_scale(draw)
        start = draw.choice([scale.lowest, scale.highest, draw.uniform(scale.lowest, scale.highest)])
        place = {"value": start}
        put: list[float] = []

        def write(value: float, place: dict[str, float] = place, put: list[float] = put) -> None:
            place["value"] = value
            put.append(value)

        axis = ScalarAxis("x", [Place(lambda place=place: place["value"], write)], scale, 0.5)
        for _ in range(20):
            rounds += 1
            axis.spread = draw.choice([0.0, 10 ** draw.uniform(-3, math.log10(50))])
            ladder = levels(draw.choice([1, 2, 3, 8, 64]))
            base, values, offsets = axis.base, axis.values(ladder), axis.offsets(ladder)
            assert all(a <= b for a, b in pairwise(values)), "monotone in the level"
            for level, value, offset in zip(ladder, values, offsets, strict=True):
                by = axis.spread * level
                assert scale.moved(base, by) == value
                if scale.lowest < value < scale.highest:
                    assert offset == pytest.approx(by, rel=1e-6, abs=1e-9 + 1e-15 * abs(base))
                else:  # cut off: not further than asked, and not the other way
                    assert 0 <= offset * math.copysign(1, by) <= abs(by) * (1 + 1e-6) + 1e-9
            assert scale.moved(base, 0.0) == base, "not to move leaves every bit"
            level = draw.choice(ladder)
            axis.fan_out(level)
            assert place["value"] == axis.values([level])[0]
            axis.restore()
            assert place["value"] == base
            axis.shift(draw.choice([0.0, 1.0, -1.0]) * 10 ** draw.uniform(-3, math.log10(50)))
            put += values
        assert all(math.isfinite(value) and scale.contains(value) for value in put), (scale, put)


@pytest.mark.parametrize("controller", [hdet.SoftmaxController("auto"), hdet.RegressionController()])
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
        optimizer, list(explored.values()), sync_every=1, controller=controller, replicas=Noisy(3, 8)
    )
    bounds = {name: item.bounds for name, item in explored.items()}  # type: ignore[attr-defined]
    seen: dict[str, set[float]] = {name: set() for name in bounds}
    for _ in range(300):
        record, _ = train(optimizer, ensemble, [0.0], lambda: None)
        for hyperparameter in record.hyperparameters:
            values = {*hyperparameter.values, hyperparameter.base_after}
            low, high = bounds[hyperparameter.name]
            assert low <= min(values) <= max(values) <= high, hyperparameter
            seen[hyperparameter.name].add(hyperparameter.base_after)
        own = [model["drop"].p, criterion.label_smoothing, float(model["attention"].scale)]  # type: ignore[arg-type]
        assert all(low <= v <= high for v, (low, high) in zip(own, bounds.values(), strict=False))
    assert min(map(len, seen.values())) > 3, "all of them have moved"


def test_an_open_scale_has_no_infinite_value() -> None:
    """A value that runs away on a scale without an upper bound stays a number."""
    for scale in (LogScale(1e-3, math.inf), LinearScale(-math.inf, math.inf)):
        value = 1.0
        for _ in range(30):
            value = scale.moved(value, 50.0 if isinstance(scale, LogScale) else 1e307)
        assert math.isfinite(value)


def hold(place: dict[str, float]) -> hdet.Hyperparameter:
    return hdet.Hyperparameter(
        "x", lambda: place["x"], lambda v: place.update(x=v), scale="log", bounds=(0.0, 1.0)
    )


@pytest.mark.parametrize(
    "build",
    [
        lambda p: (SGD(p, lr=1.0), hdet.WeightDecay()),
        lambda p: (AdamW(p, lr=1.0, weight_decay=0.0), hdet.WeightDecay()),
        lambda p: (Adam(p, betas=(0.0, 0.0)), hdet.Betas(2)),
        lambda p: (SGD(p, lr=1.0), hdet.Dropout(nn.Dropout(0))),
        lambda p: (SGD(p, lr=1.0), hdet.LabelSmoothing(nn.CrossEntropyLoss())),
        lambda p: (SGD(p, lr=1.0), hold({"x": 0.0})),
    ],
    ids=["decay of SGD", "decay of AdamW", "beta", "dropout", "label smoothing", "log scale"],
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


def test_a_momentum_of_zero_is_refused() -> None:
    """SGD keeps no buffer then: replicas at 0 would have nothing to average with those that are not."""
    optimizer = SGD(weights(2), lr=0.1, momentum=0.0)
    with pytest.raises(ValueError, match=r"momentum: bounds must include .* a value of 0; widen"):
        hdet.Ensemble(optimizer, [hdet.Momentum()], replicas=Alike(0))
    with pytest.raises(ValueError, match=r"Momentum: bounds must be two numbers above 0"):
        hdet.Ensemble(optimizer, [hdet.Momentum(bounds=(0.0, 0.9))], replicas=Alike(0))


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
            controller=controller or hdet.RegressionController(),
            replicas=Noisy(3, 8),
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


@pytest.mark.parametrize("controller", [hdet.RegressionController(), hdet.SoftmaxController("auto")])
def test_a_resumed_run_goes_on_as_the_unbroken_one(controller: Any) -> None:
    """Through JSON: base values, spreads and what the controller remembers."""
    unbroken = Run(controller=controller)
    start = unbroken.ensemble.state_dict()["explored"]
    unbroken.train(6)
    state = json.loads(json.dumps(unbroken.ensemble.state_dict(), allow_nan=False))
    changed = [(a, b) for a, b in zip(start, state["explored"], strict=True) if a != b]
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
    explored = run.ensemble.state_dict()["explored"]
    assert [saved["base"] for saved in explored[1:]] == [0.1, 0.1, 0.5, 0.1, 0.5]
    assert run.standing() == own
    assert all(own[name] != 0.1 for name in ("dropout", "label_smoothing"))


def test_a_state_in_another_order_is_told_apart_by_name() -> None:
    """Loaded by name, or refused; never one hyperparameter's value into another's place."""
    first, second = Run(), Run(reverse=True)
    first.place["x"] = 0.75
    saved = first.ensemble.state_dict()
    try:
        second.ensemble.load_state_dict(saved)
    except ValueError as error:
        assert "load_state_dict" in str(error)  # noqa: PT017 — either is right
        return
    with first.ensemble.at_base(), second.ensemble.at_base():
        assert second.standing() == first.standing()


# ---------------------------------------------------------------------- signals that say nothing

GREEDY, BLIND = "judged by the training loss", "acts through the gradient"


def said(
    caplog: pytest.LogCaptureFixture, *explored: str, size: int = 2, rank: int = 0, **options: Any
) -> str:
    """What a run says of signals, from its construction to its fourth sync."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1), Attention(1.0))
    items = {
        "weight decay": hdet.WeightDecay(),
        "dropout": hdet.Dropout(model),
        "smoothing": hdet.LabelSmoothing(nn.CrossEntropyLoss(label_smoothing=0.1)),
        "temperature": hdet.Temperature(model),
        "silent dropout": hdet.Dropout(model, spread=0.0),
    }
    optimizer = SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    if options.pop("probe", False):
        batches = [torch.ones(1, 2)]
        options["probe"] = hdet.Probe(lambda x: model(x).square().mean(), batches, model=model, per_sync=1)
    replicas = Alike(rank, size) if size > 1 else SoloReplica()
    with caplog.at_level(logging.WARNING, logger="hdet"):
        ensemble = hdet.Ensemble(
            optimizer, [items[e] for e in explored], sync_every=1, model=model, replicas=replicas, **options
        )
        for _ in range(4):
            train(optimizer, ensemble, [0.1], lambda: None)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    return "\n".join(line for line in warnings if GREEDY in line or BLIND in line)


VOTE = hdet.SoftmaxController()


def test_a_regulariser_judged_by_the_training_loss_is_warned_of_once(caplog: Any) -> None:
    line = said(caplog, "weight decay", "dropout", "temperature", controller=VOTE, gradients="none")
    assert line.count(GREEDY) == 1
    assert BLIND not in line
    assert "weight_decay, dropout is judged" in line
    assert "driven to its lower bound" in line
    assert "probe=hdet.Probe" in line


def test_what_acts_through_a_shared_gradient_is_warned_of_once(caplog: Any) -> None:
    line = said(caplog, "weight decay", "dropout", "smoothing", "temperature")
    assert line.count(BLIND) == 1
    assert GREEDY not in line, "without a controller nothing is judged"
    assert "dropout, label_smoothing, temperature acts" in line
    assert "weight_decay" not in line
    assert "gradients='none' or hdet.Arms" in line


@pytest.mark.parametrize(
    ("explored", "options"),
    [
        (
            ["dropout", "smoothing"],
            {"probe": True, "gradients": "none", "controller": hdet.SoftmaxController()},
        ),
        (["dropout"], {"probe": True, "gradients": "none"}),
        (["weight decay"], {"probe": True}),
        (["temperature"], {"gradients": "none", "controller": VOTE}),
        (["silent dropout", "temperature"], {"gradients": "none", "controller": VOTE}),
        (["weight decay", "dropout"], {"controller": VOTE, "size": 1}),
        (["weight decay", "dropout"], {"controller": VOTE, "rank": 1}),
    ],
    ids=[
        "a probe and gradients of their own",
        "one alone",
        "a probe judges decay",
        "no regulariser",
        "not explored",
        "one replica",
        "rank 0 speaks for all",
    ],
)
def test_nothing_is_said_where_the_signal_is_sound(caplog: Any, explored: Any, options: Any) -> None:
    assert said(caplog, *explored, **options) == ""
