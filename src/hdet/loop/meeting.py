"""A sync, in order: probe, compare beside the first sums, mean, probe again, one gather.

What comes out is the same on every rank, so that all decide alike without another word.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from hdet.loop.checks import Agreement
from hdet.loop.converge import Converge, Measured, predicted_distances
from hdet.loop.fan_out import FanOut
from hdet.loop.health import Health, Watch, lost_buffers, overwritten
from hdet.loop.policy import Context, Policy, Sample
from hdet.loop.training_loss import TrainingLoss, mean_losses, sample_of
from hdet.replicas import raise_together

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
        collinear: whether replicas diverge along one line, so that their distance follows from their
            multipliers.
    """

    def __init__(
        self, context: Context, fan_out: FanOut, agreement: Agreement, converge: Converge, *, collinear: bool
    ) -> None:
        self._caller = context.caller
        self._replicas = context.replicas
        self._alone = context.replicas.world_size <= context.replicas.local_count
        self._own_gradients = context.own_gradients
        self._diverges = context.diverges
        self._fan_out = fan_out
        self._agreement = agreement
        self._converge = converge
        self._collinear = collinear
        self._health = Health(context.caller, context.replicas, converge)
        self._watch = Watch(context.caller, own_gradients=context.own_gradients)

    def sync(
        self, steps: int, round: int, training: TrainingLoss, judging: Sequence[Policy], taken: int
    ) -> Gathered:
        """Meet, after so many optimizer steps were ``taken``. A collective: every rank calls it after the
        same step."""
        where = f"{self._caller}.step: step {steps}: the probe"

        def at_own() -> list[_Row]:
            return [policy.at_own() for policy in judging]

        def at_mean() -> list[_Row]:
            with self._fan_out.at_base():
                return [policy.at_mean() for policy in judging]

        probes = any(policy.probes for policy in judging)
        divergence = Measured(0.0, (0.0,) * len(self._fan_out.learning_rates), 0.0)
        if self._diverges:
            # The probe comes before the mean: a replica that diverged is judged at its own weights.
            of_own, failure = self._replicas.attempt(where, at_own)
            own_losses = [policy.own_loss for policy in judging if policy.own_loss is not None]
            with self._fan_out.at_base():
                divergence, events, began_apart = self._average(
                    "sync", steps, round, training, own_losses, where, failure
                )
                of_mean = self._replicas.together(where, at_mean) if probes else at_mean()
        else:
            events, began_apart = self._compare(steps, round), self._agreement.check_start()

            def both() -> tuple[list[_Row], list[_Row]]:
                return at_own(), at_mean()

            of_own, of_mean = self._replicas.together(where, both) if probes else both()
        measured = [[*own, *mean] for own, mean in zip(of_own or (), of_mean, strict=True)]
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
            _, events, _ = self._average("converge", steps, round, training)
        self._replicas.about_to("")
        return events

    def _compare(self, steps: int, round: int) -> tuple[str, ...]:
        """What the ranks believe, where nothing is averaged."""
        if self._alone:
            return ()
        self._replicas.about_to(f"the sync after step {steps}")
        return self._agreement.judge(self._replicas.gather_ranks(self._agreement.row("sync", steps, round)))

    def _average(
        self,
        purpose: Literal["sync", "converge"],
        steps: int,
        round: int,
        training: TrainingLoss,
        own_losses: Sequence[float | Tensor] = (),
        where: str = "",
        failure: Exception | None = None,
    ) -> tuple[Measured, tuple[str, ...], bool]:
        """The mean of the replicas that are well; who is not takes it, and has no part in it. Also what to
        log, and whether the round began with weights that differed.

        What the ranks compare travels beside the first sums, and is judged before anything is written: what
        each believes, whether its probe failed, its loss so far, and the norms of what it brings.
        """
        self._replicas.about_to(f"the {purpose} after step {steps}")
        believes = self._agreement.row(purpose, steps, round)
        at = len(believes)
        own = own_losses[0] if own_losses else training.total()
        health = self._health.row() if self._replicas.size > 1 else []
        hear = self._replicas.start_gather(
            [*believes, float(failure is not None), own, float(training.count), *health]
        )
        compared: list[str] = []
        left_out: list[str] = []
        began_apart = False

        def lost() -> Collection[int]:
            nonlocal began_apart
            rows = hear()
            compared.extend(self._agreement.judge([row[:at] for row in rows]))
            raise_together(where, failure, [row[at] for row in rows])
            began_apart = self._agreement.check_start()
            if purpose == "converge":
                training.meet([row[at + 1 : at + 3] for row in rows])
            if not health:
                return ()
            # On gradients of their own the loss tells, too: held out, or else the training loss so far.
            losses = self._replicas.by_replica([row[at + 1 : at + 2] for row in rows])
            of_each = [loss for (loss,) in losses] if self._own_gradients else ()
            found = self._health.lost([row[at + 3 :] for row in rows], of_each)
            if len(found) == self._replicas.size:
                first = found[min(found)]
                left_out.append(
                    f"no replica can enter the mean, the weights are lost: of the first one {first}"
                )
                return ()
            left_out.extend(f"replica {r} left out of the mean: {found[r]}" for r in sorted(found))
            return found

        divergence, events = self._converge(lost)
        return divergence, (*compared, *events, *left_out), began_apart


def _of_each(rows: Sequence[Sequence[float]], lengths: Sequence[int]) -> list[list[list[float]]]:
    """Rows of several policies' numbers, one after the other, as rows of each policy.

    >>> _of_each([[1, 2, 3], [4, 5, 6]], [1, 2])
    [[[1], [4]], [[2, 3], [5, 6]]]
    """
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    return [
        [list(row[end - length : end]) for row in rows] for end, length in zip(ends, lengths, strict=True)
    ]
