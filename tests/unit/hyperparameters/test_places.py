"""Where explored values stand: put back bit for bit, for whatever reason a run ends."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import Adam

import hdet
from tests.fakes import Alike
from tests.unit.hyperparameters.scenes import Scene


def leave_normally(scene: Scene) -> None:
    with scene.explore(sync_every=2) as ensemble:
        for _ in range(3):
            scene.step()
            ensemble.step(1.0)


def raise_in_forward(scene: Scene) -> None:
    def train() -> None:
        with scene.explore():
            scene.step()
            raise KeyError("forward")

    with pytest.raises(KeyError, match="forward"):
        train()


def raise_in_the_optimizer(scene: Scene) -> None:
    base = scene.read_in_step()
    with pytest.raises(KeyError) as caught, scene.explore():
        scene.raise_in_step()
    assert caught.value.args[0] != base, "the replica's own stood there"


def raise_in_the_optimizer_and_go_on(scene: Scene) -> None:
    with scene.explore() as ensemble:
        with pytest.raises(KeyError):
            scene.raise_in_step()
        scene.step()
        ensemble.step(1.0)


def detach_within_at_base(scene: Scene) -> None:
    ensemble = scene.explore()
    with ensemble.at_base():
        ensemble.detach()


def be_replaced(scene: Scene) -> None:
    scene.explore()
    scene.explore([]).detach()


def raise_in_a_probe(scene: Scene) -> None:
    def loss_fn(batch: Tensor) -> Tensor:
        raise KeyError("probe")

    def train() -> None:
        probe = hdet.Probe(loss_fn, [torch.ones(1)], model=scene.model)
        with scene.explore(probe=probe, sync_every=1, process_group=Alike(3, 16)) as ensemble:
            scene.step()
            ensemble.step()

    with pytest.raises(KeyError, match="probe"):
        train()


ENDS: list[Callable[[Scene], None]] = [
    leave_normally,
    raise_in_forward,
    raise_in_the_optimizer,
    raise_in_the_optimizer_and_go_on,
    detach_within_at_base,
    be_replaced,
    raise_in_a_probe,
]


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__)
def test_every_value_is_put_back_bit_for_bit(end: Callable[[Scene], None]) -> None:
    scene = Scene(Adam)
    before, hooks = scene.values(), scene.hooks()
    end(scene)
    assert scene.values() == before
    assert scene.hooks() == hooks == (0, 0)


def test_all_values_are_the_replicas_own_meanwhile() -> None:
    """Without which it would be easy to put them back."""
    scene = Scene()
    forward, step = scene.values()
    ensemble = scene.explore()
    assert all(scene.read_in_forward()[name] != value for name, value in forward.items())
    assert scene.read_in_step() == step
    with pytest.raises(KeyError) as caught:
        scene.raise_in_step()
    for key in ("'lr'", "'momentum'", "'weight_decay'"):
        own, base = (re.findall(f"{key}: [^,}}]*", text) for text in (caught.value.args[0], step))
        assert all(a != b for a, b in zip(own, base, strict=True))
    ensemble.detach()


def test_the_base_values_stand_when_the_run_has_ended() -> None:
    scene = Scene()
    before = scene.values()
    ensemble = scene.explore(sync_every=2, total_steps=3)
    for _ in range(3):
        assert scene.read_in_forward() != before[0]
        scene.step()
        ensemble.step(1.0)
    assert scene.values() == before


def test_at_base_shows_the_base_values_within_and_the_replicas_own_afterwards() -> None:
    scene = Scene()
    base = scene.values()
    ensemble = scene.explore()
    own = scene.values()
    with pytest.raises(KeyError), ensemble.at_base():  # noqa: PT012 — what raises is the end of the block
        assert scene.values() == base
        with ensemble.at_base():
            assert scene.values() == base
        assert scene.values() == base
        raise KeyError
    assert scene.values() == own
    ensemble.converge()
    assert scene.values() == own


def test_after_a_step_that_raised_at_base_shows_the_base_values() -> None:
    scene = Scene()
    base = scene.values()
    ensemble = scene.explore()
    with pytest.raises(KeyError):
        scene.raise_in_step()
    assert scene.read_in_step() != base[1]
    with ensemble.at_base():
        assert scene.values() == base


@pytest.mark.parametrize("fails_at", ["its own weights", "the mean"])
def test_after_a_probe_that_raised_the_replica_goes_on_with_its_own_values(fails_at: str) -> None:
    """Regularisers are off while it measures, and no others; the interval is not over."""
    scene = Scene()
    model: Any = scene.model
    calls: list[tuple[float, float, float]] = []

    def loss_fn(batch: Tensor) -> Tensor:
        calls.append((model["a"].p, scene.criterion.label_smoothing, model["number"].scale))
        if len(calls) == (1 if fails_at == "its own weights" else 2):
            raise KeyError
        return batch.mean()

    probe = hdet.Probe(loss_fn, [torch.ones(1)], model=model, per_sync=1)
    explored = [
        hdet.Dropout(model, layers=["a"]),
        hdet.LabelSmoothing(scene.criterion),
        hdet.Temperature(model, layers=["number"]),
        hdet.WeightDecay(groups=[0]),
    ]
    ensemble = scene.explore(explored, probe=probe, sync_every=1, process_group=Alike(3, 8))
    own = scene.values()
    assert model["number"].scale != 0.1
    stands = {"its own weights": model["number"].scale, "the mean": 0.1}
    scene.step()
    with pytest.raises(KeyError):
        ensemble.step()
    assert calls[-1] == (0.0, 0.0, stands[fails_at])
    assert scene.values() == own
    ensemble.detach()


def test_a_detached_ensemble_stays_detached() -> None:
    """A last step(), or a state that is loaded, brings no fan-out back."""
    for late in ("step", "load_state_dict"):
        scene = Scene()
        forward = scene.read_in_forward()
        ensemble = scene.explore(sync_every=1)
        state = ensemble.state_dict()
        scene.step()
        ensemble.detach()
        if late == "step":
            ensemble.step(1.0)
        else:
            ensemble.load_state_dict(state)
        assert scene.read_in_forward() == forward, late


def test_a_place_that_fails_keeps_no_other_from_being_put_back() -> None:
    scene = Scene()
    before = scene.values()

    def read() -> float:
        if "gone" in scene.own:
            raise OSError("gone")
        return float(scene.own["x"])

    ensemble = scene.explore([scene.hyperparameter(read=read), *scene.all()[:-1]])
    scene.own["gone"] = True
    with pytest.raises(OSError, match="gone"):
        ensemble.detach()
    assert scene.read_in_forward() | {"own": ""} == before[0] | {"own": ""}
    assert scene.hooks() == (0, 0)
