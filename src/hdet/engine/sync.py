"""A sync's collectives, in order: probe, mean, probe again, one gather; and whether the ranks still agree.

What comes out is the same on every rank, so that all decide alike without another word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from hdet.engine.attendance import Attendance
from hdet.engine.converge import Converge
from hdet.engine.divergence import Measured
from hdet.engine.fan_out import FanOut
from hdet.engine.gradients import GradientSharing
from hdet.engine.starts import Starts
from hdet.engine.training_loss import TrainingLoss, mean_losses, sample_of
from hdet.engine.within_arm import WithinArm
from hdet.history import SyncRecord
from hdet.policies.base import Decided, Policy, Sample
from hdet.replicas import Replicas

__all__ = ["Gathered", "Sync", "record_of"]

#: A row begins with step, round and distance, then the five numbers of a training loss.
_LOSS_AT, _BASES_AT = 3, 8
_Row = Sequence[float | Tensor]


@dataclass(frozen=True, slots=True)
class Gathered:
    """What is known after a sync; ``divergence`` alone is this rank's own.

    ``losses`` and ``distances`` are of every replica, ``training`` of all together; ``rows`` has, for each
    policy that judges, what it measured on every replica; ``odd`` is what should be told,
    ``began_apart`` whether the round began with weights that differed."""

    divergence: Measured
    distances: tuple[float, ...]
    losses: tuple[float, ...]
    training: Sample
    rows: list[list[list[float]]]
    odd: tuple[str, ...]
    began_apart: bool = False


class Sync:
    """Where the replicas of a run meet.

    Args:
        caller: begins the errors.
        replicas: who meets.
        sharing: which of them share gradients.
        fan_out: whose values stand where.
        attendance: who is here, and is heard.
        converge: the mean of the weights.
        starts: the weights that the replicas began with.
        within: the mean of an arm's, where its ranks share weights instead of gradients.
        diverges: whether there is anything to average.
    """

    def __init__(
        self,
        caller: str,
        replicas: Replicas,
        sharing: GradientSharing,
        fan_out: FanOut,
        attendance: Attendance,
        converge: Converge,
        starts: Starts,
        within: WithinArm | None = None,
        *,
        diverges: bool,
    ) -> None:
        self._caller = caller
        self._replicas = replicas
        self._sharing = sharing
        self._fan_out = fan_out
        self._attendance = attendance
        self._converge = converge
        self._within = within
        self._starts = starts
        self._diverges = diverges

    def __call__(self, steps: int, round: int, training: TrainingLoss, judging: Sequence[Policy]) -> Gathered:
        """Meet. A collective: every rank calls it after the same step."""
        began_apart = self._starts.check()
        where = f"{self._caller}.step: step {steps}: the probe"
        heard = () if self._within is None else self._within.meet(self._fan_out)
        # The probe comes before the mean: a replica that diverged is judged at its own points.
        at_own = self._measure(where, [(policy, policy.at_own) for policy in judging])
        own_losses = [policy.own_loss for policy in judging if policy.own_loss is not None]
        undiverged = Measured(0.0, (0.0,) * len(self._fan_out.learning_rates), 0.0)
        with self._fan_out.at_base():
            divergence, odd = self.average(training, own_losses) if self._diverges else (undiverged, ())
            at_mean = self._measure(where, [(policy, policy.at_mean) for policy in judging])
        row: list[float | Tensor] = [float(steps), float(round), divergence.distance, *training.row()]
        bases = [axis.base for axis in self._fan_out.axes if axis.may_part]
        measured = [[*own, *mean] for own, mean in zip(at_own, at_mean, strict=True)]
        every = self._replicas.gather_ranks([*row, *bases, *(value for own in measured for value in own)])
        self._check_steps(every)
        measured_at = _BASES_AT + len(bases)
        self._check_bases([row[_BASES_AT:measured_at] for row in every])
        rows = self._attendance.heard(self._replicas.of_replicas(every))
        losses = [row[_LOSS_AT:_BASES_AT] for row in rows]
        return Gathered(
            divergence=divergence,
            distances=tuple(row[2] for row in rows),
            losses=mean_losses(losses),
            training=sample_of(losses),
            rows=_apart([row[measured_at:] for row in rows], [len(own) for own in measured]),
            odd=(*heard, *self._attendance.odd, *odd),
            began_apart=began_apart,
        )

    def _measure(self, where: str, parts: Sequence[tuple[Policy, Callable[[], _Row]]]) -> list[_Row]:
        """What each policy measures; a probe that raises on one rank raises on all."""
        if not any(policy.probes for policy, _ in parts):
            return [measure() for _, measure in parts]
        measured: list[_Row] = []

        def measure_all() -> Sequence[float]:
            measured.extend(measure() for _, measure in parts)
            return ()

        self._replicas.together(where, measure_all)
        return measured

    def average(
        self, training: TrainingLoss, own_losses: Sequence[float | Tensor] = (), *, ends_round: bool = True
    ) -> tuple[Measured, tuple[str, ...]]:
        """The mean of the replicas; on gradients of their own, of those that were not lost.

        Who was is seen by the held-out loss, or else by the training loss so far; with an outer optimizer,
        which would remember it, by the weights as well. At the end of a round that one steps.
        """
        self._starts.check()  # before they are mixed
        if not self._sharing.own_gradients:
            return self._converge(ends_round=ends_round)
        own = own_losses[0] if own_losses else training.total()
        outer = self._converge.outer
        rows = self._replicas.gather([own, 1.0 if outer is None or outer.is_finite() else math.nan])
        joined = self._attendance.joined  # they hold another one's weights, and take the mean of the others
        lost = [r for r, row in enumerate(rows) if r not in joined and not all(map(math.isfinite, row))]
        if not lost:
            return self._converge(joined, ends_round=ends_round)
        if len(lost) == len(rows) - len(joined):
            divergence, odd = self._converge(ends_round=ends_round)
            return divergence, (*odd, "no replica has a finite loss: the weights are lost")
        divergence, odd = self._converge([*lost, *joined], ends_round=ends_round)
        out = [f"replica {r} left out of the mean: {_why_lost(rows[r][0])}" for r in lost]
        return divergence, (*odd, *out)

    def _check_steps(self, rows: Sequence[Sequence[float]]) -> None:
        """All ranks are at the same step of the same round."""
        if len({(row[0], row[1]) for row in rows}) > 1:
            raise RuntimeError(
                f"{self._caller}.step: the ranks are at different steps {[int(row[0]) for row in rows]} of "
                f"rounds {[int(row[1]) for row in rows]}; every rank must take the same optimizer steps"
            )

    def _check_bases(self, rows: Sequence[Sequence[float]]) -> None:
        """Values that stand in modules can be loaded, or written, on one rank alone."""
        if any(row != rows[0] for row in rows):
            names = [axis.name for axis in self._fan_out.axes if axis.may_part]
            k = next(k for k in range(len(names)) if len({row[k] for row in rows}) > 1)
            raise RuntimeError(
                f"{self._caller}.step: the base of {names[k]} must be the same on all ranks, got "
                f"{', '.join(f'{row[k]:g}' for row in rows)}; load the same checkpoint everywhere, saved "
                "within at_base(), and write the value on all ranks or none"
            )


def record_of(
    step: int,
    round: int,
    gathered: Gathered,
    predicted: tuple[float, ...],
    decided: Decided,
    events: tuple[str, ...],
    seconds: float,
) -> SyncRecord:
    """What a sync has seen and done, as the history keeps it."""
    return SyncRecord(
        step=step,
        round=round,
        losses=gathered.losses,
        weights=decided.weights,
        hyperparameters=decided.hyperparameters,
        distance_measured=gathered.distances,
        distance_predicted=predicted,
        milliseconds=seconds * 1e3,
        events=events,
        horizon=decided.horizon,
        held_out=decided.held_out,
        held_out_mean=decided.held_out_mean,
    )


def _why_lost(loss: float) -> str:
    return "its weights are not finite" if math.isfinite(loss) else f"its loss is {loss}"


def _apart(rows: Sequence[Sequence[float]], lengths: Sequence[int]) -> list[list[list[float]]]:
    """Rows of several policies' numbers, one after the other, as rows of each policy.

    >>> _apart([[1, 2, 3], [4, 5, 6]], [1, 2])
    [[[1], [4]], [[2, 3], [5, 6]]]
    """
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    return [
        [list(row[end - length : end]) for row in rows] for end, length in zip(ends, lengths, strict=True)
    ]
