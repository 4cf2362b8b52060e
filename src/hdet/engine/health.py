"""Who may have a part in the mean: poison on one replica must not reach the others.

Before anything is averaged every replica tells the norms of its weights and of all else that travels with
them. One that is not finite, or has exploded where the others have not, is left out: the mean is that of the
others, and it takes that, weights, buffers and optimizer state. To need it again and again is no accident.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from hdet.engine.converge import Converge
from hdet.replicas import Replicas

__all__ = ["Health"]

#: So many times what the soundest replica has, or a sound one has ever had, is no training any more: of the
#: weights' norm; of the loss, if the weights are larger, too (a loss near zero has any ratio); and of all
#: else, where a gradient that spikes leaves its square.
_WEIGHTS, _LOSS, _LARGER, _REST = 1e3, 1e3, 1.5, 1e12
#: So often in a row the same replica is taken back into the mean.
_IN_A_ROW = 8


class Health:
    """Judges replicas by what they tell at a sync.

    Args:
        caller: begins the errors.
        replicas: who is judged.
        converge: knows what would be averaged.
    """

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

    def lost(
        self, norms: Sequence[Sequence[float]], losses: Sequence[float] = (), joined: Collection[int] = ()
    ) -> dict[int, str]:
        """Replicas that must not enter the mean, and why.

        Args:
            norms: what :meth:`row` told on every rank.
            losses: of every replica, where each has gradients of its own; () where they tell of all alike.
            joined: replicas that have no part in the mean in any case.

        Raises RuntimeError on all ranks where the same one is lost again and again.
        """
        parts = self._replicas.parts
        sizes = [norms[at : at + parts] for at in range(0, len(norms), parts)]
        here = [r for r in range(len(sizes)) if r not in joined]
        lost = {r: why for r in here if (why := _not_finite(sizes[r], losses[r] if losses else 0.0))}
        sound = {
            r: (*(max(part[k] for part in sizes[r]) for k in (0, 1)), abs(losses[r]) if losses else 0.0)
            for r in here
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
        if self._replicas.elastic:  # they are numbered anew at every sync
            return
        self._in_a_row = {r: self._in_a_row.get(r, 0) + 1 for r in lost}
        if len(lost) == self._replicas.size:
            return  # nobody is left to take the mean of: that is told, as it is by who trains alone
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
