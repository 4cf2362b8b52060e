"""Replicas in one process: each row is a replica of its own, trained as torch would train it alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

import hdet
from hdet.tuning.regression import RegressionController
from tests.stacks import alone, batches, loss_fn, mlp, normed, rows_of, stack, train

# ---------------------------------------------------------------------- a row is a replica


SETTINGS: list[tuple[Callable[..., Optimizer], dict[str, Any]]] = [
    (SGD, {"momentum": 0.9}),
    (SGD, {"momentum": 0.9, "weight_decay": 0.1, "dampening": 0.2}),
    (SGD, {"momentum": 0.9, "nesterov": True, "maximize": True, "lr": 1e-3}),
    (Adam, {"weight_decay": 0.1, "betas": (0.8, 0.9), "eps": 1e-3}),
    (AdamW, {"weight_decay": 0.3, "maximize": True}),
    (AdamW, {"weight_decay": 0.3}),
]


@pytest.mark.parametrize(("make", "settings"), SETTINGS)
def test_on_gradients_of_its_own_a_row_is_torch_s_own_training(
    make: Callable[..., Optimizer], settings: dict[str, Any]
) -> None:
    options = {"lr": 0.05, **settings}
    model = mlp()
    replicas = hdet.StackedReplicas(model, make(model.parameters(), **options), 3, gradients="none")
    data = batches(5, rows=6)
    for x in data:
        train(replicas, x)
    for r, row in enumerate(rows_of(replicas)):
        twin = mlp()
        parts = [x[2 * r : 2 * r + 2] for x in data]
        torch.testing.assert_close(
            row, alone(twin, make(twin.parameters(), **options), parts), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize(("make", "settings"), SETTINGS)
def test_an_optimizer_that_has_stepped_goes_on(
    make: Callable[..., Optimizer], settings: dict[str, Any]
) -> None:
    def started() -> tuple[nn.Module, Optimizer]:
        model = mlp()
        # In another order than the model's.
        last = {"params": [*model[3].parameters()][::-1], "lr": 0.02}
        optimizer = make([last, {"params": list(model[0].parameters())}], **{"lr": 0.05, **settings})
        alone(model, optimizer, data[:3])
        return model, optimizer

    data = list(batches(6))
    model, optimizer = started()
    replicas = hdet.StackedReplicas(model, optimizer, 2)
    before = [p.detach().clone() for p in model.parameters()]
    for x in data[3:]:  # both parts are the same batch, and so is the mean of their gradients
        train(replicas, torch.cat([x, x]))
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    expected = alone(*started(), data[3:])
    for row in rows_of(replicas):
        torch.testing.assert_close(row, expected, rtol=1e-5, atol=1e-6)


def test_shared_gradients_are_the_mean_of_the_replicas() -> None:
    replicas, x = stack(mlp(), 4), batches(1)[0]
    train(replicas, x)
    twin = mlp()  # the mean over equal parts is the whole batch's
    expected = alone(twin, SGD(twin.parameters(), lr=0.1), [x])
    for row in rows_of(replicas):
        torch.testing.assert_close(row, expected, rtol=1e-5, atol=1e-6)


def test_clipping_is_torch_s_for_each_replica() -> None:
    model = mlp()
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[3].parameters())}]
    replicas = hdet.StackedReplicas(model, SGD(groups, lr=1.0), 3, gradients="none")
    assert torch.equal(replicas.clip_grad_norm_(1.0), torch.zeros(3)), "nothing to clip yet"
    # The first replica's gradient is short, and stays as it is.
    x = batches(1, rows=6)[0] * torch.tensor([0.01, 0.01, 1.0, 1.0, 5.0, 5.0])[:, None]
    replicas.backward(replicas.losses(loss_fn, x))
    norms = replicas.clip_grad_norm_(0.5)
    assert norms[0] < 0.5 < norms[1] < norms[2]
    before = rows_of(replicas)
    replicas.optimizer.step()
    for r in range(3):
        twin = mlp()
        loss_fn(twin, x[2 * r : 2 * r + 2]).backward()
        norm = nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
        torch.testing.assert_close(norms[r], norm, rtol=1e-5, atol=1e-6)
        clipped = torch.cat([p.grad.flatten() for p in twin.parameters() if p.grad is not None])
        torch.testing.assert_close(before[r] - rows_of(replicas)[r], clipped, rtol=1e-4, atol=1e-6)


class Assorted(nn.Module):
    """Tied, frozen, of two types, without dimensions, and one that no loss reaches."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(4)
        self.bf16 = nn.Parameter(torch.randn(2, generator=generator).to(torch.bfloat16))
        self.first = nn.Linear(3, 3, bias=False)
        self.frozen = nn.Linear(3, 3)
        self.frozen.requires_grad_(False)
        self.f64 = nn.Parameter(torch.randn(3, generator=generator, dtype=torch.float64))
        self.tied = nn.Linear(3, 3, bias=False)
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.idle = nn.Parameter(torch.ones(2))
        with torch.no_grad():
            self.first.weight.copy_(torch.randn(3, 3, generator=generator))
            self.frozen.weight.copy_(torch.randn(3, 3, generator=generator))
            self.frozen.bias.zero_()
        self.tied.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.frozen(torch.tanh(self.first(x))))
        return (self.scale * self.tied(hidden) * self.f64).sum(1) + self.bf16.float().sum()


def assorted_loss(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x[:, 0]).square().mean().float()


def test_tied_frozen_and_mixed_parameters() -> None:
    model = Assorted()
    replicas = hdet.StackedReplicas(model, SGD(model.parameters(), lr=0.1, momentum=0.9), 2, gradients="none")
    assert len(replicas.optimizer.param_groups[0]["params"]) == 3, "one matrix for each type"
    data = batches(4)
    for x in data:
        replicas.optimizer.zero_grad()
        replicas.backward(replicas.losses(assorted_loss, x))
        replicas.optimizer.step()
    for r in range(2):
        twin = Assorted()
        optimizer = SGD(twin.parameters(), lr=0.1, momentum=0.9)
        for x in data:
            optimizer.zero_grad()
            assorted_loss(twin, x[8 * r : 8 * r + 8]).backward()
            optimizer.step()
        replicas.write_(r)
        assert model.tied.weight is model.first.weight
        for (name, ours), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
            coarse = {"rtol": 2e-2, "atol": 2e-2} if name == "bf16" else {"rtol": 1e-5, "atol": 1e-6}
            torch.testing.assert_close(ours, theirs, **coarse, msg=lambda m, name=name: f"{name}: {m}")
    names = [name for name, p in model.named_parameters() if p.requires_grad]
    assert [s.shape for s in replicas.slices(0)] == [dict(model.named_parameters())[n].shape for n in names]


def test_a_group_without_trained_parameters_is_kept() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    groups = [{"params": list(model[0].parameters())}, {"params": list(model[3].parameters())}]
    replicas = hdet.StackedReplicas(model, SGD(groups, lr=0.1), 2)
    scheduler = hdet.OneCycleAutoLR(
        replicas.optimizer,
        max_lr=[0.1, 0.2],
        total_steps=4,
        cycle_momentum=False,
        ensemble_lr_spread_ratio=0.2,
        model_sync_interval=2,
    )
    records = [scheduler.step(train(replicas, x)) for x in batches(4)]
    assert [r.distance_measured[0] > 0 for r in records if r] == [True, True]


def test_in_bfloat16_replicas_have_values_finer_than_bfloat16() -> None:
    """Learning rates 0.3 % apart, which are one number to bfloat16, are not rounded away."""
    weight = nn.Module()
    weight.w = nn.Parameter(torch.full((2048,), 1.0, dtype=torch.bfloat16))
    optimizer = SGD(weight.parameters(), lr=1.0)
    replicas = hdet.StackedReplicas(weight, optimizer, 2)
    (group,) = replicas.optimizer.param_groups
    group["lr"] = torch.tensor([1.0, 1.003], dtype=torch.float64)
    (matrix,) = group["params"]
    with torch.no_grad():
        matrix.zero_()
        matrix.grad = torch.linspace(1, 2, 2048).to(torch.bfloat16).repeat(2, 1)
    replicas.optimizer.step()
    rows = -matrix.detach().float()
    exact = matrix.grad.float() * torch.tensor([[1.0], [1.003]])
    assert not torch.equal(*exact.to(torch.bfloat16))
    assert torch.equal(rows, exact.to(torch.bfloat16).float())


# ---------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("gradients", ["all", "none"])
def test_a_resumed_run_goes_on_bit_for_bit(gradients: Any, tmp_path: Any) -> None:
    data = batches(12)

    def build() -> tuple[hdet.StackedReplicas, hdet.Ensemble]:
        replicas = stack(normed(), 4, AdamW, 0.05, gradients=gradients)
        explore = [hdet.LearningRate(spread=0.3), hdet.WeightDecay()]
        ensemble = hdet.Ensemble(
            replicas.optimizer,
            explore,
            gradients=gradients,
            sync_every=4,
            controller=RegressionController(),
            schedule=torch.optim.lr_scheduler.StepLR(replicas.optimizer, 1, 0.9),
        )
        return replicas, ensemble

    def go_on(replicas: Any, ensemble: Any, data: Tensor) -> list[Any]:
        return [r for x in data if (r := ensemble.step(train(replicas, x)))]

    unbroken, ensemble = build()
    go_on(unbroken, ensemble, data[:6])
    saved = {
        "replicas": unbroken.state_dict(),
        "optimizer": unbroken.optimizer.state_dict(),
        "ensemble": ensemble.state_dict(),
    }
    torch.save(saved, tmp_path / "state.pt")
    records = go_on(unbroken, ensemble, data[6:])

    resumed, second = build()
    saved = torch.load(tmp_path / "state.pt", weights_only=True)
    resumed.load_state_dict(saved["replicas"])
    resumed.optimizer.load_state_dict(saved["optimizer"])
    second.load_state_dict(saved["ensemble"])
    again = go_on(resumed, second, data[6:])

    assert torch.equal(rows_of(resumed), rows_of(unbroken))
    for a, b in zip(resumed.state_dict().values(), unbroken.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert [r.losses for r in again] == [r.losses for r in records]
    assert [[h.base_after for h in r.hyperparameters] for r in again] == [
        [h.base_after for h in r.hyperparameters] for r in records
    ]


def test_a_state_of_other_replicas_is_refused() -> None:
    with pytest.raises(ValueError, match=r"load_state_dict: .* of 4 replicas .*differs in 0\.weight"):
        stack(mlp(), 4).load_state_dict(stack(mlp(), 3).state_dict())
    state = stack(mlp(), 4).state_dict()
    with pytest.raises(ValueError, match="differs in more"):
        stack(mlp(), 4).load_state_dict({**state, "more": torch.zeros(4)})


def test_between_steps_the_groups_hold_plain_numbers() -> None:
    replicas = stack(mlp(), 4, AdamW, 0.05, gradients="none")
    explore = [hdet.LearningRate(spread=0.3), hdet.WeightDecay(), hdet.Betas(2)]
    ensemble = hdet.Ensemble(replicas.optimizer, explore, gradients="none", sync_every=2)
    seen: list[Any] = []
    step = replicas.optimizer._rule
    replicas.optimizer._rule = lambda *a: (seen.append(dict(a[3])), step(*a))[1]
    for x in batches(2):
        ensemble.step(train(replicas, x))
    (group,) = replicas.optimizer.param_groups
    assert [type(v) for v in (group["lr"], group["weight_decay"], *group["betas"])] == [float] * 4
    held = (seen[0]["lr"], seen[0]["weight_decay"], seen[0]["betas"][1])
    assert all(v.shape == (4,) and len(set(v.tolist())) > 1 for v in held)


# ---------------------------------------------------------------------- many, and lost ones


@pytest.mark.parametrize("what", ["weights", "buffers", "state", "explosion"])
def test_poison_in_one_row_stays_out_of_the_mean(what: str) -> None:
    """After the pass, so that no loss tells of it."""
    replicas = stack(normed(), 4, AdamW, 0.02, gradients="none")
    ensemble = hdet.Ensemble(replicas.optimizer, gradients="none", sync_every=3)
    records = []
    for step, x in enumerate(batches(6)):
        losses = train(replicas, x)
        if step == 2:
            with torch.no_grad():
                if what in ("weights", "explosion"):
                    replicas.optimizer.matrices[0][1].fill_(math.nan if what == "weights" else 1e12)
                elif what == "buffers":
                    replicas._buffers["1.running_var"][1].fill_(math.inf)
                else:
                    replicas.optimizer.state[replicas.optimizer.matrices[0]]["exp_avg_sq"][1].fill_(math.inf)
            sane = rows_of(replicas)[[0, 2, 3]].mean(0)
        records.append(ensemble.step(losses))
        if step == 2:
            torch.testing.assert_close(rows_of(replicas), sane.expand(4, -1), rtol=1e-5, atol=1e-6)
    assert any("replica 1 left out of the mean: " in event for event in records[2].events)
    held = [
        *replicas.state_dict().values(),
        *replicas.optimizer.state[replicas.optimizer.matrices[0]].values(),
    ]
    assert all(torch.isfinite(torch.as_tensor(value)).all() for value in held)
