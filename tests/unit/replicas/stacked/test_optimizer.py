"""Who steps the replicas, by which gradients: own backward passes, copies, states, the old optimizer."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

import hdet
from tests.stacks import batches, loss_fn, mlp, normed, rows_of, stack, train

# ---------------------------------------------------------------------- a backward pass of one's own


@pytest.mark.parametrize("gradients", ["all", "none"])
@pytest.mark.parametrize(
    "way", ["own", "scaled", "closure", "clipped", "mixed", "mixed after", "captured too"]
)
def test_a_backward_pass_of_one_s_own_shares_as_backward_does(gradients: Any, way: str) -> None:
    ours, theirs = (stack(mlp(), 4, SGD, 0.1, gradients=gradients) for _ in range(2))
    optimizer = theirs.optimizer
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for first, second in batches(4).view(2, 2, 16, 3):
        for x in (first, second):
            ours.backward(ours.losses(loss_fn, x))
        if way == "clipped":
            ours.clip_grad_norm_(0.1)
        ours.optimizer.step()
        ours.optimizer.zero_grad()

        one, other = theirs.losses(loss_fn, first), theirs.losses(loss_fn, second)
        if way == "scaled":
            scaler.scale((one + other).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
        elif way == "closure":
            optimizer.step(lambda one=one, other=other: (one + other).sum().backward())
        else:
            theirs.backward(one) if way == "mixed" else one.sum().backward()
            if way == "captured too":
                theirs.capture(loss_fn)(second)
            elif way == "mixed after":
                theirs.backward(other)
            else:
                other.sum().backward()
            if way == "clipped":
                theirs.clip_grad_norm_(0.1)
            optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(rows_of(theirs), rows_of(ours), rtol=1e-5, atol=1e-7)
    apart = rows_of(theirs).std(0).max().item()
    assert (apart > 1e-4) == (gradients == "none")


def test_clipping_measures_what_is_stepped_by() -> None:
    replicas, x = stack(mlp(), 4), batches(1)[0]
    replicas.losses(loss_fn, x).sum().backward()
    norms = replicas.clip_grad_norm_(1e-3)
    assert torch.equal(norms, norms[:1].expand(4)), "of one gradient, which all share"


def test_a_step_that_is_skipped_after_backward_leaves_nothing_behind() -> None:
    replicas, (first, second) = stack(mlp(), 4), batches(2)
    replicas.backward(replicas.losses(loss_fn, first))
    replicas.optimizer.zero_grad()
    replicas.losses(loss_fn, second).sum().backward()
    replicas.optimizer.step()
    assert rows_of(replicas).std(0).max() == 0


def test_replicas_are_freed_when_nobody_holds_them() -> None:
    model = mlp()
    optimizer = SGD(model.parameters(), lr=0.1)
    replicas = hdet.StackedReplicas(model, optimizer, 2)
    train(replicas, batches(1)[0])
    gone = weakref.ref(replicas)
    del replicas
    gc.collect()
    assert gone() is None, "neither the old optimizer nor a hook keeps the rows"


# ---------------------------------------------------------------------- the optimizer that was stacked


def test_the_old_optimizer_refuses_to_step() -> None:
    model = mlp()
    optimizer = Adam(model.parameters())
    optimizer.step()
    replicas = hdet.StackedReplicas(model, optimizer, 2)
    with pytest.raises(RuntimeError, match=r"Adam\.step: .*were stacked.*step replicas\.optimizer"):
        optimizer.step()
    train(replicas, batches(1)[0])


def test_no_group_is_added_to_stacked_ones() -> None:
    replicas = stack(mlp())
    with pytest.raises(RuntimeError, match=r"add_param_group: the groups must be those .*stack again"):
        replicas.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(4, 1))]})
    assert len(replicas.optimizer.param_groups) == 1


@pytest.mark.parametrize("make", [Adam, lambda p, lr: SGD(p, lr=lr, momentum=0.9)])
def test_a_state_of_another_number_of_replicas_is_refused(make: Any) -> None:
    three, four = (stack(mlp(), size, make) for size in (3, 4))
    train(three, batches(1, rows=12)[0])
    train(four, batches(1)[0])
    kept = four.optimizer.state_dict()["state"][0]
    before = {key: value.clone() for key, value in kept.items() if isinstance(value, torch.Tensor)}
    with pytest.raises(
        ValueError,
        match=r"load_state_dict: .*of 4 replicas .*of shape \(4, 26\), got \(3, 26\); stack as many",
    ):
        four.optimizer.load_state_dict(three.optimizer.state_dict())
    assert all(
        torch.equal(four.optimizer.state_dict()["state"][0][key], value) for key, value in before.items()
    )
    plain = make(mlp().parameters(), lr=0.1)
    with pytest.raises(ValueError, match="parameter group"):  # torch's own words
        four.optimizer.load_state_dict(plain.state_dict())


# ---------------------------------------------------------------------- copies


@pytest.mark.parametrize("gradients", ["all", "none"])
@pytest.mark.parametrize("of_optimizer", [False, True])
def test_a_deep_copy_trains_on_by_itself(gradients: Any, of_optimizer: bool) -> None:
    first, *rest = batches(4)
    replicas = stack(normed(), 4, AdamW, 0.05, gradients=gradients)
    replicas.optimizer.param_groups[0]["lr"] = 0.03
    train(replicas, first)
    twin = copy.deepcopy(replicas.optimizer).replicas if of_optimizer else copy.deepcopy(replicas)
    assert twin.optimizer.replicas is twin
    before = replicas.state_dict()
    for x in rest:
        # By passes of its own: what shares its gradients is copied too.
        twin.optimizer.zero_grad()
        twin.losses(loss_fn, x).sum().backward()
        twin.optimizer.step()
    for name, rows in replicas.state_dict().items():
        assert torch.equal(rows, before[name]), f"{name} of the original stays"
    for x in rest:
        train(replicas, x)
    for name, rows in replicas.state_dict().items():
        torch.testing.assert_close(twin.state_dict()[name], rows, msg=name)
    model, start = replicas._model, [p.detach().clone() for p in replicas._model.parameters()]
    twin.write_()
    assert all(torch.equal(a, b) for a, b in zip(start, model.parameters(), strict=True))
