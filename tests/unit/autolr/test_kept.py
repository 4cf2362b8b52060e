"""A copy of weights and buffers comes back bit for bit, whatever was frozen or freed meanwhile."""

from __future__ import annotations

import io
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hdet.autolr.kept import Kept
from tests.states import there_and_back


def model_with_buffers() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model(torch.randn(8, 3))
    return model


def standing(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def weights_of(model: nn.Module) -> dict[int, Tensor]:
    return dict(enumerate(model.parameters()))


@torch.no_grad()
def move(model: nn.Module) -> None:
    for tensor in model.state_dict().values():
        tensor += 1


def assert_equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


@pytest.mark.parametrize("offload", [False, True])
def test_weights_and_buffers_come_back_bit_for_bit(offload: bool) -> None:
    model = model_with_buffers()
    kept = Kept(model, list(model.parameters()), offload=offload)
    before, places = standing(model), [p.data_ptr() for p in model.parameters()]
    kept.take(weights_of(model))
    for _ in range(2):
        move(model)
        kept.write_()
        assert_equal(standing(model), before)
    assert [p.data_ptr() for p in model.parameters()] == places


def test_the_latest_copy_counts_and_takes_no_more_memory() -> None:
    model = model_with_buffers()
    kept = Kept(model, list(model.parameters()), offload=False)
    kept.take(weights_of(model))
    size = kept.bytes()
    move(model)
    kept.take(weights_of(model))
    latest = standing(model)
    move(model)
    kept.write_()
    assert_equal(standing(model), latest)
    assert kept.bytes() == size == sum(t.numel() * t.element_size() for t in latest.values())


def test_nothing_taken_takes_no_memory_and_writes_nothing() -> None:
    model = model_with_buffers()
    kept = Kept(model, list(model.parameters()), offload=False)
    before = standing(model)
    kept.join(weights_of(model))
    assert kept.bytes() == 0
    kept.write_()
    assert_equal(standing(model), before)


def test_weights_that_stand_elsewhere_are_written_into_the_model() -> None:
    """A window's mean, which may be wider than the weights."""
    model = nn.Linear(2, 2, dtype=torch.bfloat16)
    kept = Kept(model, list(model.parameters()), offload=False)
    kept.take({0: torch.full((2, 2), 1.5), 1: torch.zeros(2)})
    assert kept.bytes() == 12
    kept.write_()
    assert torch.equal(model.weight, torch.full((2, 2), 1.5, dtype=torch.bfloat16))
    assert torch.equal(model.bias, torch.zeros(2, dtype=torch.bfloat16))


def test_what_is_never_trained_is_not_copied() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    kept = Kept(model, list(model.parameters()), offload=False)
    kept.take({i: p for i, p in weights_of(model).items() if i >= 2})
    taken = standing(model)
    assert kept.bytes() == 4 * (4 * 2 + 2)
    move(model)
    moved = standing(model)
    kept.write_()
    assert torch.equal(model[0].weight, moved["0.weight"])
    assert torch.equal(model[1].weight, taken["1.weight"])


def test_a_layer_freed_after_the_copy_comes_back_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    kept = Kept(model, list(model.parameters()), offload=False)
    before = standing(model)
    kept.take({i: p for i, p in weights_of(model).items() if i >= 2})
    kept.join(weights_of(model))
    move(model)
    kept.join(weights_of(model))
    kept.write_()
    assert_equal(standing(model), before)


def test_a_layer_frozen_between_two_copies_is_kept_as_it_was_frozen() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    kept = Kept(model, list(model.parameters()), offload=False)
    kept.take(weights_of(model))
    move(model)
    frozen_at = standing(model)
    kept.take({i: p for i, p in weights_of(model).items() if i >= 2})
    move(model)
    kept.write_()
    assert_equal(standing(model), frozen_at)


def test_a_buffer_that_has_another_shape_by_now_is_left_alone() -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(2))
            self.register_buffer("gone", torch.zeros(1))

    model = Cache()
    kept = Kept(model, [], offload=False)
    kept.take({})
    model.seen = torch.ones(3)
    del model.gone
    kept.write_()
    assert torch.equal(model.get_buffer("seen"), torch.ones(3))


@pytest.mark.parametrize("offload", [False, True])
def test_a_saved_copy_comes_back(offload: bool) -> None:
    model = model_with_buffers()
    kept = Kept(model, list(model.parameters()), offload=False)
    kept.take(weights_of(model))
    best = standing(model)
    file = io.BytesIO()
    torch.save(there_and_back(kept.state_dict()), file)
    file.seek(0)
    state: dict[str, Any] = torch.load(file, weights_only=True)

    other = model_with_buffers()
    move(other)
    resumed = Kept(other, list(other.parameters()), offload=offload)
    resumed.load_state_dict(state)
    assert resumed.bytes() == kept.bytes()
    resumed.write_()
    assert_equal(standing(other), best)


def test_a_loaded_copy_is_not_the_saved_one() -> None:
    model = model_with_buffers()
    kept = Kept(model, list(model.parameters()), offload=False)
    kept.take(weights_of(model))
    best = standing(model)
    resumed = Kept(model, list(model.parameters()), offload=False)
    resumed.load_state_dict(there_and_back(kept.state_dict()))
    move(model)
    kept.take(weights_of(model))
    resumed.write_()
    assert_equal(standing(model), best)


def test_a_state_is_the_copy_itself() -> None:
    """As torch's own states are: to keep it in memory while training goes on, it is copied."""
    model = model_with_buffers()
    kept = Kept(model, list(model.parameters()), offload=False)
    kept.take(weights_of(model))
    best = standing(model)
    state = there_and_back(kept.state_dict())
    held = deepcopy(state)
    move(model)
    kept.take(weights_of(model))
    assert all(torch.equal(state["weights"][i], p) for i, p in enumerate(model.parameters()))
    resumed = Kept(model, list(model.parameters()), offload=False)
    resumed.load_state_dict(held)
    resumed.write_()
    assert_equal(standing(model), best)
