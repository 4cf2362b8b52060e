"""Policies that compare replicas: each arm had values of its own for a round, and its loss speaks for them.

The loss is the mean training loss of the round, as in the paper, or, with a probe, the held-out loss.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hdet.hyperparameters import Axis, Explorable
from hdet.loop.policy import Context, Decided, Policy, Seen
from hdet.loop.windows import Every, Windows
from hdet.probes import Probe

__all__ = ["Comparison", "Fixed", "judge", "mean_loss"]


class Comparison(Policy):
    """Moves hyperparameters by the losses of arms that had different values of them.

    With a probe that is the loss where the weights stand: a replica's last iterate, then the mean of all, on
    the same batches. It does not matter whether the ranks probe the same batches or each its own.

    Args:
        explore: what it moves.
        rounds: when they end. A sync that another policy asks for ends a round, too: the weights are one.
        controller: the rule.
        probe: judges by held-out batches, regularisers off, instead of the training loss.
        act_from: S_w, the first step at which anything moves.
    """

    #: Whether it moves anything at the last step, when nothing is trained any more at the new value.
    _moves_at_the_end = True

    def __init__(
        self,
        explore: Sequence[Explorable],
        rounds: Every | Windows,
        controller: Any = None,
        *,
        probe: Probe | None = None,
        act_from: int = 0,
    ) -> None:
        super().__init__(explore)
        self._rounds = rounds
        self._controller = controller
        self._probe = probe
        self._act_from = act_from
        self._batches: list[Any] = []
        self.sync_every = rounds.steps if isinstance(rounds, Every) else None
        self.probes = probe is not None
        self.needs_loss = probe is None

    def facts(self) -> dict[str, str]:
        controller = {} if self._controller is None else {"controller": repr(self._controller)}
        return {
            "sync_every": repr(self._rounds),
            "control_after": repr(self._act_from),
            "probe": "none" if self._probe is None else "given",
            **controller,
        }

    def bind(self, axes: Sequence[Axis], context: Context) -> None:
        super().bind(axes, context)
        self._context = context

    def warnings(self) -> list[str]:
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
        self.window_end = self._rounds.end_after(step) if self._context.diverges else None

    def round_at(self, step: int) -> int:
        return self._rounds.round_at(step)

    def at_own(self) -> Sequence[float | Tensor]:
        if self._probe is None:
            return ()
        self.own_loss = None
        self._batches = self._probe.draw()
        self.own_loss = self._held_out_loss(self._probe)
        return [self.own_loss]

    def at_mean(self) -> Sequence[float | Tensor]:
        if self._probe is None:
            return ()
        loss = self._held_out_loss(self._probe)
        self._batches = []  # not kept until the next sync: they may lie on the device
        return [loss]

    def _held_out_loss(self, probe: Probe) -> float | Tensor:
        replicas = self._context.replicas
        with self._context.regularisers_off():
            losses = probe.losses_of_each(self._batches, replicas)
        means = [mean_loss(column) for column in zip(*losses, strict=True)]
        return means[0] if replicas.local_count == 1 else torch.tensor(means, dtype=torch.float64)

    def decide(self, seen: Seen) -> Callable[[], Decided]:
        return partial(self._apply, seen)

    def _apply(self, seen: Seen) -> Decided:
        self.start(seen.step)
        losses, mean = seen.losses, math.nan
        if self.probes:
            held_out, mean = judge([(own, of_mean) for own, of_mean in seen.rows])
            losses = self._context.by_arm(held_out)
        acts = seen.step >= self._act_from and (self._moves_at_the_end or seen.step != seen.total_steps)
        decided = self.move(seen.levels, losses) if acts else self.observe(seen.levels)
        return replace(decided, held_out=losses, held_out_mean=mean) if self.probes else decided

    def missed(self, step: int) -> None:
        """The round goes on until the next one would have ended: rounds stay where the schedule has them."""
        self.start(step)

    @abstractmethod
    def move(self, levels: Sequence[tuple[float, ...]], losses: tuple[float, ...]) -> Decided:
        """Move every hyperparameter by the values of its arms, and their losses."""

    def state_dict(self) -> dict[str, Any]:
        rank = self._context.replicas.world_rank
        return {"probe": None if self._probe is None else self._probe.state_dict(rank)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if self._probe is not None and state["probe"] is not None:
            self._probe.load_state_dict(state["probe"], self._context.replicas.world_rank)


class Fixed(Comparison):
    """Moves nothing: replicas diverge and are averaged back ("HDET without auto-LR")."""

    kind = "fixed"

    def __init__(self, explore: Sequence[Explorable], rounds: Every | Windows) -> None:
        super().__init__(explore, rounds)
        self.needs_loss = False

    def move(self, levels: Sequence[tuple[float, ...]], losses: tuple[float, ...]) -> Decided:
        return self.observe(levels)


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
