"""What cannot be a slice of one pass raises before or when it happens, with the reason and the fix."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, RMSprop
from torch.utils.checkpoint import checkpoint

import hdet
from tests.stacks import batches, loss_fn, mlp, stack
from tests.unit.training import fixed_windows


def wrapped() -> nn.Module:
    """As DistributedDataParallel, which would need a process group, but for what it does."""
    model = nn.Sequential(nn.Linear(3, 1))
    model.__class__ = type("DistributedDataParallel", (nn.Sequential,), {})
    return model


@pytest.mark.parametrize(
    ("make", "reason", "fix"),
    [
        (lambda: nn.LSTM(3, 2), "is a LSTM, for which torch.vmap has no rule", "one process per replica"),
        (lambda: nn.Sequential(nn.GRU(3, 2)), "0 is a GRU", "nn.Linear"),
        (lambda: nn.SyncBatchNorm(3), "statistics over processes", "use BatchNorm"),
        (wrapped, "must be the bare module", "pass what it wraps"),
        (lambda: nn.DataParallel(nn.Linear(3, 1)), "must be the bare module", "pass what it wraps"),
        (lambda: nn.Embedding(3, 2, sparse=True), "sparse gradients", "use dense ones"),
        (lambda: nn.Embedding(3, 2, max_norm=1.0), "max_norm", "use dense ones"),
        (lambda: nn.Linear(3, 2, dtype=torch.complex64), "weight is torch.complex64", "view_as_real"),
    ],
)
def test_models_that_cannot_be_slices(make: Callable[[], nn.Module], reason: str, fix: str) -> None:
    with pytest.raises(TypeError, match=f"StackedReplicas: .*{reason}.*{fix}"):
        stack(make())


def test_a_lazy_module_has_no_shape_yet() -> None:
    model = nn.Sequential(nn.LazyLinear(2))
    with pytest.raises(ValueError, match=r"0\.weight of a lazy module has none yet; call the model once"):
        stack(model)
    model(torch.zeros(1, 3))
    stack(model)


HOOKS: dict[str, Callable[[nn.Module], Any]] = {
    "module": lambda m: m[0].register_full_backward_hook(lambda *_: None),
    "module before": lambda m: m[0].register_full_backward_pre_hook(lambda *_: None),
    "parameter": lambda m: m[0].weight.register_hook(lambda grad: grad),
    "parameter after": lambda m: m[0].weight.register_post_accumulate_grad_hook(lambda _: None),
}


@pytest.mark.parametrize("kind", list(HOOKS))
def test_hooks_on_gradients_that_nobody_would_call(kind: str) -> None:
    words = rf"must be forward hooks, and 0{' .Linear.' if 'module' in kind else '.weight'} has .*; remove it"
    model = mlp()
    hook = HOOKS[kind](model)
    with pytest.raises(TypeError, match=f"StackedReplicas: .*{words}"):
        stack(model)
    hook.remove()
    replicas, x = stack(model), batches(1)[0]
    hook = HOOKS[kind](model)
    with pytest.raises(TypeError, match=f"StackedReplicas.losses: .*{words}"):
        replicas.losses(loss_fn, x)
    hook.remove()
    seen: list[int] = []
    model[0].register_forward_hook(lambda *_: seen.append(1))
    replicas.losses(loss_fn, x)
    assert seen == [1], "forward hooks are called"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: RMSprop(p), "must be torch's SGD, Adam or AdamW, got RMSprop.*one process per replica"),
        (lambda p: Adam(p, amsgrad=True), "must not be amsgrad.*leave it out"),
        (lambda p: SGD(p, lr=torch.tensor(0.1)), "lr must be a number, got a tensor.*give a float"),
        (
            lambda p: Adam(p, betas=(torch.tensor(0.9), torch.tensor(0.99)), foreach=False),
            "betas must be a number, got a tensor",
        ),
        (lambda p: type("Mine", (SGD,), {})(p), "got Mine"),
    ],
)
def test_optimizers_whose_rule_is_not_known_for_rows(make: Any, reason: str) -> None:
    model = mlp()
    with pytest.raises(TypeError, match=f"StackedReplicas: .*{reason}"):
        hdet.StackedReplicas(model, make(model.parameters()), 2)


def test_an_optimizer_of_another_model() -> None:
    with pytest.raises(ValueError, match="4 of 4 that are not in it; build the optimizer from the model"):
        hdet.StackedReplicas(mlp(), SGD(mlp().parameters()), 2)
    model = mlp()
    optimizer = SGD(model.parameters())
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="must have parameters to train, got none"):
        hdet.StackedReplicas(model, optimizer, 2)


def test_an_optimizer_that_stepped_some_parameters_more_often() -> None:
    model = mlp()
    optimizer = Adam(model.parameters())
    model[0](batches(1)[0]).sum().backward()
    optimizer.step()
    with pytest.raises(ValueError, match=r"stepped some of them more often.*fresh optimizer"):
        hdet.StackedReplicas(model, optimizer, 2)


@pytest.mark.parametrize("size", [1, 0, True, 2.0, "4"])
def test_a_size_that_is_no_number_of_replicas(size: Any) -> None:
    with pytest.raises(ValueError, match=r"size \(N\) must be an integer of at least 2, got"):
        stack(mlp(), size)


@pytest.mark.parametrize("gradients", ["some", 3, 0, True, None, [2]])
def test_gradients_that_are_no_way_to_share(gradients: Any) -> None:
    match = re.escape(f"a number of arms that divides the 4 replicas, got {gradients!r}")
    with pytest.raises(ValueError, match=match):
        stack(mlp(), gradients=gradients)


def test_arms_that_an_ensemble_does_not_know_of() -> None:
    replicas = stack(mlp(), gradients=2)
    with pytest.raises(ValueError, match="must be what the replicas were stacked with, 2, got 'all'"):
        hdet.Ensemble(replicas.optimizer)
    with pytest.raises(ValueError, match="must be what the replicas were stacked with, 2, got 4"):
        hdet.Ensemble(replicas.optimizer, gradients=4)
    model = mlp()
    with pytest.raises(ValueError, match=r"must be 'all', 'none', 'switch' or an hdet\.Arms, got 2"):
        hdet.Ensemble(SGD(model.parameters()), gradients=2)


def penalty(model: nn.Module, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return gradient.square().mean()


@pytest.mark.parametrize(
    ("fn", "reason"),
    [
        (lambda m, x: m(x).sum() * m(x).sum().item(), r"reads a value of a tensor \(.item"),
        (lambda m, x: m(x).sum() * float(m(x).max()), r"reads a value of a tensor \(.item"),
        (lambda m, x: m(x).sum() * m(x).detach().numpy().max(), r"reads the values .*numpy"),
        (lambda m, x: m(x).sum() if m(x).sum() > 0 else -m(x).sum(), "decides by a value of a tensor"),
        (lambda m, x: m(x)[m(x) > 0].sum(), "shape depends on values"),
        (lambda m, x: penalty(m, x), r"a gradient penalty; torch\.func\.grad can"),
        (lambda m, x: checkpoint(m, x, use_reentrant=True).sum(), "as activation checkpointing is"),
    ],
)
def test_losses_that_cannot_run_as_slices(fn: Any, reason: str) -> None:
    with pytest.raises(
        TypeError, match=f"losses: Sequential and loss_fn .*{reason}.*one process per replica"
    ):
        stack(mlp()).losses(fn, batches(1)[0])


def test_a_gradient_penalty_by_torch_func_is_each_replica_s_own() -> None:
    def functional(model: nn.Module, x: Tensor) -> Tensor:
        return torch.func.grad(lambda x: model(x).sum())(x).square().mean()

    model, x = mlp(), batches(1)[0]
    losses = stack(model).losses(functional, x)
    for r in range(4):
        torch.testing.assert_close(losses[r], penalty(model, x[4 * r : 4 * r + 4]))


def test_losses_must_be_one_for_each_replica() -> None:
    replicas, x = stack(mlp()), batches(1)[0]
    with pytest.raises(ValueError, match=r"one element, got shape \(4, 1\); reduce it"):
        replicas.losses(lambda m, x: m(x), x)
    with pytest.raises(ValueError, match=r"one element, got 1\.0"):
        replicas.losses(lambda m, x: 1.0, x)  # type: ignore[arg-type,return-value]
    losses = replicas.losses(loss_fn, x)
    with pytest.raises(ValueError, match=r"backward: losses must be the 4 .*not reduced, got .* shape \(\)"):
        replicas.backward(losses.mean())
    ensemble = hdet.Ensemble(replicas.optimizer)
    for wrong in (losses.mean(), 0.5, losses[:2]):
        with pytest.raises(ValueError, match="losses of the 4 replicas in this process"):
            ensemble.step(wrong)


@pytest.mark.parametrize("replica", [9, 4, -1, True, 1.0])
def test_an_index_of_no_replica(replica: Any) -> None:
    replicas = stack(mlp())
    for call in ("write_", "slices"):
        with pytest.raises(
            ValueError, match=rf"{call}: replica must be an integer from 0 to 3, got {replica}"
        ):
            getattr(replicas, call)(replica)


def test_what_a_function_writes_for_the_forward_pass_is_not_explored() -> None:
    replicas = stack(mlp(), gradients="none")
    margin = hdet.Hyperparameter("margin", lambda: 1.0, print, bounds=(0, 2))
    with pytest.raises(TypeError, match=r"Ensemble: .*got margin, .*; name the attribute.*one process per"):
        hdet.Ensemble(replicas.optimizer, [margin], gradients="none")


def test_facades_that_need_processes_or_one_model() -> None:
    model = mlp()
    replicas = stack(model)
    probe = hdet.Probe(lambda x: loss_fn(model, x), list(batches(4)), model=model)
    auto = fixed_windows(1, replicas.optimizer, total_steps=100, probe=probe)
    replicas.backward(replicas.losses(loss_fn, next(iter(batches(1)))))
    replicas.optimizer.step()
    with pytest.raises(ValueError, match=r"the real losses of 4 replicas.*use StackedReplicas\.losses"):
        auto.step()
    with pytest.raises(ValueError, match=r"process_group was given.*in one process; leave it out"):
        hdet.Ensemble(replicas.optimizer, process_group=object())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="stacked with, 'all', got 'none'; give both the same"):
        hdet.Ensemble(replicas.optimizer, gradients="none")
    with pytest.raises(ValueError, match="stacked with, 'none', got 'all'"):
        hdet.OneCycleAutoLR(stack(model, gradients="none").optimizer, max_lr=0.1, total_steps=10)
