"""Many runs at once are the runs of the library."""

from itertools import islice

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

import hdet
from benchmarks.paper.fleet import Course, Run, train

STEPS, REPLICAS, EVERY = 60, 4, 6


def build(seed):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1)).double()
    for parameter in model.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2
    return model


def batches(seed):
    generator = torch.Generator().manual_seed(100 + seed)
    while True:
        inputs = torch.randn(4 * REPLICAS, 5, generator=generator, dtype=torch.float64)
        yield inputs, torch.sin(inputs.sum(1, keepdim=True))


def loss(model, batch):
    inputs, targets = batch
    return (model(inputs) - targets).square().mean()


def groups(model):
    return {"first": list(model[0].parameters()), "last": list(model[2].parameters())}


def course(optimizer):
    held_out = tuple(islice(batches(9), 2))
    return Course("tiny", STEPS, build, loss, batches, batches, held_out, 1.0, optimizer, groups)


def by_the_library(run, optimizer):
    model = build(run.seed)
    members = [{"params": parameters} for parameters in groups(model).values()]
    stepped = Adam(members, lr=run.lr) if optimizer == "adam" else SGD(members, lr=run.lr, momentum=0.9)
    replicas = hdet.StackedReplicas(model, stepped, REPLICAS, gradients="all")
    auto = (
        {} if run.sigma is None else {"loss_scale": run.sigma, "decay": run.decay, "lr_of_lr": run.step_size}
    )
    scheduler = hdet.OneCycleAutoLR(
        replicas.optimizer,
        run.lr,
        STEPS,
        final_div_factor=run.final_div,
        ensemble_lr_spread_ratio=run.spread,
        model_sync_interval=run.sync_every,
        auto_lr_warmup_steps=STEPS // 3,
        enable_auto_lr=run.sigma is not None,
        seed=run.seed,
        **auto,
    )
    losses = []
    for batch in islice(batches(run.seed), STEPS):
        found = replicas.losses(loss, batch)
        found.sum().backward()
        replicas.optimizer.step()
        replicas.optimizer.zero_grad()
        scheduler.step(found)
        losses.append(found.detach().mean())
    replicas.write_()
    return model, torch.stack(losses)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_fleet_is_the_runs_of_the_library(optimizer):
    shared = {"replicas": REPLICAS, "sync_every": EVERY}
    runs = [
        Run(0.03, 0, **shared),
        Run(0.03, 1, spread=0.3, **shared),
        Run(0.01, 1, spread=0.5, sigma=0.002, **shared),
        Run(0.02, 0, spread=1 / 9, sigma=0.1, decay="literal", final_div=5.0, **shared),
    ]
    trained = train(course(optimizer), runs)
    for place, run in enumerate(runs):
        model, losses = by_the_library(run, optimizer)
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(trained.weights[name][place], parameter.detach(), rtol=1e-6, atol=1e-7)
        torch.testing.assert_close(trained.losses[place], losses.double(), rtol=1e-4, atol=1e-5)
