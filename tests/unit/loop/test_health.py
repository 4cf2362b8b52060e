"""Who is lost, and who only does worse; signals that cannot judge what is explored."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD

import hdet
from hdet.loop.converge import Converge
from hdet.loop.health import Health, Watch, lost_buffers
from hdet.published.softmax import SoftmaxController
from hdet.replicas import SoloReplica
from tests.fakes import Alike, Attention
from tests.unit.hyperparameters.scenes import train

NAN = math.nan


class Several(SoloReplica):
    def __init__(self, size: int, parts: int = 1) -> None:
        self.size, self.ranks_per_replica = size, parts


def health(size: int, parts: int = 1) -> Health:
    replicas = Several(size, parts)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    return Health("Cycle", replicas, Converge(replicas, optimizer, None, with_state=False))


def test_who_is_lost() -> None:
    ones, usual = [1.0] * 3, [0.5, 0.6, 0.4]
    table: list[tuple[Sequence[float], Sequence[float], Sequence[float], list[int]]] = [
        (ones, ones, usual, []),
        ([1, NAN, 1], ones, usual, [1]),
        (ones, [1, 1, NAN], usual, [2]),
        (ones, ones, [0.5, math.inf, NAN], [1, 2]),
        ([1, 1, 1e4], ones, usual, [2]),
        ([1, 1e20, 1e20], ones, [0.5, 1e30, 1e30], [1, 2]),  # most have exploded
        ([1, 1.1, 1.2], ones, [1e-9, 1e-3, 1e-5], []),  # near zero any ratio is usual
        ([1, 3, 1], ones, [0.5, 6.9e20, 0.4], [1]),
        ([1, 3, 1], ones, [0.5, 50.0, 0.4], []),  # worse, and averaged: policies hear of it
        (ones, [1, 1e8, 1], usual, []),  # a gradient that spiked
        (ones, [1, 1e25, 1], usual, [1]),
        ([0, 0, 1], [0, 0, 1], [0.0, 0.0, 1.0], []),  # zeros are no measure
    ]
    for weights, rest, losses, lost in table:
        norms = list(zip(weights, rest, strict=True))
        assert sorted(health(3).lost(norms, losses)) == lost, (weights, rest, losses)


def test_a_loss_that_the_run_began_with_is_no_explosion() -> None:
    """Later, when all losses are tiny, one replica is thrown back to the beginning."""
    judged = health(2)
    assert not judged.lost([[1, 1], [1, 1]], [2.3, 2.4])
    assert not judged.lost([[1, 1], [2, 1]], [1e-6, 2.0])
    assert judged.lost([[1, 1], [2, 1]], [1e-6, 1e5]) == {1: "its loss is 1e+05, another's 1e-06"}


def test_one_part_speaks_for_its_replica() -> None:
    norms = [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [NAN, 1.0]]
    assert health(2, parts=2).lost(norms) == {1: "its weights are not finite"}


def test_the_same_one_in_a_row_ends_the_run_and_others_do_not() -> None:
    judged = health(2)
    for turn in range(20):
        judged.lost([[NAN, 1.0], [1.0, 1.0]][:: 1 if turn % 2 else -1])
    for _ in range(20):
        judged.lost([[NAN, 1.0], [NAN, 1.0]])  # nobody is left to take the mean of
    judged.lost([[1.0, 1.0], [1.0, 1.0]])
    for _ in range(7):
        judged.lost([[1.0, 1.0], [NAN, 1.0]])
    with pytest.raises(RuntimeError, match="replica 1 was lost at 8 syncs in a row"):
        judged.lost([[1.0, 1.0], [NAN, 1.0]])


# ---------------------------------------------------------------------- signs of another set-up


def test_warnings_by_losses_and_distances() -> None:
    """Losses, measured and predicted distances, and the size of rounding errors."""

    def kinds(*seen: Any, own: bool = False, began_apart: bool = False) -> set[str]:
        watch = Watch("Here", own_gradients=own)
        return set(watch(4, *seen, began_apart=began_apart))

    assert kinds([1.0, 2.0], [1.0, 1.0], [1.0, 1.0], 0.01) == set()
    assert kinds([1.0, 1.0], [1.0, 1.0], [1.0, 1.0], 0.01) == {"reduced loss"}
    assert kinds([1.0, 2.0], [0.0, 0.05], [1.0, 1.0], 0.01) == {"no fan-out"}
    assert kinds([1.0, 2.0], [0.0, 0.0], [1.0, 1.0], 1.0) == set(), "nothing but rounding was expected"
    assert kinds([1.0, 2.0], [2.1, 2.1], [1.0, 1.0], 0.01) == {"too far"}
    assert kinds([1.0, 2.0], [2.1, 2.1], [1.0, 1.0], 0.01, began_apart=True) == set()
    assert kinds([1.0, 2.0], [2.1, 2.1], [NAN, NAN], 0.01) == set(), "nothing was predicted"
    assert kinds([1.0, 2.0], [0.0, 0.0], [NAN, NAN], 0.01, own=True) == {"no divergence"}


def test_too_far_at_three_syncs_in_a_row_ends_the_run() -> None:
    watch = Watch("Here", own_gradients=False)
    far, near = ([3.0, 3.0], [1.0, 1.0], 0.0), ([1.0, 1.0], [1.0, 1.0], 0.0)
    for distances in (far, far, near, far, far):
        watch(4, [1.0, 2.0], *distances, began_apart=False)
    with pytest.raises(RuntimeError, match=r"Here.step: step 4: .* 3 syncs in a row"):
        watch(4, [1.0, 2.0], *far, began_apart=False)


def test_buffers_that_are_lost_are_named() -> None:
    assert "(a, b, c and 2 more)" in lost_buffers(list("abcde"))["lost buffers"]


GREEDY, BLIND = "judged by the training loss", "acts through the gradient"


def said(
    caplog: pytest.LogCaptureFixture, *explored: str, size: int = 2, rank: int = 0, **options: Any
) -> str:
    """What a run says of signals, from its construction to its second sync."""
    caplog.clear()
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
            optimizer,
            [items[e] for e in explored],
            sync_every=1,
            model=model,
            process_group=replicas,
            **options,
        )
        for _ in range(2):
            train(optimizer, ensemble, [0.1], lambda: None)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    return "\n".join(line for line in warnings if GREEDY in line or BLIND in line)


VOTE = SoftmaxController()


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


def test_nothing_is_said_where_the_signal_is_sound(caplog: Any) -> None:
    own: Any = {"gradients": "none", "controller": VOTE}
    sound: list[tuple[list[str], Any]] = [
        (
            ["dropout", "smoothing"],
            {"probe": True, "gradients": "none", "controller": SoftmaxController()},
        ),
        (["weight decay"], {"probe": True}),
        (["silent dropout", "temperature"], own),  # not explored, and no regulariser
        (["weight decay", "dropout"], {"controller": VOTE, "size": 1}),
        (["weight decay", "dropout"], {"controller": VOTE, "rank": 1}),  # rank 0 speaks for all
    ]
    for explored, options in sound:
        assert said(caplog, *explored, **options) == "", explored
