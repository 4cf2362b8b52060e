"""The tasks on which a hyperparameter matters, and the places where its value stands while a replica trains.

Each task is learned by heart where nothing is against it, and not at all where too much is: the best value
lies inside the grid, and both of its ends are far off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW, Optimizer

import hdet
from benchmarks.workloads import Batch, Workload, charlm, digits, newsfeed

__all__ = ["FOUR", "NEUTRAL", "TASKS", "Setup", "Task", "explore", "put", "set_up", "workload"]

WEIGHT_DECAY, DROPOUT = "weight decay", "dropout"
LABEL_SMOOTHING, TEMPERATURE = "label smoothing", "attention temperature"
#: The task on which all of them are looked for in one run.
FOUR = "four at once"
#: Off, or as usual: where everything stands that a run says nothing about.
NEUTRAL = {WEIGHT_DECAY: 0.0, DROPOUT: 0.0, LABEL_SMOOTHING: 0.0, TEMPERATURE: 1.0}

_BETAS = (0.9, 0.99)
_SPREAD = 0.5
#: The attribute of charlm's blocks that multiplies their attention's logits.
_TEMPERATURE = "temperature"


class _Binary(nn.Module):
    """The newsfeed's loss as a module: the sum over its three answers of the mean binary cross-entropy."""

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Of a batch."""
        return F.binary_cross_entropy_with_logits(logits, targets) * len(newsfeed.TASKS)


@dataclass(frozen=True)
class Task:
    """A workload and what is looked for on it, each with its grid of fixed values, in rising order."""

    make: Callable[[], Workload]
    #: From model and batch to what the criterion takes.
    outputs: Callable[[nn.Module, Batch], tuple[Tensor, Tensor]]
    grids: Mapping[str, tuple[float, ...]]
    lr: float
    criterion: Callable[[], nn.Module] = nn.CrossEntropyLoss
    replicas: int = 4
    #: Who shares gradients. Decay acts on the weights: on one gradient, nothing else tells replicas apart.
    gradients: Literal["all", "none"] = "none"
    #: Batches of the probe that one sync looks at.
    probed: int = 2
    #: Where a run begins that looks for several; one that looks for one begins at either end of its grid.
    wrong: Mapping[str, float] = field(default_factory=dict)

    @property
    def explored(self) -> tuple[str, ...]:
        """The names of what is looked for."""
        return tuple(self.grids)


@dataclass(frozen=True)
class Setup:
    """What one replica trains with: the places where the values stand."""

    model: nn.Module
    optimizer: Optimizer
    criterion: nn.Module


def _longer() -> Workload:
    """Long enough for attention to be worth something."""
    return replace(charlm.make(), steps=1000)


TASKS: dict[str, Task] = {
    WEIGHT_DECAY: Task(
        make=newsfeed.make_few,
        outputs=newsfeed.outputs,
        criterion=_Binary,
        grids={WEIGHT_DECAY: (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)},
        lr=3e-3,
        gradients="all",
    ),
    DROPOUT: Task(
        make=charlm.make_overfitting,
        outputs=charlm.outputs,
        grids={DROPOUT: (0.01, 0.05, 0.1, 0.2, 0.35, 0.5, 0.8)},
        lr=6e-3,
    ),
    LABEL_SMOOTHING: Task(
        make=digits.make_noisy,
        outputs=digits.outputs,
        grids={LABEL_SMOOTHING: (0.001, 0.01, 0.03, 0.1, 0.2, 0.4, 0.8)},
        lr=3e-3,
    ),
    TEMPERATURE: Task(
        make=_longer,
        outputs=charlm.outputs,
        grids={TEMPERATURE: (0.01, 0.1, 1.0, 3.0, 10.0, 100.0, 1000.0)},
        # At a higher one queries and keys soon grow to where the temperature is worth little.
        lr=3e-3,
    ),
    FOUR: Task(
        make=charlm.make_overfitting,
        outputs=charlm.outputs,
        grids={
            WEIGHT_DECAY: (0.01, 0.3, 1.0, 3.0, 10.0),
            DROPOUT: (0.05, 0.2, 0.35, 0.5, 0.8),
            LABEL_SMOOTHING: (0.01, 0.1, 0.2, 0.4, 0.8),
            TEMPERATURE: (0.1, 0.3, 1.0, 3.0, 10.0),
        },
        lr=6e-3,
        replicas=8,
        wrong={WEIGHT_DECAY: 0.01, DROPOUT: 0.8, LABEL_SMOOTHING: 0.8, TEMPERATURE: 0.1},
    ),
}


@cache
def workload(task: str) -> Workload:
    """The task's workload, made once in a process."""
    return TASKS[task].make()


def set_up(task: Task, model: nn.Module) -> Setup:
    """AdamW around the model, and the task's criterion; all values neutral."""
    optimizer = AdamW(model.parameters(), task.lr, _BETAS, weight_decay=0.0, fused=True)
    return Setup(model, optimizer, task.criterion())


def put(setup: Setup, name: str, value: float) -> None:
    """Write the value where it stands."""
    if name == WEIGHT_DECAY:
        for group in setup.optimizer.param_groups:
            group["weight_decay"] = value
    elif name == LABEL_SMOOTHING:
        # A module takes any attribute: a criterion that never reads it would be explored in vain.
        if not isinstance(setup.criterion, nn.CrossEntropyLoss):
            raise TypeError(f"label smoothing needs CrossEntropyLoss, got {type(setup.criterion).__name__}")
        setup.criterion.label_smoothing = value
    else:
        for module in setup.model.modules():
            if name == DROPOUT and isinstance(module, nn.Dropout):
                module.p = value
            elif name == TEMPERATURE and hasattr(module, _TEMPERATURE):
                setattr(module, _TEMPERATURE, value)


def explore(setup: Setup, name: str) -> Any:
    """The same place, for :class:`hdet.Ensemble`."""
    if name == WEIGHT_DECAY:
        # Beyond the bounds it has by itself, so that a start at the grid's end is inside them.
        return hdet.WeightDecay(spread=_SPREAD, bounds=(0.0, 100.0))
    if name == DROPOUT:
        return hdet.Dropout(setup.model, spread=_SPREAD)
    if name == LABEL_SMOOTHING:
        return hdet.LabelSmoothing(setup.criterion, spread=_SPREAD)
    return hdet.Temperature(setup.model, attribute=_TEMPERATURE, spread=_SPREAD)
