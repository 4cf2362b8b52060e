"""One run: until it is solved, the steps are taken, or the time is up; and in a process of its own."""

from __future__ import annotations

import json
from dataclasses import replace

import torch
from torch import Tensor, nn

from benchmarks.lightbench.problems import Problem
from benchmarks.lightbench.runs import Run, execute, train

RUN = Run("bowl-easy", "autolr", steps=600, limit=60.0)


class Bowl(nn.Module):
    """A noisy bowl, a part of which goes through the loss of the step before, as in one of LightBench's."""

    def __init__(self) -> None:
        super().__init__()
        self.param = nn.Parameter(torch.full((8,), 3.0))
        self.late = nn.Parameter(torch.full((8,), 3.0))
        self.before: list[Tensor] = []
        self.calls = 0

    def forward(self) -> Tensor:
        self.calls += 1
        self.before.append(self.late.square().mean())
        late = self.before.pop(0) if len(self.before) > 1 else torch.zeros(())
        return (self.param + 0.01 * torch.randn(8)).square().mean() + late


def bowl(target: float, steps: int = 600) -> Problem:
    torch.manual_seed(0)
    return Problem(Bowl(), lambda: (None, None), None, lambda _, loss: (loss <= target, {}), steps, group=100)


def test_a_run_ends_when_the_problem_is_solved() -> None:
    row = train(RUN, bowl(target=0.01))
    assert row["outcome"] == "solved"
    assert row["solved"]
    assert row["taken"] % 100 == 0
    assert row["lowest"] <= 0.01
    assert row["reached"] > 1e-3, "AutoLR went beyond the learning rate that the optimizer was made with"
    json.dumps(row, allow_nan=False)


def test_or_when_steps_or_time_run_out() -> None:
    problem = bowl(target=-1.0, steps=250)
    row = train(replace(RUN, arm="default"), problem)
    assert (row["outcome"], row["solved"], row["taken"], row["reached"]) == ("steps", False, 250, 1e-3)
    assert problem.model.calls == 250
    row = train(replace(RUN, limit=0.0), bowl(target=-1.0))
    assert (row["outcome"], row["taken"]) == ("time", 100)


def test_a_process_of_its_own_tells_what_went_wrong() -> None:
    row = execute(replace(RUN, problem="no_such_kind-easy"))
    assert "no_such_kind" in row["error"]
