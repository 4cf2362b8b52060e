"""The twins of Ray's PBT and PB2, and what came out when they were held against Ray's."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from statistics import fmean

import pytest
import torch

from benchmarks.autotune import held_against_ray, twins
from benchmarks.autotune.gaussian import Process, minimum
from benchmarks.autotune.held_against_ray import SPACE, TWINS, Population
from benchmarks.autotune.space import Range
from benchmarks.autotune.twins import PB2, PBT, Move, quarters, share_of, value_at

KEPT = json.loads(Path(held_against_ray.__file__).with_name("twins-ray.json").read_text(encoding="utf-8"))


def moves(kind: str, members: int, seed: int, parts: int = 6) -> list[list[Move]]:
    population, twin = Population(members, seed), TWINS[kind](SPACE, seed)
    made = []
    for part in range(1, parts):
        made.append(twin.after(part, population.advance(part), population.settings))
        population.move(made[-1])
    return made


@pytest.mark.parametrize(
    ("members", "count"), [(1, 0), (2, 1), (3, 1), (4, 1), (5, 2), (7, 2), (8, 2), (9, 3)]
)
def test_a_quarter_rounded_up_is_worst_and_as_many_are_best(members: int, count: int) -> None:
    worst, best = quarters([float(number) for number in range(members)])
    assert worst == [*range(members)][::-1][:count]
    assert best == [*range(members)][::-1][members - count :]


def test_of_equals_the_last_are_copied() -> None:
    assert quarters([1.0] * 8) == ([0, 1], [6, 7])


@pytest.mark.parametrize("kind", TWINS)
def test_a_seed_decides_all_of_it(kind: str) -> None:
    before = random.getstate()
    assert moves(kind, 4, 1) == moves(kind, 4, 1) != moves(kind, 4, 2)
    assert random.getstate() == before, "nobody else's draws are touched"


@pytest.mark.parametrize("kind", TWINS)
def test_the_worst_become_copies_of_the_best_within_the_bounds(kind: str) -> None:
    population, twin = Population(8, 0), TWINS[kind](SPACE, 0)
    for part in range(1, 5):
        losses = population.advance(part)
        worst, best = quarters(losses)
        made = twin.after(part, losses, population.settings)
        assert [number for number, *_ in made] == worst
        for _, parent, found in made:
            assert parent in best
            assert found.keys() == SPACE.keys()
            assert all(known.low <= found[name] <= known.high for name, known in SPACE.items())
        population.move(made)


def test_pbt_steps_from_the_parents_value_and_draws_a_quarter_anew() -> None:
    known = {"lr": Range(1e-5, 1e-1, log=True)}
    twin, setting = PBT(known, 0), {"lr": 1e-3}
    found = [values["lr"] for _ in range(4000) for _, _, values in twin.after(1, [2.0, 1.0], [setting] * 2)]
    steps = [round(value / 1e-3, 9) for value in found]
    up, down = (fmean(step == factor for step in steps) for factor in (1.2, 0.8))
    assert up == pytest.approx(0.375, abs=0.03)
    assert down == pytest.approx(0.375, abs=0.03)
    anew = [math.log10(value) for value, step in zip(found, steps, strict=True) if step not in (1.2, 0.8)]
    assert fmean(anew) == pytest.approx(-3, abs=0.15), "evenly in the logarithm"


def test_pbt_is_cut_off_at_the_bounds() -> None:
    known = {"dropout": Range(0.5, 0.6)}
    found = [
        value["dropout"]
        for seed in range(50)
        for _, _, value in PBT(known, seed).after(1, [2, 1], [{"dropout": 0.55}] * 2)
    ]
    assert {0.5, 0.6} < {*found}


def test_pb2_copies_the_setting_while_it_knows_nothing() -> None:
    population = Population(4, 0)
    losses = [4.0, 1.0, 2.0, 3.0]
    assert PB2(SPACE, 0).after(1, losses, population.settings) == [(0, 1, population.settings[1])]


def test_pb2_proposes_near_the_best_of_a_bowl() -> None:
    """Members gain the more the nearer they are to 0.3: no noise, so that the process can know it."""
    known = {"dropout": Range(0.0, 1.0)}
    away = []
    for seed in range(3):
        draw, twin = random.Random(seed), PB2(known, seed)
        settings = [{"dropout": draw.random()} for _ in range(8)]
        losses = [10.0] * 8
        for part in range(1, 5):
            losses = [
                loss - 1 + (setting["dropout"] - 0.3) ** 2
                for loss, setting in zip(losses, settings, strict=True)
            ]
            for number, parent, found in twin.after(part, losses, settings):
                losses[number], settings[number] = losses[parent], found
                if part > 2:
                    away.append(abs(found["dropout"] - 0.3))
    assert fmean(away) < 0.15 < 0.29, "0.29 is what a draw at random would be away"


def test_a_value_and_its_share_are_the_same_thing() -> None:
    for known in SPACE.values():
        assert value_at(known, 0) == known.low
        assert value_at(known, 1) == pytest.approx(known.high)
        assert share_of(known, value_at(known, 0.3)) == pytest.approx(0.3)


def test_a_minimum_is_found_within_and_at_the_bounds() -> None:
    low, high = torch.zeros(2, dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    weights = torch.tensor([1.0, 1000.0], dtype=torch.float64)
    for best, expected in (([0.2, 0.7], [0.2, 0.7]), ([-1.0, 0.5], [0.0, 0.5]), ([2.0, -3.0], [1.0, 0.0])):
        aim = torch.tensor(best, dtype=torch.float64)
        found, _ = minimum(lambda x, aim=aim: (weights * (x - aim) ** 2).sum(), high / 3, low, high)
        assert found.tolist() == pytest.approx(expected, abs=1e-4)


def test_a_process_goes_through_what_it_has_seen() -> None:
    rows = torch.rand(12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    values = rows[:, 1].sin() - rows[:, 2]
    process = Process(rows, values)
    for row, value in zip(rows, values, strict=True):
        assert float(process.mean(row)) == pytest.approx(float(value), abs=1e-3)
        assert float(process.variance(row)) < 1e-3
    assert float(process.variance(rows[0] + 3)) > 0.1


@pytest.mark.parametrize("found", KEPT["comparisons"], ids=lambda one: f"{one['scheduler']}-{one['members']}")
def test_twins_and_ray_agree(found: dict[str, object]) -> None:
    assert found["seeds"] >= 40
    assert found["verdict"] == "agree"
    assert min(found["p_means_welch"], found["p_distributions_kolmogorov_smirnov"]) > 0.01
    assert found["same_decisions"] >= {"PBT": 1.0, "PB2": 0.8}[found["scheduler"]]


def test_all_that_is_used_was_compared() -> None:
    compared = {(one["scheduler"], one["members"]) for one in KEPT["comparisons"]}
    assert compared == {(kind, members) for kind in TWINS for members in (4, 8)}
    assert {kind.__name__ for kind in (twins.PBT, twins.PB2)} == {*TWINS}


@pytest.mark.filterwarnings("ignore")  # Ray's own, of packages that it imports
def test_ray_decides_as_the_twin_does() -> None:
    pytest.importorskip("ray.tune", reason="ray is not installed: pip install -r benchmarks/requirements.txt")
    for members in (4, 8):
        assert all(held_against_ray.run("PBT", members, 0, ray=True)[1])
