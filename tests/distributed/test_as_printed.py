"""``OneCycleAutoLR.paper`` on real ranks against Algorithm 1 as printed, line by line."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import hdet
from hdet.loop.levels import permutation
from hdet.replicas.launch import LocalProcesses
from tests.algorithm_1 import algorithm_1
from tests.distributed import tasks

STEPS, EVERY, WARMUP, FIRST, SEED = 60, 6, 20, 24, 5
MAX_LR = [0.02, 0.05, 0.03, 0.1]


def train(rank: int, kind: str, options: dict[str, Any]) -> dict[str, Any]:
    model, optimizer = tasks.build(kind)
    scheduler = hdet.OneCycleAutoLR.paper(
        optimizer,
        max_lr=MAX_LR,
        total_steps=STEPS,
        model=model,
        model_sync_interval=EVERY,
        auto_lr_warmup_steps=WARMUP,
        cycle_momentum=False,
        seed=SEED,
        **options,
    )
    rates, records = [], []
    for step in range(STEPS):
        rates.append(scheduler.replica_lrs)
        records.append(scheduler.step(tasks.train_step(model, optimizer, rank, step)))
    return {"weights": tasks.flat(model), "rates": rates, "votes": [r.weights for r in records if r]}


def sgd(memory: list[torch.Tensor], g: torch.Tensor, t: int) -> torch.Tensor:
    memory[0] = 0.9 * memory[0] + g
    return memory[0]


def adam(memory: list[torch.Tensor], g: torch.Tensor, t: int) -> torch.Tensor:
    memory[0] = 0.9 * memory[0] + 0.1 * g
    memory[1] = 0.999 * memory[1] + 0.001 * g * g
    return memory[0] / (1 - 0.9**t) / ((memory[1] / (1 - 0.999**t)).sqrt() + 1e-8)


@pytest.mark.parametrize(
    ("size", "kind", "options"),
    [
        (2, "sgd", {"final_div_factor": 5.0}),
        (4, "sgd", {"final_div_factor": 5.0}),
        (4, "adam", {"final_div_factor": 5.0}),
        (2, "sgd", {"final_div_factor": 40.0}),  # below it is div_factor: the rate grows
        (4, "sgd", {"final_div_factor": 5.0, "enable_auto_lr": False}),
    ],
)
def test_paper_is_algorithm_1_as_printed(
    ranks: LocalProcesses, size: int, kind: str, options: dict[str, Any]
) -> None:
    twin = algorithm_1(
        tasks.start(),
        tasks.loss,
        lambda t, group: permutation(size, seed=SEED, round=t // EVERY, name=f"lr/{group}"),
        sgd if kind == "sgd" else adam,
        N=size,
        S=STEPS,
        eta_max=MAX_LR,
        f_div=25.0,
        f_final=options["final_div_factor"],
        T=EVERY,
        S_warm=WARMUP,
        auto_lr=options.get("enable_auto_lr", True),
    )
    results = ranks.run(train, kind, options, size=size)
    expected = torch.cat([w.reshape(-1) for w in twin.weights])
    for rank, result in enumerate(results):
        torch.testing.assert_close(result["weights"], expected, rtol=1e-12, atol=1e-12)
        own = [[row[rank] for row in groups] for groups in twin.rates]
        assert_equal(result["rates"], own)
        assert_equal([votes for votes in result["votes"] if votes], twin.votes)
    if options.get("enable_auto_lr", True):
        assert len(twin.votes) == (STEPS - FIRST) // EVERY + 1
        assert min(twin.losses[0]) > 2 * max(twin.losses[1]), "of four rounds, divided by T"
        fastest = [groups[0].index(max(groups[0])) for groups in twin.rates]
        assert fastest[:FIRST] == [size - 1] * FIRST, "nobody swaps before S_w"
        assert set(fastest[FIRST:]) != {size - 1}


def assert_equal(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(
        torch.tensor(ours, dtype=torch.float64),
        torch.tensor(theirs, dtype=torch.float64),
        rtol=1e-11,
        atol=1e-14,
    )
