"""Signs that a set-up is not what the method assumes, and the words for them: said once, not refused."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hdet.engine.sync import Gathered
from hdet.hyperparameters import Axis

__all__ = ["after_a_sync", "at_a_sync", "blind_signals", "overwritten"]


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


def after_a_sync(
    gathered: Gathered, predicted: Sequence[float], axes: Sequence[Axis], *, own_gradients: bool
) -> dict[str, str]:
    """All doubts about a round in which replicas have diverged."""
    found = overwritten(axes)
    if not gathered.losses:  # nobody who is here was there
        return found
    distances, rounding = gathered.distances, gathered.divergence.rounding
    seen = at_a_sync(gathered.losses, distances, predicted, rounding, own_gradients=own_gradients)
    return seen | found


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
