"""A schedule that was found, kept as JSON and run again by a plain ``LambdaLR``: no probe, no controller."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from os import PathLike
from pathlib import Path

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

__all__ = ["FoundSchedule", "replay"]

_FORMAT = "hdet schedule 1"


class FoundSchedule:
    """The learning rate of every step and group, as runs of equal values."""

    def __init__(self, groups: int) -> None:
        self._runs: list[list[tuple[int, float]]] = [[] for _ in range(groups)]

    def add(self, lrs: Sequence[float]) -> None:
        """The values of one more step."""
        for runs, lr in zip(self._runs, lrs, strict=True):
            if runs and runs[-1][1] == lr:
                runs[-1] = (runs[-1][0] + 1, lr)
            else:
                runs.append((1, lr))

    @property
    def steps(self) -> int:
        """How many steps are known."""
        return sum(count for count, _ in self._runs[0]) if self._runs else 0

    def to_json(self) -> str:
        """Everything, exactly: Python writes floats so that they read back the same."""
        return json.dumps(
            {"format": _FORMAT, "steps": self.steps, "groups": [{"runs": r} for r in self._runs]}
        )

    @classmethod
    def from_json(cls, text: str) -> FoundSchedule:
        """What :meth:`to_json` wrote."""
        raw = json.loads(text)
        if not isinstance(raw, dict) or raw.get("format") != _FORMAT:
            found = raw.get("format") if isinstance(raw, dict) else type(raw).__name__
            raise ValueError(f"replay: the file must hold a schedule of format {_FORMAT!r}, got {found!r}")
        schedule = cls(len(raw["groups"]))
        schedule._runs = [[(int(n), float(lr)) for n, lr in group["runs"]] for group in raw["groups"]]
        return schedule

    def lambdas(self) -> list[Callable[[int], float]]:
        """For each group, the learning rate of a step; beyond the last one, that of the last."""
        return [_lookup(runs) for runs in self._runs]


def _lookup(runs: Sequence[tuple[int, float]]) -> Callable[[int], float]:
    ends = list(accumulate(count for count, _ in runs))
    return lambda step: runs[min(bisect_right(ends, step), len(runs) - 1)][1]


def replay(optimizer: Optimizer, path: str | PathLike[str]) -> LambdaLR:
    """A plain ``LambdaLR`` that gives every step the learning rate which :meth:`AutoLR.export` wrote down.

    The optimizer's own learning rates are set to 1, so that the file's values are used to the last bit.
    """
    schedule = FoundSchedule.from_json(Path(path).read_text(encoding="utf-8"))
    lambdas = schedule.lambdas()
    if not schedule.steps:
        raise ValueError(f"replay: the schedule must hold at least one step, got none in {str(path)!r}")
    if len(lambdas) != len(optimizer.param_groups):
        raise ValueError(
            f"replay: the optimizer must have as many parameter groups as the schedule, {len(lambdas)}, got "
            f"{len(optimizer.param_groups)}"
        )
    for group in optimizer.param_groups:
        group.pop("initial_lr", None)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(1.0)
        else:
            group["lr"] = 1.0
    return LambdaLR(optimizer, lambdas)
