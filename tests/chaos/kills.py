"""Ranks that are killed, stopped or terminated at random under torchrun, which starts them anew: the run ends
as the unbroken one does, bit for bit."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.chaos.worker import STEPS

SIZE, LIVES = 2, 2


def run(folder: Path, hits: list[str]) -> list[object]:
    folder.mkdir()
    environment = {**os.environ, "HDET_PATIENCE": "5", "OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={SIZE}"]
    command += [f"--max-restarts={len(hits)}", "--monitor-interval=0.2", "-m", "tests.chaos.worker"]
    result = subprocess.run(
        [*command, str(folder), *hits],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert len(list(folder.glob("life-*"))) == len(hits) + 1, "every hit has hit"
    return [torch.load(folder / f"state-{STEPS}-{rank}", weights_only=True) for rank in range(SIZE)]


def same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and one.keys() == other.keys()
            and all(same(one[k], other[k]) for k in one)
        )
    if isinstance(one, (list, tuple)):
        return (
            isinstance(other, (list, tuple))
            and len(one) == len(other)
            and all(same(a, b) for a, b in zip(one, other, strict=True))
        )
    return one == other or (one != one and other != other)


@pytest.mark.timeout(1500)
@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_was_hit_ends_as_the_unbroken_one(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    kinds = ["SIGKILL", "SIGSTOP", "SIGTERM"]
    chance.shuffle(kinds)
    steps = sorted(chance.sample(range(STEPS), LIVES))  # who was hit later is not hit before
    hits = [f"{kind}:{chance.randrange(SIZE)}:{step}" for kind, step in zip(kinds, steps, strict=False)]
    assert same(run(tmp_path / "broken", hits), run(tmp_path / "unbroken", [])), hits
