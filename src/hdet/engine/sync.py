"""A sync's collectives, in order: probe, mean, probe again, one gather. The roll was called before.

What comes out is the same on every rank, so that all decide alike without another word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from hdet.engine.attendance import Attendance
from hdet.engine.converge import Converge
from hdet.engine.divergence import Measured
from hdet.engine.fan_out import FanOut
from hdet.engine.gradients import GradientSharing
from hdet.engine.health import Health
from hdet.engine.starts import Starts
from hdet.engine.training_loss import TrainingLoss, mean_losses, sample_of
from hdet.engine.within_arm import WithinArm
from hdet.history import SyncRecord
from hdet.policies.base import Decided, Policy, Sample
from hdet.replicas import Replicas

__all__ = ["Gathered", "Sync", "record_of"]

#: A row begins with step, round and distance, then the five numbers of a training loss.
_LOSS_AT, _MEASURED_AT = 3, 8
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
        health: who may have a part in it.
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
        health: Health,
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
        self._health = health
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
        measured = [[*own, *mean] for own, mean in zip(at_own, at_mean, strict=True)]
        row: list[float | Tensor] = [float(steps), float(round), divergence.distance, *training.row()]
        row += [value for own in measured for value in own]
        rows = self._attendance.heard(self._replicas.gather(row))
        losses = [row[_LOSS_AT:_MEASURED_AT] for row in rows]
        return Gathered(
            divergence=divergence,
            distances=tuple(row[2] for row in rows),
            losses=mean_losses(losses),
            training=sample_of(losses),
            rows=_apart([row[_MEASURED_AT:] for row in rows], [len(own) for own in measured]),
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
        """The mean of the replicas that are well; who is not takes it, and has no part in it.

        On gradients of their own that is seen by the held-out loss, or else the training loss so far, too. At
        the end of a round an outer optimizer steps.
        """
        self._starts.check()  # before they are mixed
        joined = self._attendance.joined  # they hold another one's weights, and take the mean of the others
        lost = self._lost(own_losses[0] if own_losses else training.total(), joined)
        if lost and len(lost) == self._replicas.size - len(joined):
            first = lost[min(lost)]
            divergence, odd = self._converge(ends_round=ends_round)
            return divergence, (
                *odd,
                f"no replica can enter the mean, the weights are lost: of the first one {first}",
            )
        divergence, odd = self._converge([*lost, *joined], ends_round=ends_round)
        return divergence, (*odd, *(f"replica {r} left out of the mean: {lost[r]}" for r in sorted(lost)))

    def _lost(self, own: float | Tensor, joined: Sequence[int]) -> dict[int, str]:
        """Who must not enter the mean, and why; the same on all ranks."""
        if not self._sharing.own_gradients:
            if not self._replicas.several:
                return {}
            norms = self._attendance.norms or self._replicas.gather_ranks(self._health.row())
            return self._health.lost(norms)
        rows = self._replicas.gather_ranks([own, *self._health.row()])
        losses = [row[0] for row in self._replicas.of_replicas(rows)]
        return self._health.lost([row[1:] for row in rows], losses, joined)


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


def _apart(rows: Sequence[Sequence[float]], lengths: Sequence[int]) -> list[list[list[float]]]:
    """Rows of several policies' numbers, one after the other, as rows of each policy.

    >>> _apart([[1, 2, 3], [4, 5, 6]], [1, 2])
    [[[1], [4]], [[2, 3], [5, 6]]]
    """
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    return [
        [list(row[end - length : end]) for row in rows] for end, length in zip(ends, lengths, strict=True)
    ]
