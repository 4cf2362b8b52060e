"""Back to where a window, or the run, began."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn
from torch.optim import AdamW

from hdet.autolr.way_back import WayBack
from tests.states import there_and_back


def moved(model: nn.Module, optimizer: AdamW) -> list[torch.Tensor]:
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return [p.detach().clone() for p in model.parameters()]


def test_each_leads_to_its_own() -> None:
    model = nn.Linear(3, 2)
    optimizer = AdamW(model.parameters(), lr=0.1)
    way_back = WayBack(list(model.parameters()), optimizer, model, offload=False)
    first = [p.detach().clone() for p in model.parameters()]
    way_back.begin_run()
    second = moved(model, optimizer)
    way_back.begin_window()
    state = deepcopy(there_and_back(way_back.state_dict()))
    moved(model, optimizer)
    way_back.to_window()
    assert all(map(torch.equal, model.parameters(), second))
    assert all(float(s["step"]) == 1 for s in optimizer.state.values())
    way_back.to_beginning()
    assert all(map(torch.equal, model.parameters(), first))
    assert not any(optimizer.state.values()), "the optimizer had not stepped then"

    again = WayBack(list(model.parameters()), optimizer, model, offload=True)
    again.load_state_dict(state)
    again.to_window()
    assert all(map(torch.equal, model.parameters(), second))
    assert again.bytes() == way_back.bytes()
