"""Members that become copies of better ones, in one process."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict

import pytest
import torch

from benchmarks.autotune.arena import Arena
from benchmarks.autotune.plan import PB2, PBT, SEGMENTS, Run
from benchmarks.autotune.population import Population, populate
from benchmarks.autotune.space import RANGES
from benchmarks.autotune.training import Training


def state(member: Training) -> list[torch.Tensor]:
    moments = [state[name] for state in member.optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    return [*(part.detach().clone() for part in member.model.parameters()), *(one.clone() for one in moments)]


@pytest.mark.parametrize("arm", [PBT, PB2])
def test_who_is_exploited_has_weights_and_optimizer_state_of_the_better_one(
    arm: str, tiny: Callable[..., Run]
) -> None:
    arena = Arena.of(tiny(arm, members=4))
    population = Population(arena)
    for part in (1, 2):
        for member in population.members:
            member.advance(arena.segment)
        before = [state(member) for member in population.members]
        settings = [member.setting for member in population.members]
        population.exploit(part, [4.0, 1.0, 2.0, 3.0] if part == 1 else [1.0, 2.0, 3.0, 4.0])
        worst, best = (0, 1) if part == 1 else (3, 0)
        assert population.parents[worst][-1] == [part, best]
        for mine, theirs in zip(state(population.members[worst]), before[best], strict=True):
            assert torch.equal(mine, theirs)
        for number, member in enumerate(population.members):
            if number != worst:
                assert member.setting == settings[number], "the others go on as they were"
                assert all(map(torch.equal, state(member), before[number]))
        found = population.members[worst].setting
        assert all(RANGES[name].clip(value) == value for name, value in asdict(found).items())
        if arm == PBT:
            assert found != settings[best], "explored around the better one's"


@pytest.mark.parametrize("arm", [PBT, PB2])
def test_a_seed_decides_all_of_it_and_the_budget_is_spent(arm: str, tiny: Callable[..., Run]) -> None:
    first, again = Arena.of(tiny(arm)), Arena.of(tiny(arm))
    before = random.getstate()
    trials = populate(first)
    assert random.getstate() == before, "nobody else's draws are touched"
    assert populate(again) == trials
    assert [trial["segments"] for trial in trials] == [SEGMENTS] * 3
    assert first.ledger.samples == 3 * 20 * 32
    assert sum(len(trial["parents"]) for trial in trials) > 0
