"""Whatever a door is given, it trains, or raises our error: one that names the door and what it got."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hdet

STRANGE = st.sampled_from(
    [
        None,
        True,
        0,
        1,
        -1,
        3,
        40,
        41,
        10**12,
        0.5,
        -0.5,
        math.nan,
        math.inf,
        -math.inf,
        "",
        "wsd",
        "host",
        [],
        (),
    ]
) | st.builds(object)

ARGUMENTS: dict[str, list[str]] = {
    "AutoLR": [
        "total_steps",
        "schedule",
        "patience",
        "offload",
        "rule",
    ],
    "Ensemble": [
        "schedule",
        "sync_every",
        "total_steps",
        "controller",
        "probe",
        "control_after",
        "design",
        "gradients",
        "seed",
    ],
    "OneCycleAutoLR": [
        *("max_lr", "total_steps", "auto_lr_warmup_steps", "ensemble_lr_spread_ratio"),
        *("model_sync_interval", "loss_scale", "decay", "rules"),
    ],
}


def made(door: str, optimizer: torch.optim.Optimizer, probe: hdet.Probe, **given: Any) -> Any:
    usual: dict[str, dict[str, Any]] = {
        "AutoLR": {"total_steps": 40, "probe": probe},
        "Ensemble": {"total_steps": 40, "sync_every": 2},
        "OneCycleAutoLR": {
            "max_lr": 0.1,
            "total_steps": 40,
            "enable_auto_lr": True,
            "model_sync_interval": 2,
        },
    }
    build: Callable[..., Any] = getattr(hdet, door)
    return build(optimizer, **{**usual[door], **given})


@pytest.mark.parametrize("door", ARGUMENTS)
@settings(max_examples=100)
@given(data=st.data())
def test_works_or_raises_our_error(door: str, data: st.DataObject) -> None:
    names = data.draw(st.lists(st.sampled_from(ARGUMENTS[door]), min_size=1, max_size=2, unique=True))
    given = {name: data.draw(STRANGE, label=name) for name in names}
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    probe = hdet.Probe(lambda x: model(x).square().mean(), list(torch.randn(2, 4, 2)), model=model)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            search = made(door, optimizer, probe, **given)
    except (TypeError, ValueError) as error:
        said = str(error)
    else:
        said = ""
    if said:
        assert any(name in said for name in (door, "LearningRate: ", *names)), (given, said)
        return
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(torch.randn(4, 2)).square().mean()
        loss.backward()
        optimizer.step()
        search.step(loss.detach())
    assert all(bool(torch.isfinite(parameter).all()) for parameter in model.parameters()), given
