"""Signs that a set-up is not what the method assumes, and the words for them: said once, not refused."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hdet.engine.sync import Gathered
from hdet.hyperparameters import Axis

__all__ = ["Watch", "at_a_sync", "blind_signals", "lost_buffers", "overwritten"]

#: Replicas on a shared gradient lie on one line. So many times as far apart as that they were moved by
#: something else; after so many syncs in a row there is no doubt.
_TOO_FAR, _IN_A_ROW = 2.0, 3
#: Distances are taken in float32, and weights rounded at every step.
_ROUNDINGS = 4.0


class Watch:
    """Looks at every sync, and raises where what was doubted goes on.

    Args:
        caller: begins the errors.
        own_gradients: whether replicas train by themselves.
        diverges: whether their weights differ between two syncs.
    """

    def __init__(self, caller: str, *, own_gradients: bool, diverges: bool) -> None:
        self._caller = caller
        self._own_gradients = own_gradients
        self._diverges = diverges
        self._too_far = 0

    def __call__(self, step: int, gathered: Gathered, predicted: Sequence[float]) -> dict[str, str]:
        """What kind of doubt, and the words for it."""
        if not self._diverges or not gathered.losses:  # or nobody who is here was there
            return {}
        seen = gathered.losses, gathered.distances, predicted, gathered.divergence.rounding
        found = at_a_sync(*seen, own_gradients=self._own_gradients)
        if gathered.began_apart:  # by a warm start's noise, or resumed within a round
            found.pop("too far", None)
        self._too_far = self._too_far + 1 if "too far" in found else 0
        if self._too_far >= _IN_A_ROW:
            raise RuntimeError(
                f"{self._caller}.step: step {step}: {found['too far']}; so at {self._too_far} syncs in a row"
            )
        return found


def blind_signals(axes: Sequence[Axis], *, own_gradients: bool, by_training_loss: bool) -> list[str]:
    """What will happen where a hyperparameter is explored by a signal that cannot judge it."""
    said = []
    explored = [axis for axis in axes if axis.spread > 0]
    blind = [axis.name for axis in explored if axis.needs_own_gradients and not own_gradients]
    if blind:
        said.append(
            f"{', '.join(blind)} acts through the gradient, and gradients are shared by all replicas: their "
            "weights will not differ by it, and what is seen is its direct effect on the loss alone. Use "
            "gradients='none' or hdet.Arms"
        )
    greedy = [axis.name for axis in explored if axis.regulariser and by_training_loss]
    if greedy:
        said.append(
            f"{', '.join(greedy)} is judged by the training loss, which is lowest without regularisation: it "
            "will be driven to its lower bound. Give probe=hdet.Probe(...)"
        )
    return said


def at_a_sync(
    losses: Sequence[float],
    measured: Sequence[float],
    predicted: Sequence[float],
    rounding: float,
    *,
    own_gradients: bool = False,
) -> dict[str, str]:
    """What kind of doubt, and the words for it, by the replicas' losses and their distances from the mean."""
    doubts: dict[str, str] = {}
    if len(losses) > 1 and len(set(losses)) == 1 and math.isfinite(losses[0]):
        doubts["reduced loss"] = (
            "the loss was the same on all ranks for a whole round, as an all-reduced loss is: it cannot "
            "tell replicas apart; pass each rank's own loss"
        )
    if max(predicted) > rounding and max(measured) < 0.1 * max(predicted):
        doubts["no fan-out"] = (
            f"the replicas are {max(measured):.3g} apart where {max(predicted):.3g} was expected: something "
            "undoes the fan-out, such as weights broadcast or averaged elsewhere"
        )
    if max(measured) > _TOO_FAR * max(predicted) + _ROUNDINGS * rounding:  # NaN is no prediction
        doubts["too far"] = (
            f"the replicas are {max(measured):.3g} apart where {max(predicted):.3g} was expected: more "
            "than the learning rate makes them differ, such as gradients that are not shared "
            "(DistributedDataParallel is missing), or copies of the weights that the optimizer keeps"
        )
    if own_gradients and len(measured) > 1 and max(measured) <= rounding:
        doubts["no divergence"] = (
            "the replicas are at the same weights although each arm has gradients of its own: something "
            "shares them, such as DistributedDataParallel over all ranks, or all have the same batches"
        )
    return doubts


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
    if not names:
        return {}
    which = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return {
        "lost buffers": f"buffers of the model are not finite any more ({which}): in eval mode it computes "
        "with them, and a probe, which normalises by the batch, may not see it; look at the batches since "
        "the last sync, or let hdet.Guard take such steps back"
    }
