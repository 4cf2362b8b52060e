"""Which ranks share their gradients, and so have values of their own in common or not.

``"all"``: one gradient for everybody, as in the paper; replicas differ by what the optimizer makes of it.
``"none"``: every rank its own. :class:`~hdet.Arms`: one for each arm, whose ranks explore the same values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from torch import nn

from hdet.replicas import Arms, Replicas, refuse_wiring

__all__ = ["GradientSharing", "Gradients", "refuse_outer"]

Gradients = Literal["all", "none"] | Arms


class GradientSharing:
    """How many sets of values there are, and which of them is this rank's.

    Args:
        caller: begins the errors.
        gradients: who shares them.
        replicas: the ranks.
        model: if it is wrapped in DDP, that must fit.
    """

    def __init__(
        self, caller: str, gradients: Gradients, replicas: Replicas, model: nn.Module | None
    ) -> None:
        if not isinstance(gradients, Arms) and gradients not in ("all", "none"):
            raise ValueError(f"{caller}: gradients must be 'all', 'none' or an hdet.Arms, got {gradients!r}")
        if isinstance(gradients, Arms) and gradients.ranks != replicas.size:
            raise ValueError(
                f"{caller}: gradients must be arms of the {replicas.size} ranks here, got {gradients!r} of "
                f"{gradients.ranks}; give Arms and {caller} the same process_group"
            )
        if replicas.gradients not in (None, gradients):
            how = "were stacked with" if replicas.here > 1 else "share by the model's own mesh"
            raise ValueError(
                f"{caller}: gradients must be what the replicas {how}, {replicas.gradients!r}, "
                f"got {gradients!r}; give both the same"
            )
        self._replicas = replicas
        among = replicas.size if gradients == "all" else 1 if gradients == "none" else gradients.size
        #: Whether ranks differ by more than what the optimizer makes of one gradient.
        self.own_gradients = gradients != "all" if replicas.elastic else among < replicas.size
        #: Ranks that have all values in common.
        self.ranks_per_arm = among if self.own_gradients else 1
        if replicas.several and model is not None:
            shared = isinstance(gradients, Arms) and gradients.average_every is None
            members = gradients.members if isinstance(gradients, Arms) and shared else None
            wired = gradients.sharing if isinstance(gradients, Arms) else among
            refuse_wiring(caller, model, wired, members)

    @property
    def arms(self) -> int:
        """How many sets of values the replicas that are there now make."""
        return self._replicas.size // self.ranks_per_arm

    @property
    def arm(self) -> int:
        """Which of them is this rank's."""
        return self._replicas.rank // self.ranks_per_arm

    def by_arm(self, values: Sequence[float]) -> tuple[float, ...]:
        """The mean of every arm's ranks: they are one replica, measured several times."""
        k = self.ranks_per_arm
        if k == 1:
            return tuple(values)
        groups = [values[i : i + k] for i in range(0, len(values), k)]
        return tuple(math.fsum(group) / k if all(map(math.isfinite, group)) else math.nan for group in groups)


def refuse_outer(caller: str, gradients: Gradients) -> None:
    """Raise ValueError where an outer optimizer has nothing to gain."""
    if gradients == "all" or (isinstance(gradients, Arms) and gradients.count == 1 and gradients.ranks > 1):
        raise ValueError(
            f"{caller}: outer= steps along what replicas have found by themselves, got "
            f"gradients={gradients!r}: on one gradient for all, their mean is what a single optimizer has "
            "done already, with a momentum of its own; use gradients='none' or several hdet.Arms, or leave "
            "outer out"
        )
