"""Size and rank are read at every sync: a group with other members than before carries the replicas on."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

import hdet
from hdet.engine.design import levels
from hdet.replicas.launch import LocalProcesses
from tests.distributed.classifier import all_equal, listening
from tests.states import inside

T, SPREAD = 4, 0.2


def shrinks(rank: int, explored: int) -> dict[str, Any] | None:
    """Four ranks meet twice; then the first one leaves, within a round, and three go on."""
    left = dist.new_group([1, 2, 3])
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    explore = [hdet.LearningRate(spread=SPREAD), hdet.WeightDecay(1e-3), hdet.Momentum()][:explored]
    generator = torch.Generator().manual_seed(rank)
    found: dict[str, Any] = {"records": {}, "before": {}, "after": {}, "joint": {}}
    with listening() as heard:
        ensemble = hdet.Ensemble(
            optimizer,
            explore,
            controller=hdet.RegressionController(),
            design="orthogonal",
            gradients="none",
            sync_every=T,
            model=model,
        )
        for step in range(1, 5 * T + 1):
            if step == 2 * T + 2:
                if rank == 0:
                    return None
                ensemble.replicas._meets = lambda: left  # what carries the group has other members now
            x = torch.randn(8, 4, generator=generator)
            loss = (model(x) - x[:, :1]).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            before = torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])
            if (record := ensemble.step(loss)) is not None:
                found["records"][step], found["before"][step] = record, before
                found["after"][step] = torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])
                found["joint"][step] = inside(ensemble.state_dict())["policies"][0]["joint"]
    return {**found, "heard": heard}


def test_three_of_four_go_on(ranks: LocalProcesses) -> None:
    _, *results = ranks.run(shrinks, 2)
    first = results[0]
    for step in (3 * T, 4 * T, 5 * T):
        assert all_equal([r["after"][step] for r in results])
        mean = torch.stack([r["before"][step] for r in results]).mean(0)
        torch.testing.assert_close(first["after"][step], mean, rtol=0, atol=1e-6)
    # Of the round in which it happened nobody can say who had which values; what was known before is kept.
    broken = first["records"][3 * T]
    assert broken.losses == ()
    assert "nothing is decided" in broken.events[0]
    assert first["joint"][3 * T] == first["joint"][2 * T] != first["joint"][4 * T]
    # From the next one on values are dealt to three. Rank 1 of before is rank 0, and speaks.
    dealt = first["records"][4 * T].hyperparameters[0]
    assert sorted(dealt.multipliers) == [1 + dealt.spread * z for z in levels(3)]
    assert any(
        "values are dealt by permutations while 3 replicas are left: an orthogonal design needs" in line
        for line in first["heard"]
    )


def test_too_few_for_what_is_explored(ranks: LocalProcesses) -> None:
    _, *results = ranks.run(shrinks, 3)
    first = results[0]
    assert any("3 replicas with values of their own tell at most 2" in line for line in first["heard"])
    assert "3 replicas do not tell 3 hyperparameters apart: nothing moves" in first["records"][4 * T].events
    assert all_equal([r["after"][5 * T] for r in results])
