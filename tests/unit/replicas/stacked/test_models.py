"""The model that was stacked: what it may share within itself, and what may not change; it stays whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

import hdet
from tests.stacks import batches, loss_fn, mlp, normed, rows_of, stack, train

# ---------------------------------------------------------------------- one module, several names


def twice() -> nn.Module:
    torch.manual_seed(0)
    linear = nn.Linear(3, 3)
    return nn.Sequential(linear, nn.Tanh(), linear)


def shared_norm() -> nn.Module:
    torch.manual_seed(0)
    norm = nn.BatchNorm1d(3)
    return nn.Sequential(nn.Linear(3, 3), norm, nn.Linear(3, 3), norm)


def tied() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    model[2].weight = model[0].weight
    model[4].running_mean = model[3].running_mean
    return model


def two_attributes() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Linear(3, 3)
    model.again = model.weight
    model.register_forward_hook(lambda m, _, out: out @ m.again)
    return model


def square(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x).square().mean()


class Holding(nn.Module):
    """A loss that holds the model it is given."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner = model

    def forward(self, model: nn.Module, x: Tensor) -> Tensor:
        return square(self.inner, x)


@pytest.mark.parametrize("holds", [False, True], ids=["function", "module"])
@pytest.mark.parametrize("make", [twice, shared_norm, tied, two_attributes])
def test_what_has_two_names_is_one_row_and_the_model_stays_whole(
    make: Callable[[], nn.Module], holds: bool
) -> None:
    model = make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    own = {name: id(tensor) for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    replicas = stack(model, 2, gradients="none")
    assert replicas.optimizer.param_groups[0]["params"][0].shape == (
        2,
        sum(p.numel() for p in model.parameters()),
    )
    data = batches(3)
    for x in data:
        train(replicas, x, Holding(model) if holds else square)
    assert {n: id(t) for n, t in (*model.named_parameters(), *model.named_buffers())} == own
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    for r in range(2):
        twin = make()
        optimizer = SGD(twin.parameters(), lr=0.1)
        for x in data:
            optimizer.zero_grad()
            square(twin, x[8 * r : 8 * r + 8]).backward()
            optimizer.step()
        replicas.write_(r)
        for (name, ours), theirs in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
            torch.testing.assert_close(ours, theirs, msg=lambda m, name=name: f"{name}: {m}")
    assert torch.isfinite(model(data[0])).all(), "and can be called"


# ---------------------------------------------------------------------- what may not change


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "frozen": (lambda m: m[0].requires_grad_(False), r"0\.weight has requires_grad=False, not True"),
    "a layer of another shape": (
        lambda m: m.__setitem__(2, nn.Linear(4, 2)),
        r"2\.weight has shape=\(2, 4\)",
    ),
    "a layer of the same shape": (
        lambda m: m.__setitem__(2, nn.Linear(4, 1)),
        r"2\.weight is another parameter",
    ),
    "a layer more": (lambda m: m.append(nn.Linear(1, 1)), r"3\.weight is new"),
    "a layer less": (lambda m: m.__delitem__(2), r"2\.weight is gone, 2\.bias is gone"),
    "a buffer more": (lambda m: m[0].register_buffer("mask", torch.ones(3)), r"0\.mask is new"),
    "a buffer less": (lambda m: delattr(m[1], "running_var"), r"1\.running_var is gone"),
    "tied": (lambda m: setattr(m[2], "bias", m[1].bias), r"2\.bias is gone"),
    "another type": (lambda m: m.double(), r"0\.weight has dtype=torch\.float64, not torch\.float32"),
}


@pytest.mark.parametrize("change", list(CHANGES))
@pytest.mark.parametrize("captured", [False, True])
def test_a_changed_model_is_refused(change: str, captured: bool) -> None:
    model, x = normed(), batches(1)[0]
    replicas = stack(model)
    compute = replicas.capture(loss_fn) if captured else lambda x: replicas.losses(loss_fn, x)
    compute(x)
    act, words = CHANGES[change]
    act(model)
    with pytest.raises(
        RuntimeError, match=f"StackedReplicas.losses: .*as it was stacked, and {words}.*stack again"
    ):
        compute(x)


def test_a_parameter_that_was_frozen_is_not_trained_later() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    replicas = stack(model)
    model[0].requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"0\.weight has requires_grad=True, not False"):
        replicas.losses(loss_fn, batches(1)[0])


def test_replicas_are_not_written_into_another_model() -> None:
    model = mlp()
    replicas = stack(model)
    model[3] = nn.Linear(5, 7)
    before = model[0].weight.detach().clone()
    with torch.no_grad():
        replicas.slices(0)[0].add_(1)
    with pytest.raises(RuntimeError, match=r"write_: .*3\.weight has shape=\(7, 5\), not \(1, 5\)"):
        replicas.write_()
    assert torch.equal(model[0].weight, before), "nothing was written"


# ---------------------------------------------------------------------- buffers


class Caching(nn.Module):
    """Makes a buffer in its first pass, of one that is None, or replaces one."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.ones(3))
        if kind == "replaced":
            self.register_buffer("seen", torch.zeros(()))
        elif kind == "none":
            self.register_buffer("seen", None)

    def forward(self, x: Tensor) -> Tensor:
        out = x @ self.weight
        if self.kind == "made":
            self.register_buffer("seen", out.sum())
        else:
            self.seen = out.sum() if self.seen is None else self.seen + 1
        return out


@pytest.mark.parametrize("fails", [False, True], ids=["", "and the loss fails"])
@pytest.mark.parametrize("kind", ["made", "none", "replaced"])
def test_a_new_buffer_would_be_lost_and_is_not_left_in_the_model(kind: str, fails: bool) -> None:
    model = Caching(kind)
    before = dict(model._buffers)
    replicas, x = stack(model), batches(1)[0]

    def fn(model: nn.Module, x: Tensor) -> Tensor:
        out = model(x).sum()
        return out * out.item() if fails else out

    words = "reads a value" if fails else r"buffers in place, got a new tensor in seen.*self\.seen\.copy_"
    for _ in range(2):
        with pytest.raises(TypeError, match=words):
            replicas.losses(fn, x)
    assert model._buffers.keys() == before.keys()
    assert all(model._buffers[name] is buffer for name, buffer in before.items())
    assert model(x).shape == (16,), "the model itself does as ever"


def test_loading_weights_into_the_model_does_nothing_to_the_replicas() -> None:
    model = mlp()
    replicas = hdet.StackedReplicas(model, Adam(model.parameters()), 2)
    before = rows_of(replicas)
    model.load_state_dict(mlp(seed=5).state_dict())
    replicas.losses(loss_fn, batches(1)[0])
    assert torch.equal(rows_of(replicas), before)
