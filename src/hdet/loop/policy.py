"""What a policy is: it moves some hyperparameters, and says when, by what evidence, and how far.

The loop holds a list of policies. It knows nothing of any of them but this, and asks in this order:

    each step     before_step · the optimizer steps · after_step · has a window ended?
    at a sync     at_own · the weights become their mean · at_mean · one gather over all ranks · decide

Everything that ``decide`` reads is the same on every rank, so all ranks decide alike. It writes neither
weights nor hyperparameters: it returns what does, and the loop calls that.
"""

from __future__ import annotations

import math
import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.optim import Optimizer

from hdet.history import HorizonRecord, HyperparameterRecord
from hdet.hyperparameters import Axis, Explorable, GroupLearningRate
from hdet.replicas import Replicas

__all__ = ["Before", "Context", "Decided", "Policy", "Sample", "Seen"]


@dataclass(frozen=True, slots=True)
class Context:
    """The run, as its parts and policies see it; the loop makes it before the first step.

    Args:
        caller: prefix of errors and log lines.
        optimizer: whose weights are trained.
        replicas: who trains them.
        total_steps: S, or None while nobody knows.
        diverges: whether the replicas' weights differ between two syncs.
        by_arm: from a value of every rank to one of every arm.
        regularisers_off: a context in which they are.
        own_gradients: whether replicas train by themselves.
        shares: whether they do not yet, and have one gradient for all.
    """

    caller: str
    optimizer: Optimizer
    replicas: Replicas
    total_steps: int | None
    diverges: bool
    by_arm: Callable[[Sequence[float]], tuple[float, ...]]
    regularisers_off: Callable[[], AbstractContextManager[None]]
    own_gradients: bool = False
    shares: Callable[[], bool] = lambda: False


@dataclass(frozen=True, slots=True)
class Sample:
    """Losses of some batches: their mean, their standard deviation, and how many they are; NaN where that is
    not known."""

    mean: float = math.nan
    spread: float = math.nan
    count: int = 0

    @classmethod
    def of(cls, losses: Sequence[float]) -> Sample:
        """Of two at least."""
        if len(losses) < 2 or not all(map(math.isfinite, losses)):
            return cls()
        return cls(statistics.fmean(losses), statistics.stdev(losses), len(losses))

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return self.spread / math.sqrt(self.count) if self.count else math.nan


@dataclass(frozen=True, slots=True)
class Seen:
    """What a sync showed, the same on every rank.

    Args:
        step: steps taken.
        total_steps: S, or None while nobody knows.
        levels: of every arm, for each of the policy's hyperparameters.
        losses: the mean training loss of every arm since the last sync.
        rows: what the policy itself measured, ``at_own`` then ``at_mean``, on every rank.
        training: the training losses of all ranks since the last sync.
        explained: by how much the moves of all policies at the last sync should have changed the loss of the
            averaged model.
    """

    step: int
    total_steps: int | None
    levels: Sequence[tuple[float, ...]]
    losses: tuple[float, ...]
    rows: Sequence[Sequence[float]]
    training: Sample = Sample()
    explained: float = 0.0


@dataclass(frozen=True, slots=True)
class Decided:
    """What a policy did, as the record of the sync keeps it; ``went_back``: the weights are older ones, and
    ``void``: what was seen in this window was an accident, of which nothing is to be learnt;
    ``explained``: by how much its moves should change the averaged model's loss, in a window as long;
    ``best``: what this window left behind is better than all before."""

    hyperparameters: tuple[HyperparameterRecord, ...]
    weights: tuple[float, ...] = ()
    horizon: tuple[HorizonRecord, ...] = ()
    held_out: tuple[float, ...] = ()
    held_out_mean: float = math.nan
    events: tuple[str, ...] = ()
    went_back: bool = False
    void: bool = False
    explained: float = 0.0
    best: bool = False

    @classmethod
    def of_all(cls, decided: Sequence[Decided]) -> Decided:
        """What several policies did at one sync."""
        judged = next((one for one in decided if one.held_out), cls(()))
        return cls(
            hyperparameters=tuple(record for one in decided for record in one.hyperparameters),
            weights=next((one.weights for one in decided if one.weights), ()),
            horizon=tuple(record for one in decided for record in one.horizon),
            held_out=judged.held_out,
            held_out_mean=judged.held_out_mean,
            events=tuple(event for one in decided for event in one.events),
            went_back=any(one.went_back for one in decided),
            explained=math.fsum(one.explained for one in decided),
            best=any(one.best for one in decided),
        )


class Policy(ABC):
    """A way to move hyperparameters.

    Args:
        explore: what it moves; no other policy of the run may move the same.
    """

    #: Names its part of a saved state.
    kind: ClassVar[str]
    #: Whether it measures by a probe of its own, which may fail on one rank alone.
    probes = False
    #: Whether it cannot decide without the training loss.
    needs_loss = False
    #: Whether it looks at the weights between syncs: then only true optimizer steps are counted.
    follows_weights = False
    #: The loss that :meth:`at_own` found; a replica whose loss is not finite has no part in the mean.
    own_loss: float | Tensor | None = None
    #: How many steps each of its windows has; None where they differ.
    sync_every: int | None = None
    #: Whether there was a window that did not improve; None where it does not know.
    stood: bool | None = None
    #: Whether it estimates all its hyperparameters together, so that the design must separate them.
    estimates_jointly = False

    def __init__(self, explore: Sequence[Explorable]) -> None:
        self.explore = tuple(explore)
        self.axes: list[Axis] = []
        #: The step at which it asks for a sync; None where it has no further window, and explores no more.
        self.window_end: int | None = None

    def facts(self) -> dict[str, str]:
        """On what all ranks must agree."""
        return {}

    def bind(self, axes: Sequence[Axis], context: Context) -> None:
        """Take the hyperparameters, bound to what holds them."""
        self.axes = list(axes)

    def warnings(self) -> list[str]:
        """What a user should know before training begins."""
        return []

    def describe(self) -> str:
        """When it syncs, what it measures, and what memory it takes, for the first line of the log."""
        return ""

    @abstractmethod
    def start(self, step: int) -> None:
        """Begin with the window that follows ``step`` steps."""

    def round_at(self, step: int) -> int:
        """The number of the round that ``step`` falls into."""
        return 0

    def stop(self) -> None:
        """Nothing moves any more."""
        self.window_end = None

    def end_at(self, step: int) -> None:  # noqa: B027
        """The run now has an end, or another one."""

    @property
    def learns(self) -> bool:
        """Whether what it moves is still explored."""
        return self.window_end is not None

    # ------------------------------------------------------------------ each step, if it follows the weights

    def before_step(self) -> None:  # noqa: B027 — most look at the weights at syncs alone
        """The optimizer is about to step."""

    def after_step(self) -> bool:
        """It has; whether the window has to end here. Must not wait for the device."""
        return False

    def recounted(self, step: int) -> None:  # noqa: B027
        """Some counted steps had been skipped on the device: ``step`` were taken, and the window ends
        where it was to end, by that count."""

    # ------------------------------------------------------------------ at a sync

    def judges(self, step: int) -> bool:
        """Whether it decides at this sync, which another policy may have asked for."""
        return True

    def at_own(self) -> Sequence[float | Tensor]:
        """Measured at this replica's own weights, before the mean."""
        return ()

    def at_mean(self) -> Sequence[float | Tensor]:
        """Measured once the weights are the mean of all replicas, the base values standing everywhere."""
        return ()

    @abstractmethod
    def decide(self, seen: Seen) -> Callable[[], Decided]:
        """What follows from a sync: a function that moves the hyperparameters, or the weights, and begins the
        next window."""

    def missed(self, step: int) -> None:  # noqa: B027
        """It could not decide at the sync after ``step``: a probe raised and the user trains on, or another
        policy went back to older weights. The window stays open: the next step tries again."""

    def observe(self, levels: Sequence[tuple[float, ...]]) -> Decided:
        """Move nothing, and record the values."""
        return Decided(tuple(before.record() for before in self.before(levels)))

    def before(self, levels: Sequence[tuple[float, ...]]) -> list[Before]:
        """The hyperparameters as the round that ends has had them."""
        found = []
        for axis, row in zip(self.axes, levels, strict=True):
            rho = axis.multipliers(row) if isinstance(axis, GroupLearningRate) else ()
            found.append(Before(axis, axis.base, axis.values(row), rho, axis.spread))
        return found

    # ------------------------------------------------------------------ the run

    def check_end(self) -> str:
        """What is wrong with the weights that training ends with, if anything."""
        return ""

    def configuration(self) -> dict[str, Any]:
        """What must be as it was when a state was saved, for it to be loaded."""
        return {}

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """All that it remembers."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off; :meth:`start` has been called before."""


@dataclass(frozen=True, slots=True)
class Before:
    """A hyperparameter before a decision."""

    axis: Axis
    base: float
    values: tuple[float, ...]
    multipliers: tuple[float, ...]
    spread: float

    def record(
        self, *, delta: float = 0.0, velocity: float = 0.0, slope: float = math.nan, error: float = math.nan
    ) -> HyperparameterRecord:
        """With what has become of it since."""
        return HyperparameterRecord(
            name=self.axis.name,
            multipliers=self.multipliers,
            values=self.values,
            base_before=self.base,
            base_after=self.axis.base,
            delta=delta,
            velocity=velocity,
            spread=self.spread,
            slope=slope,
            error=error,
        )
