"""A shape drawn into an optimizer's groups."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from hdet.autolr.drawn import DrawnShape
from hdet.autolr.shapes import WarmStableDecay


def optimizer(kind: str) -> torch.optim.Optimizer:
    groups: list[dict[str, Any]] = [{"params": [nn.Parameter(torch.ones(1))], "lr": lr} for lr in (0.1, 0.3)]
    for group in groups if kind == "tensor" else []:
        group["lr"] = torch.tensor(group["lr"])
    return torch.optim.SGD(groups)


@pytest.mark.parametrize("kind", ["float", "tensor"])
def test_it_keeps_the_ratios_of_the_groups_and_nothing_else_of_them(kind: str) -> None:
    trained = optimizer(kind)
    tensors = [group["lr"] for group in trained.param_groups]
    drawn = DrawnShape(trained, WarmStableDecay(4, 2))
    seen = []
    for _ in range(5):
        seen.append([float(group["lr"]) for group in trained.param_groups])
        drawn.step()
    assert seen == [pytest.approx([h, 3 * h]) for h in (1.0, 1.0, 1.0, 0.5, 0.0)]
    if kind == "tensor":
        assert all(group["lr"] is t for group, t in zip(trained.param_groups, tensors, strict=True))


def test_it_is_taken_up_where_it_was() -> None:
    first = DrawnShape(optimizer("float"), WarmStableDecay(4, 2))
    for _ in range(3):
        first.step()
    again = optimizer("float")
    second = DrawnShape(again, WarmStableDecay(4, 2))
    second.load_state_dict(first.state_dict())
    second.step()
    assert again.param_groups[1]["lr"] == 0.0


def test_of_several_optimizers_the_ratios_within_each_count() -> None:
    groups = [{"params": [nn.Parameter(torch.ones(1))], "lr": lr} for lr in (10.0, 0.1, 0.3)]
    trained = torch.optim.SGD(groups)
    assert DrawnShape(trained, WarmStableDecay(4, 2), sizes=(1, 2)).ratios == pytest.approx([1.0, 1.0, 3.0])
