"""Signals that cannot judge what is explored: said once, and only there."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

import hdet
from hdet.replicas import SoloReplica
from tests.fakes import Alike, Attention
from tests.unit.hyperparameters.scenes import train

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
