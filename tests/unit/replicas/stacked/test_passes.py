"""One pass of all replicas: masks, statistics and parts of the batch are each one's own."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hdet
from benchmarks.workloads.charlm import GPT
from benchmarks.workloads.newsfeed import HISTORY, FeedModel
from tests.stacks import batches, loss_fn, mlp, normed, rows_of, stack, train

Pair = namedtuple("Pair", ["x", "y"])


# ---------------------------------------------------------------------- randomness, modes, buffers


def test_dropout_differs_between_replicas_and_repeats_with_the_seed() -> None:
    x = batches(1)[0][:4].repeat(4, 1)  # all replicas see the same samples

    def run(seed: int) -> Tensor:
        replicas = stack(mlp(dropout=0.5), 4, gradients="none")
        torch.manual_seed(seed)
        return torch.stack([train(replicas, x).detach() for _ in range(3)])

    first = run(1)
    assert len(set(first[0].tolist())) == 4, "every replica has masks of its own"
    assert torch.equal(first, run(1))
    assert not torch.equal(first, run(2))


def test_modes_set_on_the_model_are_the_replicas() -> None:
    model = mlp(dropout=0.5)
    replicas = stack(model, 2)
    x = batches(1)[0][:4].repeat(2, 1)
    model.eval()
    quiet = replicas.losses(loss_fn, x)
    assert quiet[0] == quiet[1]
    model.train()
    loud = replicas.losses(loss_fn, x)
    assert loud[0] != loud[1]


def test_batch_statistics_are_each_replica_s_own_and_used_in_eval_mode() -> None:
    model = normed()
    replicas = stack(model, 2)
    x = batches(1)[0] + 3 * torch.arange(2).repeat_interleave(8)[:, None]
    replicas.losses(loss_fn, x)
    state = replicas.state_dict()
    assert state["1.num_batches_tracked"].tolist() == [1, 1]
    assert not torch.allclose(*state["1.running_mean"])
    assert model[1].num_batches_tracked == 0, "the model itself stays as it is"
    model.eval()
    own = replicas.losses(loss_fn, x)
    for r in range(2):
        replicas.write_(r)
        torch.testing.assert_close(own[r], loss_fn(model, x[8 * r : 8 * r + 8]))
    assert replicas.state_dict()["1.num_batches_tracked"].tolist() == [1, 1]


def test_write_takes_one_replica_or_the_mean() -> None:
    model = normed()
    replicas = stack(model, 4, gradients="none")
    for x in batches(3):
        train(replicas, x)
    with torch.no_grad():
        replicas.buffers_of(None)["1.num_batches_tracked"][1] = 9  # one replica has tracked more batches
    state = replicas.state_dict()
    replicas.write_(2)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, state[name][2]), name
    replicas.write_()
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, state[name].mean(0))
        else:
            assert tensor == 9, "an integer becomes the largest"


def test_integer_buffers_that_differ_are_reported() -> None:
    model = normed()
    replicas = stack(model, 2)
    scheduler = hdet.OneCycleAutoLR(
        replicas.optimizer,
        max_lr=0.1,
        total_steps=2,
        cycle_momentum=False,
        ensemble_lr_spread_ratio=0.2,
        model_sync_interval=1,
    )
    replicas.buffers_of(None)["1.num_batches_tracked"][1] = 5
    record = scheduler.step(train(replicas, batches(1)[0]))
    assert record is not None
    assert "1 integer buffer values differed: the maximum was taken" in record.events
    assert replicas.state_dict()["1.num_batches_tracked"].tolist() == [6, 6]


@pytest.mark.parametrize("training", [True, False])
def test_transformers_run_without_a_slow_way_round(training: bool) -> None:
    """torch.vmap warns where it runs an operation N times, one replica after another; warnings are errors."""
    gpt = GPT(7, layers=1, width=8, heads=2, context=4, dropout=0.1).train(training)
    text = torch.randint(7, (8, 4))
    replicas = stack(gpt, 4)
    losses = replicas.losses(lambda m, t: F.cross_entropy(m(t).flatten(0, 1), t.flatten()), text)
    feed = FeedModel(8, 2).train(training)
    feeding = stack(feed, 4)
    batch = (torch.randint(3, (8, HISTORY)), torch.randint(3, (8, HISTORY)), torch.randint(1, 3, (8,)))
    more = feeding.losses(lambda m, b: m(*b).square().mean(), batch)
    if training:
        replicas.backward(losses)
        feeding.backward(more)
    assert torch.isfinite(losses).all()
    assert torch.isfinite(more).all()


def test_a_slow_way_round_is_not_silent() -> None:
    replicas = stack(nn.EmbeddingBag(5, 4), 2)
    with pytest.warns(UserWarning, match="performance drop.*embedding_bag"):
        replicas.losses(lambda m, b: m(b).sum(), torch.randint(5, (4, 3)))


# ---------------------------------------------------------------------- batches


def linear_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


@pytest.mark.parametrize(
    ("wrap", "fn"),
    [
        (lambda x, y: (x, y), lambda m, b: linear_loss(m, *b)),
        (lambda x, y: [x, y], lambda m, b: linear_loss(m, *b)),
        (lambda x, y: Pair(x, y), lambda m, b: linear_loss(m, b.x, b.y)),
        (lambda x, y: {"in": {"x": x}, "out": (y,)}, lambda m, b: linear_loss(m, b["in"]["x"], b["out"][0])),
        (
            lambda x, y: {"x": x, "y": y, "name": "train", "none": None, "factor": 1.0},
            lambda m, b: linear_loss(m, b["x"], b["y"]) * b["factor"] * (b["name"] == "train"),
        ),
        (lambda x, y: (x.T.contiguous().T, y), lambda m, b: linear_loss(m, *b)),
    ],
    ids=["tuple", "list", "named tuple", "dicts", "no tensors", "strides"],
)
def test_each_replica_has_its_part_of_any_batch(wrap: Any, fn: Any) -> None:
    model, x = mlp(), batches(1)[0]
    y = x[:, :1].exp()
    losses = stack(model, 4).losses(fn, wrap(x, y))
    for r in range(4):
        part = slice(4 * r, 4 * r + 4)
        torch.testing.assert_close(losses[r], linear_loss(model, x[part], y[part]))


def test_a_loss_may_be_of_one_element_in_any_shape() -> None:
    replicas = stack(mlp(), 2)
    assert replicas.losses(lambda m, x: loss_fn(m, x).reshape(1, 1), batches(1)[0]).shape == (2,)


def test_a_captured_pass_is_losses_and_backward() -> None:
    """On a CPU nothing is recorded; gradients add up as they do without."""
    plain, captured = stack(mlp(), 4), stack(mlp(), 4)
    compute = captured.capture(loss_fn)
    for x in batches(2):
        expected = plain.losses(loss_fn, x)
        plain.backward(expected)
        losses = compute(x)
        assert torch.equal(losses, expected)
        assert not losses.requires_grad
    for one in (plain, captured):
        one.optimizer.step()
    assert torch.equal(rows_of(plain), rows_of(captured))
