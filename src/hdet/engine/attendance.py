"""Who is here at a sync, whose losses count there, and whether all came for the same thing.

Before anything is averaged the ranks call the roll, one small gather: what they came for, after which step
of which round, what they believe (a digest), and how they are. So ranks that differ say who is where, and
nothing of one is mixed with another's.

Replicas may come and go (``Replicas.elastic``), and are then numbered anew at every meeting. Each says which
set of values it was dealt when the round began: its loss speaks for those, whatever its rank is now. One that
has joined since was dealt none. It has the others' state and takes their mean, but no part in it, and says
nothing about values that it never had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Literal, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from hdet.engine.drift import Drift
from hdet.engine.fan_out import FanOut
from hdet.engine.gradients import Gradients, GradientSharing
from hdet.engine.health import Health
from hdet.engine.lasting import Lasting
from hdet.policies.base import Policy
from hdet.replicas import Replicas, Undone, is_dtensor, is_flat, refuse_wiring
from hdet.weights.outer import OuterStep

__all__ = ["Attendance", "refuse_elastic"]

_PURPOSES = ("sync", "converge")
_T = TypeVar("_T")


class Attendance:
    """The roll of a meeting.

    Args:
        caller: begins the errors.
        replicas: who may come.
        sharing: how many sets of values those who are here make.
        fan_out: what was dealt in this round.
        lasting: what all must believe.
        drift: whether they are still one model, where nothing makes them so.
        health: how they are.
    """

    def __init__(
        self,
        caller: str,
        replicas: Replicas,
        sharing: GradientSharing,
        fan_out: FanOut,
        lasting: Lasting,
        drift: Drift,
        health: Health,
    ) -> None:
        self._caller = caller
        self._replicas = replicas
        self._sharing = sharing
        self._fan_out = fan_out
        self._lasting = lasting
        self._drift = drift
        self._health = health
        #: For every rank that has had values since the round began, whose they are; None: all, in order.
        self._seats: dict[int, int] | None = None
        #: Ranks that have no part in the mean.
        self.joined: tuple[int, ...] = ()
        self.odd: tuple[str, ...] = ()
        #: How every rank is, if that was told: on gradients of their own it is asked with the losses.
        self.norms: list[list[float]] = []

    @contextmanager
    def meeting(
        self, purpose: Literal["sync", "converge"], where: Callable[[], tuple[int, int]]
    ) -> Iterator[None]:
        """Come together. ``where`` tells step and round, which those who join learn on entering."""
        self._seats, self.joined, self.odd, self.norms = None, (), (), []
        with ExitStack() as held:
            if self._replicas.elastic:
                with self._fan_out.at_base():  # a state that is handed to one who joins has no own values
                    held.enter_context(self._replicas.meeting())
            elif self._sharing.arms != self._fan_out.arms:
                self._nobody(self._sharing.arms)
            if self._replicas.elastic or self._replicas.ranks > self._replicas.here:
                self._call_the_roll(purpose, where())
            yield
            self._replicas.about_to("")

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
        fan_out, seat = self._fan_out, -1 if self._fan_out.arm is None else self._fan_out.arm
        self._replicas.about_to(f"the {purpose} after step {where[0]}")
        came_for = [float(_PURPOSES.index(purpose)), *map(float, where)]
        believes = [self._lasting.digest(), self._drift.checksum(purpose)]
        told: list[float | Tensor] = [] if self._sharing.own_gradients else self._health.row()
        rows = self._replicas.gather_ranks([*came_for, float(fan_out.arms), float(seat), *believes, *told])
        if any(row[:3] != rows[0][:3] for row in rows):
            self._object(rows)
        if any(row[5] != rows[0][5] for row in rows):
            self._lasting.object()
        self.odd += self._drift.judge([row[6] for row in rows])
        self.norms = [row[7:] for row in rows] if told else []
        if self._replicas.elastic:
            self._seat(rows)

    def _object(self, rows: Sequence[Sequence[float]]) -> None:
        """Not all came for the same thing."""
        if self._replicas.elastic:
            seen = ", ".join(f"{_PURPOSES[int(row[0])]} after step {int(row[1])}" for row in rows)
            raise Undone(f"the replicas came for different things ({seen})")
        seen = "; ".join(
            f"rank {r} is at the {_PURPOSES[int(row[0])]} after step {int(row[1])} (round {int(row[2])})"
            for r, row in enumerate(rows)
        )
        raise RuntimeError(
            f"{self._caller}.step: the ranks are at different steps {[int(row[1]) for row in rows]}: {seen}; "
            "every rank must take the same optimizer steps, call step() after each, and converge() where the "
            "others do"
        )

    def _seat(self, rows: Sequence[Sequence[float]]) -> None:
        """Who had which values, where replicas may have come or gone since they were dealt."""
        fan_out = self._fan_out
        if len({row[3] for row in rows}) > 1:
            self._nobody(len(rows))
            return
        self._seats = {rank: int(row[4]) for rank, row in enumerate(rows) if row[4] >= 0}
        if self._seats:
            self.joined = tuple(rank for rank in range(len(rows)) if rank not in self._seats)
        # In the first round of all nobody knew of the others, and all were the one set of values there was.
        if self.joined or len(rows) != fan_out.arms > 1:
            self.odd += (
                f"{len(rows)} replicas are here, {len(self.joined)} of them new; values were dealt to "
                f"{fan_out.arms}",
            )

    def _nobody(self, here: int) -> None:
        self._seats = {}
        self.odd += (
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
