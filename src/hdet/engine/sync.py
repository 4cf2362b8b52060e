"""A sync's collectives, in order: probe, mean, probe again, one gather; and whether the ranks still agree.

What comes out is the same on every rank, so that all decide alike without another word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from hdet.engine.converge import Converge
from hdet.engine.divergence import Measured
from hdet.engine.fan_out import FanOut
from hdet.engine.gradients import Sharing
from hdet.engine.training_loss import TrainingLoss, mean_losses
from hdet.policies.held_out import HeldOut, judge
from hdet.policies.horizon import Horizon
from hdet.replicas import Replicas

__all__ = ["Meeting", "Met"]

#: Step, round and distance, then the four numbers of a training loss.
_LOSS_AT, _COMPARED_AT = 3, 7


@dataclass(frozen=True, slots=True)
class Met:
    """What is known after a meeting; ``divergence`` alone is this rank's own.

    ``losses`` are of every rank, ``held_out`` of every arm, and empty without a probe; ``readings`` are a
    horizon's; ``odd`` is what should be told.
    """

    divergence: Measured
    distances: tuple[float, ...]
    losses: tuple[float, ...]
    held_out: tuple[float, ...]
    held_out_mean: float
    readings: list[list[float]]
    odd: tuple[str, ...]


class Meeting:
    """Where the replicas of an ensemble meet.

    Args:
        caller: begins the errors.
        replicas: who meets.
        sharing: which of them share gradients.
        fan_out: whose values stand where.
        converge: the mean of the weights.
        held_out: judges replicas by a probe, if given.
        diverges: whether there is anything to average.
    """

    def __init__(
        self,
        caller: str,
        replicas: Replicas,
        sharing: Sharing,
        fan_out: FanOut,
        converge: Converge,
        held_out: HeldOut | None,
        *,
        diverges: bool,
    ) -> None:
        self._caller = caller
        self._replicas = replicas
        self._sharing = sharing
        self._fan_out = fan_out
        self._converge = converge
        self._held_out = held_out
        self._diverges = diverges

    def __call__(self, steps: int, round: int, signal: TrainingLoss, horizon: Horizon | None) -> Met:
        """Meet. A collective: every rank calls it after the same step."""
        where = f"{self._caller}.step: step {steps}: the probe"
        # The probe comes before the mean: a replica that diverged is judged at its own points.
        probed = self._replicas.together(where, horizon.measure) if horizon is not None else []
        compared = self._replicas.together(where, self._held_out.at_own) if self._held_out else []
        undiverged = Measured(0.0, (0.0,) * len(self._fan_out.learning_rates), 0.0)
        with self._fan_out.at_base():
            divergence, odd = self.average(signal, compared) if self._diverges else (undiverged, ())
            compared += self._replicas.together(where, self._held_out.at_mean) if self._held_out else []
        own: list[float | Tensor] = [
            float(steps),
            float(round),
            divergence.distance,
            *signal.row(),
            *compared,
        ]
        own += [axis.base for axis in self._fan_out.axes if axis.may_part]
        along = [*(horizon.displacements() if horizon is not None else ()), *probed]
        rows = self._replicas.gather([*own, *along])
        self._check_steps(rows)
        self._check_bases([row[_COMPARED_AT + len(compared) : len(own)] for row in rows])
        pairs = [(row[_COMPARED_AT], row[_COMPARED_AT + 1]) for row in rows] if compared else []
        seen, mean = judge(pairs) if pairs else ((), math.nan)
        return Met(
            divergence=divergence,
            distances=tuple(row[2] for row in rows),
            losses=mean_losses([row[_LOSS_AT:_COMPARED_AT] for row in rows]),
            held_out=self._sharing.by_arm(seen),
            held_out_mean=mean,
            readings=[row[len(own) :] for row in rows],
            odd=odd,
        )

    def average(
        self, signal: TrainingLoss, compared: Sequence[float | Tensor] = ()
    ) -> tuple[Measured, tuple[str, ...]]:
        """The mean of the replicas; on gradients of their own, of those that were not lost.

        Who was is seen by the held-out loss, or else by the training loss so far.
        """
        if not self._sharing.own_gradients:
            return self._converge()
        own = compared[0] if compared else signal.total()
        losses = [row[0] for row in self._replicas.gather([own])]
        lost = [r for r, loss in enumerate(losses) if not math.isfinite(loss)]
        if not lost:
            return self._converge()
        if len(lost) == len(losses):
            divergence, odd = self._converge()
            return divergence, (*odd, "no replica has a finite loss: the weights are lost")
        divergence, odd = self._converge(lost)
        out = [f"replica {r} left out of the mean: its loss is {losses[r]}" for r in lost]
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
