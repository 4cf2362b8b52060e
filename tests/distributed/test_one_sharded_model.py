"""One model on all ranks: AutoLR trains it as one process would."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hdet
from hdet.replicas.launch import LocalProcesses
from tests.distributed.sharded import Run
from tests.distributed.test_sharded import alike, same

STEPS = 160
SPIKE = {"optimizer": "sgd", "spike": 94}


def auto_lr(rank: int, layout: str, options: dict[str, Any]) -> dict[str, Any]:
    run = Run(rank, layout, options.pop("optimizer", "adamw"), **options.pop("layout", {}))
    spike = options.pop("spike", None)
    if spike is not None:
        run.scale[spike] = -40.0
    auto = hdet.AutoLR(run.optimizer, probe=run.probe(), total_steps=STEPS, **options)
    run.run(auto, STEPS)
    before = run.weights()
    handed = auto.finish_()
    return {"records": run.records, "weights": before, "handed": handed, "after": run.weights()}


@pytest.mark.parametrize(
    ("layout", "options"), [("fsdp2", SPIKE), ("fsdp1", {}), ("fsdp1 original", SPIKE), ("zero", {})]
)
def test_as_one_process(ranks: LocalProcesses, layout: str, options: dict[str, Any]) -> None:
    """A step the wrong way in mid-window leads back, the optimizer's state included."""
    expected = ranks.run(auto_lr, "solo", options, size=1)[0]
    found = alike(ranks.run(auto_lr, layout, options, size=2))
    same(expected, found)
    actions = [record.horizon[0].action for record in found["records"]]
    assert ("back" in actions) == ("spike" in options)
    for name, weight in expected["after"].items():
        torch.testing.assert_close(found["after"][name], weight, rtol=1e-6, atol=1e-6)


def test_matrices_on_several_ranks(ranks: LocalProcesses) -> None:
    """What only some ranks of a replica share, and what all of them hold, counts once."""
    options = {"layout": {"widths": (8, 4)}}
    expected = ranks.run(auto_lr, "solo", options, size=1)[0]
    same(expected, alike(ranks.run(auto_lr, "fsdp2 x tp", options, size=4)))


def best_mean(rank: int, layout: str) -> dict[str, Any]:
    run = Run(rank, layout)
    best = hdet.BestMean(run.model, run.probe())
    while run.number < 60:
        run.train_once()
        best.step()
    handed = best.finish_()
    return {"records": [], "weights": run.weights(), "handed": handed}


def test_the_best_mean(ranks: LocalProcesses) -> None:
    expected = ranks.run(best_mean, "solo", size=1)[0]
    found = alike(ranks.run(best_mean, "fsdp1 original", size=2))
    assert (found["handed"].kind, found["handed"].step) == (expected["handed"].kind, expected["handed"].step)
    assert found["handed"].estimate == pytest.approx(expected["handed"].estimate, rel=1e-6)
    for name, weight in expected["weights"].items():
        torch.testing.assert_close(found["weights"][name], weight, rtol=1e-6, atol=1e-6)
