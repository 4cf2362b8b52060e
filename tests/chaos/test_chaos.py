"""The chaos suite in short, and that it would notice. The whole of it: ``make chaos``."""

from __future__ import annotations

import random
from typing import Any

import pytest

from hdet.replicas.launch import LocalProcesses
from tests.chaos import kills, poisons, soak
from tests.chaos.__main__ import PARTS
from tests.chaos.worker import DOORS


@pytest.mark.timeout(600)
@pytest.mark.parametrize("door", DOORS)
def test_a_run_that_was_hit_ends_as_the_unbroken_one(door: str) -> None:
    line = kills.hit_run(door, kills.random_hits(random.Random(door), 1))
    assert not kills.broken(line), line


@pytest.mark.timeout(300)
def test_nothing_that_is_not_finite_is_ever_in_a_mean(ranks: LocalProcesses) -> None:
    for line in poisons.poisons(20, pool=ranks):
        assert not line["broken"], line
        assert sum(line["places"].values()) == line["poisons"] == 10


@pytest.mark.parametrize("door", soak.DOORS)
def test_state_and_memory_of_a_run_do_not_grow(door: str) -> None:
    line = soak.long_run(door, 2000, seed=0)
    assert soak.broken(line) in ("", "steps take longer"), line  # too short to tell a time


def test_processes_that_meet_leave_nothing_behind(ranks: LocalProcesses) -> None:
    line = soak.together(ranks, 16.0, seed=0)
    assert soak.LOOKS - 4 <= len(line["looks"]) <= soak.LOOKS  # a busy machine may miss some
    assert line["steps"] >= 200
    assert soak.broken(line) in ("", "steps take longer"), line


def kill(**other: Any) -> dict[str, Any]:
    return {
        "hits": ["SIGKILL:0:3:0", "SIGSTOP:1:9:0"],
        "lives": 3,
        "equal": True,
        "survivors_left_after_s": [0.3, 6.0],
        "unreadable": 0,
        **other,
    }


def poison(**other: Any) -> dict[str, Any]:
    return {"not_finite": 0, "largest": 2.0, "differ": 0, "left_out": 9, "poisons": 10, **other}


def long_run(**last: Any) -> dict[str, Any]:
    look = {"rss_mb": 300.0, "state_bytes": 1000, "step_us": 500.0, "threads": 1, "files": 9}
    return {"looks": [*[look] * 15, *[{**look, **last}] * 5]}


@pytest.mark.parametrize(
    ("judge", "sound", "words"),
    [
        (kills.broken, kill(), ""),
        (kills.broken, kill(equal=False), "ended elsewhere"),
        (kills.broken, kill(lives=2), "2 lives after 2 hits"),
        (kills.broken, kill(unreadable=1), "1 checkpoints unreadable"),
        (kills.broken, kill(survivors_left_after_s=[0.3, 36.0]), "a survivor alive"),
        (kills.broken, kill(survivors_left_after_s=[0.3]), "a survivor alive"),
        (poisons.broken, poison(), ""),
        (poisons.broken, poison(not_finite=1), "1 means not finite"),
        (poisons.broken, poison(largest=1e9), "an explosion"),
        (poisons.broken, poison(largest=float("nan")), "an explosion"),
        (poisons.broken, poison(differ=1), "1 ranks ended elsewhere"),
        (poisons.broken, poison(left_out=2), "hardly anybody"),
        (soak.broken, long_run(), ""),
        (soak.broken, long_run(rss_mb=320.0), "memory grows"),
        (soak.broken, long_run(state_bytes=1200), "the state grows"),
        (soak.broken, long_run(step_us=900.0), "steps take longer"),
        (soak.broken, long_run(threads=2), "threads are left"),
        (soak.broken, long_run(files=10), "files are left open"),
    ],
)
def test_what_is_broken_is_noticed(judge: Any, sound: dict[str, Any], words: str) -> None:
    assert words in judge(sound)
    assert bool(judge(sound)) == bool(words)


def test_the_numbers_that_are_promised() -> None:
    assert {name: count for name, (_, count) in PARTS.items()} == {
        "kills": 50,
        "poisons": 200,
        "soak": 1_000_000,
    }
