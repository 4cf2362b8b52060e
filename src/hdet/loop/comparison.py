"""Policies that compare replicas: each arm had values of its own for a round, and its loss speaks for them.

The loss is the mean training loss of the round, as in the paper, or, with a probe, the held-out loss.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from hdet.hyperparameters import Axis, Explorable
from hdet.loop.policy import Context, Decided, Policy, Seen
from hdet.loop.windows import Every
from hdet.probes import Probe
from hdet.replicas import Replicas

__all__ = ["Clock", "Comparison", "Fixed", "HeldOut", "HeldOutLoss", "judge", "mean_loss"]


class Clock(Protocol):
    """When rounds end: :class:`~hdet.loop.windows.Every` T steps, or with a horizon's ``Windows``."""

    def end_after(self, step: int) -> int | None:
        """Where the round ends that begins after ``step`` steps; None where none begins any more."""

    def round_at(self, step: int) -> int:
        """The number of the round that ``step`` falls into."""


class Comparison(Policy):
    """Moves hyperparameters by the losses of arms that had different values of them.

    Args:
        explore: what it moves.
        clock: when rounds end. A sync that another policy asks for ends a round, too: the weights are one.
        probe: judges by held-out batches, regularisers off, instead of the training loss.
        act_from: S_w, the first step at which anything moves.
    """

    #: Whether it moves anything at the last step, when nothing is trained any more at the new value.
    _moves_at_the_end = True

    def __init__(
        self, explore: Sequence[Explorable], clock: Clock, *, probe: Probe | None = None, act_from: int = 0
    ) -> None:
        super().__init__(explore)
        self._clock = clock
        self.sync_every = clock.steps if isinstance(clock, Every) else None
        self._probe = probe
        self._act_from = act_from
        self._held_out: HeldOutLoss | None = None
        self.probes = probe is not None
        self.needs_loss = probe is None

    def facts(self) -> dict[str, str]:
        return {
            "sync_every": repr(self._clock),
            "control_after": repr(self._act_from),
            "probe": "none" if self._probe is None else "given",
        }

    def bind(self, axes: Sequence[Axis], context: Context) -> None:
        super().bind(axes, context)
        self._context = context
        if self._probe is not None:
            self._held_out = HeldOut(self._probe, context.regularisers_off, context.replicas)

    def doubts(self) -> list[str]:
        if self._probe is None or self._context.replicas.size > 1:
            return []
        return ["there is one replica alone: nothing can be compared, and all values stay as they are"]

    def describe(self) -> str:
        if self.sync_every is None:  # it decides in another one's windows
            return ""
        syncs = f"a sync every {self.sync_every} steps" if self._context.diverges else "no syncs"
        return syncs if self._probe is None else f"{syncs}; the probe looks at {self._probe.describe()}"

    def start(self, step: int) -> None:
        # Replicas that do not diverge need not meet.
        self.window_end = self._clock.end_after(step) if self._context.diverges else None

    def round_at(self, step: int) -> int:
        return self._clock.round_at(step)

    def at_own(self) -> Sequence[float | Tensor]:
        return self._held_out.at_own() if self._held_out is not None else ()

    @property
    def own_loss(self) -> float | Tensor | None:
        return None if self._held_out is None else self._held_out.own_loss

    def at_mean(self) -> Sequence[float | Tensor]:
        return self._held_out.at_mean() if self._held_out is not None else ()

    def decide(self, seen: Seen) -> Callable[[], Decided]:
        return partial(self._apply, seen)

    def _apply(self, seen: Seen) -> Decided:
        self.start(seen.step)
        acts = seen.step >= self._act_from and (self._moves_at_the_end or seen.step != seen.total_steps)
        if self._held_out is None:
            return self.move(seen.levels, seen.losses) if acts else self.observe(seen.levels)
        losses, mean = judge([(own, of_mean) for own, of_mean in seen.rows])
        by_arm = self._context.by_arm(losses)
        decided = self.move(seen.levels, by_arm) if acts else self.observe(seen.levels)
        return replace(decided, held_out=by_arm, held_out_mean=mean)

    def missed(self, step: int) -> None:
        """The round goes on until the next one would have ended: rounds stay where the schedule has them."""
        self.start(step)

    @abstractmethod
    def move(self, levels: Sequence[tuple[float, ...]], losses: tuple[float, ...]) -> Decided:
        """Move every hyperparameter by what its arms had, and what they came to."""

    def state_dict(self) -> dict[str, Any]:
        return {
            "probe": None
            if self._probe is None
            else self._probe.state_dict(self._context.replicas.world_rank)
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._probe is not None and state["probe"] is not None:
            self._probe.load_state_dict(state["probe"], self._context.replicas.world_rank)


class Fixed(Comparison):
    """Moves nothing: replicas diverge and are averaged back ("HDET without auto-LR")."""

    kind = "fixed"

    def __init__(self, explore: Sequence[Explorable], clock: Clock) -> None:
        super().__init__(explore, clock)
        self.needs_loss = False

    def move(self, levels: Sequence[tuple[float, ...]], losses: tuple[float, ...]) -> Decided:
        return self.observe(levels)


class HeldOutLoss(Protocol):
    """A replica's own held-out loss, and that of the mean of all."""

    #: This replica's, since the last sync.
    own_loss: float | Tensor | None

    def at_own(self) -> list[float | Tensor]:
        """Before the replicas' weights are one."""

    def at_mean(self) -> list[float | Tensor]:
        """After, on the same batches."""


class HeldOut:
    """The loss where the weights stand: one replica's last iterate, then the mean of them.

    It does not matter whether the ranks probe the same batches or each its own.

    Args:
        probe: measures the loss.
        regularisers_off: a context in which they are.
        replicas: whose losses the probe gives.
    """

    def __init__(
        self,
        probe: Probe,
        regularisers_off: Callable[[], AbstractContextManager[None]],
        replicas: Replicas,
    ) -> None:
        self._probe = probe
        self._regularisers_off = regularisers_off
        self._replicas = replicas
        self._batches: list[Any] = []
        #: At this replica's own weights, since the last sync.
        self.own_loss: float | Tensor | None = None

    def at_own(self) -> list[float | Tensor]:
        """The loss at this replica's weights, on new batches."""
        self.own_loss = None
        self._batches = self._probe.draw()
        self.own_loss = self._measure()
        return [self.own_loss]

    def at_mean(self) -> list[float | Tensor]:
        """The loss on the same batches, the weights being by now the mean's."""
        loss = self._measure()
        self._batches = []
        return [loss]

    def _measure(self) -> float | Tensor:
        here = self._replicas.local_count
        with self._regularisers_off(), self._buffers_kept():
            losses = self._probe.losses_of_each(self._batches, here)
        means = [mean_loss(column) for column in zip(*losses, strict=True)]
        return means[0] if here == 1 else torch.tensor(means, dtype=torch.float64)

    @contextmanager
    def _buffers_kept(self) -> Iterator[None]:
        """The probe puts the model's buffers back, but does not know of those stacked in this process."""
        stacked = self._replicas.buffers_of(self._probe.model) if self._replicas.local_count > 1 else []
        before = [buffer.clone() for buffer in stacked]
        try:
            yield
        finally:
            for buffer, value in zip(stacked, before, strict=True):
                buffer.copy_(value)


def mean_loss(losses: Sequence[float]) -> float:
    """NaN where one of them is not finite."""
    return math.fsum(losses) / len(losses) if all(map(math.isfinite, losses)) else math.nan


def judge(rows: Sequence[tuple[float, float]]) -> tuple[tuple[float, ...], float]:
    """From (own loss, the mean model's loss) of every replica: losses that can be compared, and the mean's.

    >>> judge([(1.0, 1.5), (2.0, 1.5)])
    ((1.0, 2.0), 1.5)
    >>> judge([(1.0, 1.5), (3.0, 2.5)])  # the second one's batches are harder
    ((1.5, 2.5), 2.0)
    """
    known = [mean for _, mean in rows if math.isfinite(mean)]
    if not known:  # without the mean there is nothing to compare with but one another
        return tuple(own for own, _ in rows), math.nan
    level = math.fsum(known) / len(known)
    return tuple(own - mean + level for own, mean in rows), level
