"""Ranks that are killed, stopped or terminated at random under torchrun, which starts them anew: the run ends
as the unbroken one does, bit for bit; no survivor outlives the patience; every checkpoint can be read."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch

from tests import ROOT
from tests.chaos.worker import DOORS, STEPS

SIZE, PATIENCE, GRACE, LIMIT = 2, 5, 30, 600
#: As many hits on one run.
HITS = 5


def kills(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """One line for each run that was hit, doors in turn, until ``count`` hits."""
    run = 0
    while count > 0:
        chance = random.Random(1000 * seed + run)
        hits = random_hits(chance, min(count, HITS))
        line = {"seed": 1000 * seed + run, **hit_run(DOORS[run % len(DOORS)], hits)}
        yield {**line, "broken": broken(line)}
        count -= len(hits)
        run += 1


def random_hits(chance: random.Random, count: int) -> list[str]:
    """signal:rank:step:seconds, in the order of their steps, one for each life of a run."""
    steps = sorted(chance.sample(range(STEPS), count))
    return [
        f"{chance.choice(['SIGKILL', 'SIGSTOP', 'SIGTERM'])}:{chance.randrange(SIZE)}:{step}:"
        f"{chance.uniform(0, 0.01):.4f}"
        for step in steps
    ]


def hit_run(door: str, hits: list[str]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        try:
            seen = run(Path(folder), door, hits)
        except RuntimeError as error:
            return {"door": door, "hits": hits, "failed": str(error)}
    return {
        "door": door,
        "hits": hits,
        "lives": seen["lives"],
        "equal": same(seen["states"], unbroken(door)),
        "survivors_left_after_s": seen["survivors_left_after_s"],
        "checkpoints": seen["checkpoints"],
        "unreadable": seen["unreadable"],
    }


@cache
def unbroken(door: str) -> list[Any]:
    with tempfile.TemporaryDirectory() as folder:
        states: list[Any] = run(Path(folder), door, [])["states"]
    return states


def run(folder: Path, door: str, hits: list[str]) -> dict[str, Any]:
    """A run under torchrun, watched from outside."""
    environment = {**os.environ, "HDET_PATIENCE": str(PATIENCE), "OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={SIZE}"]
    command += [f"--max-restarts={len(hits)}", "--monitor-interval=0.2", "-m", "tests.chaos.worker"]
    left: dict[int, float] = {}
    with open(folder / "log", "w+", encoding="utf-8") as log:
        process = subprocess.Popen(
            [*command, str(folder), door, *hits],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        end = time.monotonic() + LIMIT
        try:
            while process.poll() is None and time.monotonic() < end:
                watch(folder, left)
                time.sleep(0.02)
        finally:
            process.terminate()
        process.wait(60)
        log.seek(0)
        if process.returncode:
            raise RuntimeError(f"exit status {process.returncode}: {log.read()}")
    states, unreadable = {}, 0
    for file in folder.glob("state-*"):
        try:
            states[file.name] = torch.load(file, weights_only=True)
        except Exception:  # whatever it says, it was not read
            unreadable += 1
    return {
        "lives": len(list(folder.glob("pid-*-0"))),
        "survivors_left_after_s": [round(left[life], 1) for life in sorted(left)],
        "checkpoints": len(states) + unreadable,
        "unreadable": unreadable,
        "states": [states[f"state-{STEPS}-{rank}"] for rank in range(SIZE)],
    }


def watch(folder: Path, left: dict[int, float]) -> None:
    """Notes how long after a hit the last survivor left. torchrun would wait 30 s for one that was stopped
    before it ends it; once the survivors are gone it need not."""
    for file in folder.glob("hit-*"):
        life, whom = map(int, file.name.split("-")[1:])
        kind, when = file.read_text().split()
        if life in left:
            continue
        others = [int((folder / f"pid-{life}-{rank}").read_text()) for rank in range(SIZE) if rank != whom]
        waited = time.time() - float(when)
        if not any(map(alive, others)):
            left[life] = waited
        if kind == "SIGSTOP" and (life in left or waited > PATIENCE + GRACE + 10):
            stopped = int((folder / f"pid-{life}-{whom}").read_text())
            if alive(stopped):
                os.kill(stopped, signal.SIGKILL)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def same(one: object, other: object) -> bool:
    """Bit for bit; NaN is NaN."""
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


def broken(line: dict[str, Any]) -> str:
    """What a line breaks of what is promised, in words; empty if nothing."""
    if "failed" in line:
        return "the run did not end"
    hits, late = len(line["hits"]), PATIENCE + GRACE
    found = {
        "ended elsewhere than the unbroken run": not line["equal"],
        f"{line['lives']} lives after {hits} hits": line["lives"] != hits + 1,
        f"{line['unreadable']} checkpoints unreadable": line["unreadable"] > 0,
        f"a survivor alive {late} s after a hit": len(line["survivors_left_after_s"]) < hits
        or max(line["survivors_left_after_s"], default=0) > late,
    }
    return "; ".join(words for words, is_so in found.items() if is_so)
