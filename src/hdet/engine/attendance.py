"""Who is here at a sync, and whose losses count there.

Replicas may come and go (``Replicas.elastic``), and are then numbered anew at every meeting. Each says which
set of values it was dealt when the round began: its loss speaks for those, whatever its rank is now. One that
has joined since was dealt none. It has the others' state and takes their mean, but no part in it, and says
nothing about values that it never had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal, TypeVar

from torch import nn
from torch.optim import Optimizer

from hdet.engine.fan_out import FanOut
from hdet.engine.gradients import Gradients, GradientSharing
from hdet.policies.base import Policy
from hdet.replicas import Replicas, Undone, is_dtensor, is_flat, refuse_wiring
from hdet.weights.outer import OuterStep

__all__ = ["Attendance", "refuse_elastic"]

_PURPOSES = ("sync", "converge")
_T = TypeVar("_T")


class Attendance:
    """The roll of a meeting.

    Args:
        replicas: who may come.
        sharing: how many sets of values those who are here make.
        fan_out: what was dealt in this round.
    """

    def __init__(self, replicas: Replicas, sharing: GradientSharing, fan_out: FanOut) -> None:
        self._replicas = replicas
        self._sharing = sharing
        self._fan_out = fan_out
        #: For every rank that has had values since the round began, whose they are; None: all, in order.
        self._seats: dict[int, int] | None = None
        #: Ranks that have no part in the mean.
        self.joined: tuple[int, ...] = ()
        self.odd: tuple[str, ...] = ()

    @contextmanager
    def meeting(
        self, purpose: Literal["sync", "converge"], where: Callable[[], tuple[int, int]]
    ) -> Iterator[None]:
        """Come together. ``where`` tells step and round, which those who join learn on entering."""
        self._seats, self.joined, self.odd = None, (), ()
        with ExitStack() as held:
            if self._replicas.elastic:
                with self._fan_out.at_base():  # a state that is handed to one who joins has no own values
                    held.enter_context(self._replicas.meeting())
                self._call_the_roll(purpose, where())
            elif self._sharing.arms != self._fan_out.arms:
                self._nobody(self._sharing.arms)
            yield

    def heard(self, rows: Sequence[_T]) -> list[_T]:
        """Of a row for every rank, those that count."""
        return [row for rank, row in enumerate(rows) if self._seats is None or rank in self._seats]

    @property
    def anybody(self) -> bool:
        """Whether anyone has had values since the round began."""
        return self._seats is None or bool(self._seats)

    def narrow(self) -> None:
        """Let the levels of the round be those of the replicas that are heard, in the order of their rows."""
        if self._seats is not None:
            self._fan_out.narrow(list(self._seats.values()))

    def _call_the_roll(self, purpose: Literal["sync", "converge"], where: tuple[int, int]) -> None:
        fan_out = self._fan_out
        seat = -1 if fan_out.arm is None else fan_out.arm
        came_for = [float(_PURPOSES.index(purpose)), *map(float, where)]
        rows = self._replicas.gather([*came_for, float(fan_out.arms), float(seat)])
        if any(row[:3] != rows[0][:3] for row in rows):
            seen = ", ".join(f"{_PURPOSES[int(row[0])]} after step {int(row[1])}" for row in rows)
            raise Undone(f"the replicas came for different things ({seen})")
        if len({row[3] for row in rows}) > 1:
            self._nobody(len(rows))
            return
        self._seats = {rank: int(row[4]) for rank, row in enumerate(rows) if row[4] >= 0}
        if self._seats:
            self.joined = tuple(rank for rank in range(len(rows)) if rank not in self._seats)
        # In the first round of all nobody knew of the others, and all were the one set of values there was.
        if self.joined or len(rows) != fan_out.arms > 1:
            self.odd = (
                f"{len(rows)} replicas are here, {len(self.joined)} of them new; values were dealt to "
                f"{fan_out.arms}",
            )

    def _nobody(self, here: int) -> None:
        self._seats = {}
        self.odd = (
            f"{here} replicas are here, and it is not known who had which of {self._fan_out.arms} sets of "
            "values: nothing is decided",
        )


def refuse_elastic(
    caller: str,
    replicas: Replicas,
    optimizer: Optimizer,
    policies: Sequence[Policy],
    gradients: Gradients,
    outer: OuterStep | None,
    model: nn.Module | None,
) -> None:
    """Raise where replicas that come and go cannot carry a run."""
    if not replicas.elastic:
        return
    kind = type(replicas).__name__
    if gradients != "none":
        raise ValueError(
            f"{caller}: {kind} meet at syncs alone, so every replica has gradients of its own; pass "
            f"gradients='none', got {gradients!r}"
        )
    if outer is not None:
        raise ValueError(f"{caller}: outer= is not taken back where a meeting of {kind} fails; leave it out")
    if any(policy.follows_weights for policy in policies):
        raise TypeError(
            f"{caller}: a horizon keeps weights of the past, which are not taken back where a meeting of "
            f"{kind} fails; use hdet.Ensemble"
        )
    if any(is_dtensor(p) or is_flat(p) for group in optimizer.param_groups for p in group["params"]):
        raise TypeError(
            f"{caller}: {kind} are whole models, each in one process, got sharded parameters; take those of "
            "the bare model, or shard over ranks that live as long as the run, without a Manager"
        )
    if model is not None:
        refuse_wiring(caller, model, 1)
