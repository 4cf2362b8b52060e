"""Every task of the zoo builds, trains, and depends on its seed alone."""

import pytest
import torch

from benchmarks.regret.optimizers import hidden_matrices
from benchmarks.zoo.catalogue import TASKS


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("name", TASKS)
def test_a_task_takes_steps_and_follows_from_its_seed(name, built):
    task = TASKS[name]
    setting, again, other = (built(task, seed) for seed in (0, 0, 1))
    assert same(setting.model.state_dict().values(), again.model.state_dict().values())
    trained = [[p for p in one.model.parameters() if p.requires_grad] for one in (setting, other)]
    assert not same(*trained)
    assert same(setting.held_out[0], other.held_out[0])
    assert same(setting.test[0], other.test[0])
    assert 8 <= len(setting.held_out) <= 16

    optimizer = torch.optim.SGD(setting.model.parameters(), lr=1e-9)
    for _ in range(3):
        batch = setting.batches()
        assert same(batch, again.batches())
        assert not same(batch, other.batches())
        loss = setting.loss_fn(batch)
        assert loss.shape == ()
        assert torch.isfinite(loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert all(p.grad is not None for p in setting.model.parameters() if p.requires_grad)


@pytest.mark.parametrize("name", [name for name in TASKS if "muon" in TASKS[name].optimizers])
def test_muon_has_something_to_do(name, built):
    assert hidden_matrices(built(TASKS[name], 0).model)


@pytest.mark.parametrize("name", ["photographs-two-views", "letter-mlp", "moons-flow"])
def test_no_row_of_the_probe_is_trained_on(name, built):
    setting = built(TASKS[name], 0)
    rows = {tuple(row.flatten()[:20].tolist()) for row in setting.batches()[0]}
    assert not rows & {tuple(row.flatten()[:20].tolist()) for batch in setting.held_out for row in batch[0]}


def test_a_frozen_body_stays_as_it_is(built):
    setting = built(TASKS["clothes-frozen-body"], 0)
    before = [value.clone() for value in setting.model[0].state_dict().values()]
    setting.model.train()
    setting.loss_fn(setting.batches()).backward()
    assert same(before, setting.model[0].state_dict().values())
    assert [p.shape for p in setting.model.parameters() if p.requires_grad] == [(5, 64), (5,)]


def test_low_rank_layers_alone_are_trained(built):
    model = built(TASKS["lipophilicity-low-rank"], 0).model
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    assert trained
    assert all("down" in name or "up" in name or "head" in name for name in trained)
