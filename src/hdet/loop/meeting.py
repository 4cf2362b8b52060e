"""A sync's collectives, in order: compare, probe, mean, probe again, one gather.

What comes out is the same on every rank, so that all decide alike without another word.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from hdet.loop.checks import Agreement
from hdet.loop.converge import Converge, Measured, predicted_distances
from hdet.loop.fan_out import FanOut
from hdet.loop.health import Health, Watch, lost_buffers, overwritten
from hdet.loop.policy import Context, Policy, Sample
from hdet.loop.training_loss import TrainingLoss, mean_losses, sample_of

__all__ = ["Gathered", "Meeting"]

#: A row begins with step, round and distance, the five numbers of a training loss and optimizer steps.
_LOSS_AT, _TAKEN_AT, _MEASURED_AT = 3, 8, 9
#: Replicas may take unlike numbers of steps, since a GradScaler skips some, by this share of them.
_UNLIKE = 0.25
_Row = Sequence[float | Tensor]


@dataclass(frozen=True, slots=True)
class Gathered:
    """What is known after a sync; ``divergence`` alone is this rank's own.

    Optimizer steps ``taken``, ``losses``, ``distances`` and ``predicted`` distances (NaN where nothing
    predicts them) are of every replica, ``training`` of all together; ``rows`` has, for each policy that
    judges, what it measured on every replica; ``events`` are to be logged, ``began_apart`` whether the round
    began with weights that differed."""

    divergence: Measured
    distances: tuple[float, ...]
    predicted: tuple[float, ...]
    taken: tuple[float, ...]
    losses: tuple[float, ...]
    training: Sample
    rows: list[list[list[float]]]
    events: tuple[str, ...]
    began_apart: bool


class Meeting:
    """Where the replicas of a run meet.

    Args:
        context: the run.
        fan_out: the hyperparameters and their levels.
        agreement: what they must agree on.
        converge: the mean of the weights.
        collinear: whether replicas diverge along one line, so that their distance follows from their
            multipliers.
    """

    def __init__(
        self, context: Context, fan_out: FanOut, agreement: Agreement, converge: Converge, *, collinear: bool
    ) -> None:
        self._caller = context.caller
        self._replicas = context.replicas
        self._own_gradients = context.own_gradients
        self._diverges = context.diverges
        self._fan_out = fan_out
        self._agreement = agreement
        self._converge = converge
        self._collinear = collinear
        self._health = Health(context.caller, context.replicas, converge)
        self._watch = Watch(context.caller, own_gradients=context.own_gradients)
        #: The norms of every rank, if gathered already: on gradients of their own they come with the losses.
        self._norms: list[list[float]] = []

    def sync(
        self, steps: int, round: int, training: TrainingLoss, judging: Sequence[Policy], taken: int
    ) -> Gathered:
        """Meet, after so many optimizer steps were ``taken``. A collective: every rank calls it after the
        same step."""
        events = self._compare("sync", steps, round)
        began_apart = self._agreement.check_start()
        where = f"{self._caller}.step: step {steps}: the probe"
        # The probe comes before the mean: a replica that diverged is judged at its own weights.
        at_own = self._measure(where, [(policy, policy.at_own) for policy in judging])
        own_losses = [policy.own_loss for policy in judging if policy.own_loss is not None]
        divergence = Measured(0.0, (0.0,) * len(self._fan_out.learning_rates), 0.0)
        with self._fan_out.at_base():
            if self._diverges:
                divergence, left_out = self._average(training, own_losses)
                events += left_out
            at_mean = self._measure(where, [(policy, policy.at_mean) for policy in judging])
        measured = [[*own, *mean] for own, mean in zip(at_own, at_mean, strict=True)]
        row: list[float | Tensor] = [float(steps), float(round), divergence.distance, *training.row()]
        row += [float(taken)]
        row += [value for own in measured for value in own]
        rows = self._replicas.gather(row)
        losses = [row[_LOSS_AT:_TAKEN_AT] for row in rows]
        predicted = (math.nan,) * len(rows)
        if self._collinear:
            predicted = predicted_distances(self._fan_out.multipliers, divergence.displacements)
        self._replicas.about_to("")
        return Gathered(
            divergence=divergence,
            distances=tuple(row[2] for row in rows),
            predicted=predicted,
            taken=tuple(row[_TAKEN_AT] for row in rows),
            losses=mean_losses(losses),
            training=sample_of(losses),
            rows=_of_each([row[_MEASURED_AT:] for row in rows], [len(own) for own in measured]),
            events=events,
            began_apart=began_apart,
        )

    def warnings(self, steps: int, seen: Gathered, *, shares: bool = False) -> dict[str, str]:
        """What a user should know of this sync, by kind; ``shares``: until it the replicas had one gradient,
        whatever comes later. Raises where it has gone wrong too often."""
        if self._diverges:
            distances = seen.distances, seen.predicted, seen.divergence.rounding
            found = self._watch(steps, seen.losses, *distances, began_apart=seen.began_apart, shares=shares)
            return found | overwritten(self._fan_out.axes) | self._unlike_steps(seen.taken)
        # Where buffers are averaged, a replica that has lost one takes the others'.
        lost = self._converge.lost_buffers()
        return lost_buffers(lost) if lost else {}

    def _unlike_steps(self, taken: Sequence[float]) -> dict[str, str]:
        """Where every call of ``step()`` counts, nothing else tells that a rank calls it too often or too
        rarely; its own warning is not logged, but on rank 0."""
        least, most = min(taken), max(taken)
        if not self._own_gradients or most - least <= max(1, _UNLIKE * most):
            return {}
        return {
            "unlike steps": f"since the last sync replica {taken.index(least)} took {least:.0f} optimizer "
            f"steps, and replica {taken.index(most)} {most:.0f}: on every rank, call step() once after every "
            "optimizer.step()"
        }

    def converge(self, steps: int, round: int, training: TrainingLoss) -> tuple[str, ...]:
        """Average within a round (Eq. 3); what to log of it. A collective."""
        with self._fan_out.at_base():
            events = self._compare("converge", steps, round)
            events += self._average(training)[1]
            training.meet(self._replicas)
        self._replicas.about_to("")
        return events

    def _compare(self, purpose: Literal["sync", "converge"], steps: int, round: int) -> tuple[str, ...]:
        self._norms = []
        if self._replicas.world_size <= self._replicas.local_count:
            return ()
        self._replicas.about_to(f"the {purpose} after step {steps}")
        believes = self._agreement.row(purpose, steps, round)
        health: list[float | Tensor] = [] if self._own_gradients else self._health.row()
        rows = self._replicas.gather_ranks([*believes, *health])
        events = self._agreement.judge([row[: len(believes)] for row in rows])
        self._norms = [row[len(believes) :] for row in rows] if health else []
        return events

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

    def _average(
        self, training: TrainingLoss, own_losses: Sequence[float | Tensor] = ()
    ) -> tuple[Measured, tuple[str, ...]]:
        """The mean of the replicas that are well; who is not takes it, and has no part in it.

        On gradients of their own that is seen by the held-out loss, or else the training loss so far, too.
        """
        self._agreement.check_start()  # before they are mixed
        lost = self._lost(own_losses[0] if own_losses else training.total())
        if len(lost) == self._replicas.size:
            why = f"no replica can enter the mean, the weights are lost: of the first one {lost[min(lost)]}"
            divergence, events = self._converge()
            return divergence, (*events, why)
        divergence, events = self._converge([*lost])
        return divergence, (*events, *(f"replica {r} left out of the mean: {lost[r]}" for r in sorted(lost)))

    def _lost(self, own: float | Tensor) -> dict[int, str]:
        """Who must not enter the mean, and why; the same on all ranks."""
        if not self._own_gradients:
            if self._replicas.size == 1:
                return {}
            return self._health.lost(self._norms or self._replicas.gather_ranks(self._health.row()))
        rows = self._replicas.gather_ranks([own, *self._health.row()])
        losses = [row[0] for row in self._replicas.by_replica(rows)]
        return self._health.lost([row[1:] for row in rows], losses)


def _of_each(rows: Sequence[Sequence[float]], lengths: Sequence[int]) -> list[list[list[float]]]:
    """Rows of several policies' numbers, one after the other, as rows of each policy.

    >>> _of_each([[1, 2, 3], [4, 5, 6]], [1, 2])
    [[[1], [4]], [[2, 3], [5, 6]]]
    """
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    return [
        [list(row[end - length : end]) for row in rows] for end, length in zip(ends, lengths, strict=True)
    ]
