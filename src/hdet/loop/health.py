"""Who may have a part in the mean, and signs that a set-up is not what the method assumes.

Poison on one replica must not reach the others.

Before anything is averaged every replica sends the norms of its weights and of all else that travels with
them. One that is not finite, or has exploded where the others have not, is left out: the mean is that of the
others, and it takes that, weights, buffers and optimizer state. To need it again and again is no accident.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from torch import Tensor

from hdet.hyperparameters import Axis
from hdet.loop.converge import Converge
from hdet.replicas import Replicas

__all__ = ["Health", "Watch", "blind_signals", "lost_buffers", "overwritten"]

#: So many times what the soundest replica has, or a sound one has ever had, is no training any more: of the
#: weights' norm; of the loss, if the weights are larger, too (a loss near zero has any ratio); and of all
#: else, where a gradient that spikes leaves its square.
_WEIGHTS, _LOSS, _LARGER, _REST = 1e3, 1e3, 1.5, 1e12
#: So often in a row the same replica is taken back into the mean.
_IN_A_ROW = 8
#: Replicas on a shared gradient lie on one line. If they are this many times as far apart, something else has
#: moved them; after so many syncs in a row it is certain. Distances are taken in float32, and weights are
#: rounded at every step.
_TOO_FAR, _TOO_FAR_IN_A_ROW, _ROUNDINGS = 2.0, 3, 4.0


class Health:
    """Judges replicas by what they tell at a sync."""

    def __init__(self, caller: str, replicas: Replicas, converge: Converge) -> None:
        self._caller = caller
        self._replicas = replicas
        self._converge = converge
        #: The largest norms and loss with which a replica was sound.
        self._usual = [0.0, 0.0, 0.0]
        self._in_a_row: dict[int, int] = {}

    def row(self) -> list[float | Tensor]:
        """The norm of this replica's weights, and of all else; NaN if one is not finite. Waits for the
        device."""
        return [self._replicas.norm_of(tensors) for tensors in self._converge.travels()]

    def lost(self, norms: Sequence[Sequence[float]], losses: Sequence[float] = ()) -> dict[int, str]:
        """Replicas that must not enter the mean, and why.

        Args:
            norms: :meth:`row` of every rank.
            losses: of every replica, where each has gradients of its own; () where they tell of all alike.

        Raises RuntimeError on all ranks where the same one is lost again and again.
        """
        parts = self._replicas.ranks_per_replica
        sizes = [norms[at : at + parts] for at in range(0, len(norms), parts)]
        every = range(len(sizes))
        lost = {r: why for r in every if (why := _not_finite(sizes[r], losses[r] if losses else 0.0))}
        sound = {
            r: (*(max(part[k] for part in sizes[r]) for k in (0, 1)), abs(losses[r]) if losses else 0.0)
            for r in every
            if r not in lost
        }
        lost |= self._exploded(sound)
        self._count(lost)
        return lost

    def _exploded(self, sound: Mapping[int, Sequence[float]]) -> dict[int, str]:
        """Of replicas that are finite, by the norms of their weights and of all else, and their losses."""
        if not sound:
            return {}
        least = [min(column) for column in zip(*sound.values(), strict=True)]
        usual = [max(both) for both in zip(self._usual, least, strict=True)]
        found: dict[int, str] = {}
        for r, (weights, rest, loss) in sound.items():
            if weights > _WEIGHTS * usual[0] > 0:
                found[r] = f"the norm of its weights is {weights:.3g}, another's {least[0]:.3g}"
            elif loss > _LOSS * usual[2] > 0 and weights > _LARGER * least[0]:
                found[r] = f"its loss is {loss:.3g}, another's {least[2]:.3g}"
            elif rest > _REST * usual[1] > 0:
                found[r] = f"the norm of its buffers and state is {rest:.3g}, another's {least[1]:.3g}"
        well = [values for r, values in sound.items() if r not in found]
        self._usual = [max(column) for column in zip(self._usual, *well, strict=True)]
        return found

    def _count(self, lost: dict[int, str]) -> None:
        self._in_a_row = {r: self._in_a_row.get(r, 0) + 1 for r in lost}
        if len(lost) == self._replicas.size:
            return  # nobody is left to average: that has a warning of its own
        for r, times in self._in_a_row.items():
            if times >= _IN_A_ROW:
                raise RuntimeError(
                    f"{self._caller}: replica {r} was lost at {times} syncs in a row ({lost[r]}), while "
                    "others were not: look at its data and at its device, or narrow what it explores"
                )


def _not_finite(parts: Sequence[Sequence[float]], loss: float) -> str:
    """One part that is not finite makes the whole replica so."""
    if not math.isfinite(loss):
        return f"its loss is {loss}"
    if not all(math.isfinite(weights) for weights, _ in parts):
        return "its weights are not finite"
    if not all(math.isfinite(rest) for _, rest in parts):
        return "its buffers or optimizer state are not finite"
    return ""


class Watch:
    """Looks at every sync of replicas that diverge, and raises where a warning repeats itself."""

    def __init__(self, caller: str, *, own_gradients: bool) -> None:
        self._caller = caller
        self._own_gradients = own_gradients
        self._too_far = 0

    def __call__(
        self,
        step: int,
        losses: Sequence[float],
        measured: Sequence[float],
        predicted: Sequence[float],
        rounding: float,
        *,
        began_apart: bool,
        shares: bool = False,
    ) -> dict[str, str]:
        """Warnings by kind, from the replicas' losses and their distances from the mean."""
        warnings: dict[str, str] = {}
        if len(losses) > 1 and len(set(losses)) == 1 and math.isfinite(losses[0]):
            warnings["reduced loss"] = (
                "the loss was the same on all ranks for a whole round, as an all-reduced loss is: it cannot "
                "tell replicas apart; pass each rank's own loss"
            )
        distances = f"the replicas are {max(measured):.3g} apart where {max(predicted):.3g} was expected"
        if max(predicted) > rounding and max(measured) < 0.1 * max(predicted):
            warnings["no fan-out"] = (
                f"{distances}: something undoes the fan-out, such as weights broadcast or averaged elsewhere"
            )
        # NaN is no prediction. A warm start's noise, or a resume within a round, is no sign either.
        far = max(measured) > _TOO_FAR * max(predicted) + _ROUNDINGS * rounding and not began_apart
        self._too_far = self._too_far + 1 if far else 0
        if far:
            warnings["too far"] = (
                f"{distances}: more than the learning rate makes them differ, such as gradients that are not "
                "shared (DistributedDataParallel is missing), or copies of the weights that the optimizer "
                "keeps"
            )
        if self._too_far >= _TOO_FAR_IN_A_ROW:
            raise RuntimeError(
                f"{self._caller}.step: step {step}: {warnings['too far']}; so at {self._too_far} syncs in a "
                "row"
            )
        if shares and max(measured) > _ROUNDINGS * rounding and not began_apart:
            warnings["not shared"] = (
                f"the replicas are {max(measured):.3g} apart, and with gradients='switch' they should have "
                "one gradient until a window does not improve: wrap the model in DistributedDataParallel, or "
                "average gradients while trains_alone is False"
            )
        elif self._own_gradients and not shares and len(measured) > 1 and max(measured) <= rounding:
            warnings["no divergence"] = (
                "the replicas are at the same weights although each arm has gradients of its own: something "
                "shares them, such as DistributedDataParallel over all ranks, which AutoTune knows if the "
                "probe has the wrapped model, or all have the same batches"
            )
        return warnings


def blind_signals(axes: Sequence[Axis], *, own_gradients: bool, by_training_loss: bool) -> list[str]:
    """What will happen where a hyperparameter is explored by a signal that cannot judge it."""
    warnings = []
    explored = [axis for axis in axes if axis.spread > 0]
    blind = [axis.name for axis in explored if axis.needs_own_gradients and not own_gradients]
    if blind:
        warnings.append(
            f"{', '.join(blind)} acts through the gradient, and gradients are shared by all replicas: their "
            "weights will not differ by it, and what is seen is its direct effect on the loss alone. Use "
            "gradients='none' or hdet.Arms"
        )
    greedy = [axis.name for axis in explored if axis.regulariser and by_training_loss]
    if greedy:
        warnings.append(
            f"{', '.join(greedy)} is judged by the training loss, which is lowest without regularisation: it "
            "will be driven to its lower bound. Give probe=hdet.Probe(...)"
        )
    return warnings


def overwritten(axes: Sequence[Axis]) -> dict[str, str]:
    """Hyperparameters that somebody else writes as well."""
    return {
        f"overwritten {axis.name}": f"{axis.name} is written by somebody else as well, such as a schedule "
        "that cycles the momentum: what the controller finds does not last; turn that off, or do not explore "
        "it"
        for axis in axes
        if axis.overwritten
    }


def lost_buffers(names: Sequence[str]) -> dict[str, str]:
    """Buffers that were finite before training, and are not."""
    which = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return {
        "lost buffers": f"buffers of the model are not finite any more ({which}): in eval mode it computes "
        "with them, and a probe, which normalises by the batch, may not see it; look at the batches since "
        "the last sync, or let hdet.Guard take such steps back"
    }
