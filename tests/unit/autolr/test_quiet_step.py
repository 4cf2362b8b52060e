"""What a step between two windows costs, counted in calls: a clock would measure the machine."""

import sys

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

import hdet


def calls_of(step, after):
    """The fewest function calls of one optimizer step and what follows it, of Python and of C."""
    fewest = []
    for _ in range(20):
        count = 0

        def note(frame, event, argument):
            nonlocal count
            count += event in ("call", "c_call")

        before = sys.getprofile()
        sys.setprofile(note)
        try:
            step()
            after()
        finally:
            sys.setprofile(before)
        fewest.append(count)
    return min(fewest)


@pytest.fixture
def model():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1))
    for parameter in model.parameters():
        parameter.grad = 1e-3 * torch.randn_like(parameter)
    return model


def added_by(model, door):
    """Calls beyond those of the optimizer alone; ``door`` makes of an optimizer what is called after it."""
    alone = torch.optim.AdamW(model.parameters())
    alone.step()
    plain = calls_of(alone.step, lambda: None)
    optimizer = torch.optim.AdamW(model.parameters())
    after = door(optimizer)
    for _ in range(300):  # windows are long by now
        optimizer.step()
        after()
    return calls_of(optimizer.step, after) - plain


def test_a_quiet_step_costs_little_more_than_one_cycle(model):
    draw = torch.Generator().manual_seed(0)
    batches = [torch.randn(16, 8, generator=draw) for _ in range(16)]

    def auto(optimizer):
        probe = hdet.Probe(lambda batch: model(batch).square().mean(), batches, model=model)
        return hdet.AutoLR(optimizer, total_steps=10**6, probe=probe).step

    one_cycle = added_by(model, lambda optimizer: OneCycleLR(optimizer, 1e-3, 10**6).step)
    published = added_by(model, lambda optimizer: hdet.OneCycleAutoLR(optimizer, 1e-3, 10**6).step)
    assert added_by(model, auto) <= 1.75 * one_cycle
    assert published <= 1.75 * one_cycle
