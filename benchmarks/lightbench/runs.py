"""One run on a problem of LightBench, in a process of its own and within a time limit.

``python -m benchmarks.lightbench.runs '{"problem": …}'`` prints the row of one run.
"""

from __future__ import annotations

import json
import logging
import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW

from benchmarks.lightbench.problems import Problem, as_it_was, load, on_device
from benchmarks.rows import Row, failure
from hdet.autolr.auto_lr import AutoLR
from hdet.probes import Probe

__all__ = ["ARMS", "Run", "execute", "execute_here", "train"]

#: No learning rate at all; and torch's own, which nobody chose for any of these problems.
ARMS = ("autolr", "default")
_DEFAULT_LR = 1e-3
#: Beyond its time limit, in which a run ends by itself, a process has so long to start and to tell.
_GRACE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Run:
    """All that a result depends on."""

    problem: str
    arm: str
    steps: int
    #: Seconds of training after which it counts as not solved.
    limit: float
    device: str = "cpu"


def execute(run: Run) -> Row:
    """The run's row, from a process of its own; what raised there is an error, what took too long is not."""
    command = [sys.executable, "-m", "benchmarks.lightbench.runs", json.dumps(asdict(run))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=run.limit + _GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        return _row(run, outcome="time", seconds=run.limit)
    if done.returncode:
        return failure(run, RuntimeError((done.stderr.strip().splitlines() or ["no word"])[-1]))
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def execute_here(run: Run) -> Row:
    """The same in this process."""
    torch.set_num_threads(1)
    # As LightBench sets torch up.
    torch.set_float32_matmul_precision("high")
    torch.backends.cudnn.benchmark = True
    logging.getLogger("hdet").setLevel(logging.ERROR)
    with on_device(run.device):
        return train(run, load(run.problem, run.steps, run.device))


def train(run: Run, problem: Problem) -> Row:
    """Until it is solved, the steps are taken, or the time is up."""
    weights = tuple(problem.model.parameters())
    optimizer = AdamW(weights, lr=_DEFAULT_LR, weight_decay=0.0, fused=True)
    after_step = _after_step(run, problem, optimizer)
    losses = torch.empty(problem.group, device=weights[0].device)
    lowest, reached, last = math.inf, 0.0, math.nan
    outcome, taken = "steps", 0
    began = time.perf_counter()
    while taken < problem.steps:
        size = min(problem.group, problem.steps - taken)
        for place in range(size):
            loss = problem.loss()
            loss.backward()  # type: ignore[no-untyped-call]
            losses[place] = loss.detach()
            reached = max(reached, optimizer.param_groups[0]["lr"])
            # One problem goes back through losses of earlier steps, which torch would refuse after an update
            # in place. heavyball's optimizers, for which it was written, do not count theirs either.
            with torch.autograd._unsafe_preserve_version_counter(weights):  # type: ignore[attr-defined]
                optimizer.step()
                after_step()
            optimizer.zero_grad()
        taken += size
        some = [value for value in losses[:size].tolist() if math.isfinite(value)]
        lowest, last = min([lowest, *some]), float(losses[size - 1])
        if problem.solved(some):
            outcome = "solved"
            break
        if time.perf_counter() - began > run.limit:
            outcome = "time"
            break
    return _row(run, outcome, taken, time.perf_counter() - began, lowest=lowest, last=last, reached=reached)


def _after_step(run: Run, problem: Problem, optimizer: AdamW) -> Callable[[], object]:
    if run.arm not in ARMS:
        raise ValueError(f"arm must be one of {', '.join(map(repr, ARMS))}, got {run.arm!r}")
    if run.arm == "default":
        return lambda: None

    def loss_of(number: int) -> Tensor:
        # The probe itself gives torch's generators a state that is the same at every point.
        with as_it_was(problem.model, number):
            return problem.loss()

    probe = Probe(loss_of, lambda number: number, model=problem.model)
    return AutoLR(optimizer, total_steps=problem.steps, probe=probe).step


def _row(run: Run, outcome: str, taken: int | None = None, seconds: float = 0.0, **found: float) -> Row:
    numbers: dict[str, Any] = {name: found.get(name) for name in ("lowest", "last", "reached")}
    finite = {name: x if x is not None and math.isfinite(x) else None for name, x in numbers.items()}
    solved = outcome == "solved"
    told = {"solved": solved, "outcome": outcome, "taken": taken, "seconds": round(seconds, 2)}
    return {**asdict(run), **told, **finite}


if __name__ == "__main__":
    print(json.dumps(execute_here(Run(**json.loads(sys.argv[1]))), allow_nan=False))
