"""One search moves all learning rates of a model."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.optim import SGD

from hdet import AutoLR
from hdet.engine.one_search import OneSearch
from tests.unit.training import X, network, probe_of, squared, train


def test_two_searches_that_step_in_turn_are_refused() -> None:
    model = network()
    optimizers = [SGD(model[0].parameters(), 0.1), SGD(model[2].parameters(), 0.1, momentum=0.9)]
    autos = [AutoLR(optimizer, probe=probe_of(model), total_steps=100) for optimizer in optimizers]

    def step() -> None:
        model.zero_grad()
        squared(model, X[0]).backward()
        for optimizer, auto in zip(optimizers, autos, strict=True):
            optimizer.step()
            auto.step()

    step()
    with pytest.raises(RuntimeError, match=r"one search must move all .* AutoLR\(\[first, second\], …\)"):
        step()


def test_a_search_begun_anew_is_not() -> None:
    """Also while the former one is still at hand, as in a notebook."""
    model = network()
    runs = []
    for _ in range(3):
        optimizer = SGD(model.parameters(), 0.1)
        auto = AutoLR(optimizer, probe=probe_of(model), total_steps=40)
        train(model, optimizer, auto, 15)
        runs.append(auto)
    assert [auto.steps for auto in runs] == [15, 15, 15]


def test_other_models_and_searches_that_are_gone_are_no_obstacle() -> None:
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    a, b = OneSearch("x", first, "A"), OneSearch("x", second, "B")
    gone = OneSearch("x", first, "C")
    for _ in range(3):
        a.step()
        b.step()
    gone.step()
    del gone
    gc.collect()
    a.step()


def test_a_model_in_ddp_is_the_model() -> None:
    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    model = nn.Linear(1, 1)
    a, b = OneSearch("x", model, "Muon"), OneSearch("x", Wrapper(model), "AdamW")
    a.step()
    b.step()
    with pytest.raises(RuntimeError, match="two step on Linear in turn, of Muon and of AdamW"):
        a.step()
    assert torch.is_tensor(model.weight)
