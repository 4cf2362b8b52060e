"""Weight decay, momentum, betas and clipping: each acts while the optimizer steps, and there alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

import hdet
from hdet.loop.levels import levels
from tests.fakes import Alike
from tests.unit.hyperparameters.scenes import Scene, train, weights

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
            optimizer, [explored], sync_every=len(gradients), process_group=Alike(rank, size=3)
        )
        record, path = train(optimizer, ensemble, gradients, lambda w=weight: w.item())
        assert group[key] == base
        found.append(find(path, optimizer.state[weight]))
        (hyperparameter,) = record.hyperparameters
        assert found[-1] == pytest.approx(hyperparameter.values[rank], rel=1e-9)
        if rank == 1:
            assert hyperparameter.values[rank] == hyperparameter.base_before
    assert found[0] < found[1] < found[2]


def test_a_tensor_of_betas_is_written_in_place() -> None:
    """Captured steps read the very same memory."""
    betas = (torch.tensor(0.9), torch.tensor(0.99))
    optimizer = Adam(weights(1), lr=1.0, betas=betas)
    ensemble = hdet.Ensemble(optimizer, [hdet.Betas(2)], sync_every=1, process_group=Alike())
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
        ensemble = hdet.Ensemble(optimizer, [explored], sync_every=1, process_group=Alike())
        train(optimizer, ensemble, [0.0], lambda: None)
        return [1 - weight.item() for weight in (first, second, third)]

    together = decays(hdet.WeightDecay())
    assert together[0] == together[1] > 0.15
    assert together[2] == 0.0, "by default those that decay"
    each = decays(hdet.WeightDecay(each=True, spread=[0.1, 0.5]))
    assert each == pytest.approx([0.1 * math.exp(0.1), together[1], 0.0], rel=1e-3)
    assert decays(hdet.WeightDecay(groups=[1])) == pytest.approx([0.1, together[1], 0.0])
    assert decays(hdet.WeightDecay(groups=[2]))[2] > 0, "a group that did not decay may begin to"


@pytest.mark.parametrize("how", ["plain", "fused and scaled", "fused, scaled, unscaled by the user"])
def test_the_gradient_is_clipped_at_the_replicas_norm(how: str) -> None:
    """At a learning rate of 1 the step is as long as the gradient that the optimizer saw."""
    lengths = []
    for rank in range(3):
        parameters = weights(3, 1)
        optimizer = SGD(parameters, lr=1.0, fused="fused" in how)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled="scaled" in how)
        ensemble = hdet.Ensemble(
            optimizer, [hdet.GradientClip(2.0)], sync_every=1, process_group=Alike(rank, size=3)
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


def test_a_momentum_of_zero_is_refused() -> None:
    """SGD keeps no buffer then: replicas at 0 would have nothing to average with those that are not."""
    optimizer = SGD(weights(2), lr=0.1, momentum=0.0)
    with pytest.raises(ValueError, match=r"momentum: bounds must include .* a value of 0; widen"):
        hdet.Ensemble(optimizer, [hdet.Momentum()], process_group=Alike(0))
    with pytest.raises(ValueError, match=r"Momentum: bounds must be two numbers in \(0, 1\)"):
        hdet.Ensemble(optimizer, [hdet.Momentum(bounds=(0.0, 0.9))], process_group=Alike(0))


def test_the_gradient_is_clipped_no_longer_after_detach() -> None:
    scene = Scene()
    scene.explore([hdet.GradientClip(0.5)]).detach()
    scene.step(length=100.0)
    assert float(scene.linear.bias.grad[0]) == 100.0


def test_a_gradient_that_a_closure_computes_is_clipped() -> None:
    weight = nn.Parameter(torch.zeros(3))
    optimizer = SGD([weight], lr=1.0)
    with hdet.Ensemble(optimizer, [hdet.GradientClip(0.5, spread=0.0)], process_group=Alike()) as ensemble:

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = 1e6 * weight.sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        assert float(weight.detach().norm()) == pytest.approx(0.5, rel=1e-4)
        optimizer.step(closure=closure)
        assert float(weight.detach().norm()) == pytest.approx(1.0, rel=1e-4)
        assert ensemble.values == {"gradient_clip": 0.5}


def test_one_group_whose_decay_passes_through_the_gradient_bends_the_state() -> None:
    first, second = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
    groups = [{"params": [first]}, {"params": [second], "decoupled_weight_decay": True}]
    for optimizer, bends in ((torch.optim.Adam([first], weight_decay=0.1), True), (AdamW([first]), False)):
        (axis,) = hdet.WeightDecay().bind(optimizer)
        assert axis.bends_state == bends
    (axis,) = hdet.WeightDecay(spread=1.0).bind(torch.optim.Adam(groups, weight_decay=0.0))
    assert axis.bends_state
    assert axis.values([1.0])[0] == pytest.approx(1e-5 * (math.e - 1))
