"""What every controller is: ``update`` turns a state and evidence into a new state.

A controller moves one scalar. For a learning rate that scalar is a factor on the user's schedule, so
the same rule serves whatever curve the schedule draws and whatever unit the hyperparameter has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ControlState", "Controller", "Decision"]


@dataclass(frozen=True, slots=True)
class ControlState:
    """What a controller remembers of one hyperparameter between two syncs."""

    value: float
    velocity: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What one update saw and did; ``state`` is all that the next update needs.

    ``weights`` has an entry for every replica (0 for one that was left out), ``delta`` is Δ of Eq. 6.
    The other two tell where the published path was left: replicas without a finite loss, and the value
    that Eq. 7 asked for where it was clamped.
    """

    state: ControlState
    weights: tuple[float, ...]
    delta: float
    left_out: tuple[int, ...] = ()
    clamped_from: float | None = None


class Controller(ABC):
    """Moves a scalar by the losses of the replicas that tried different values of it."""

    #: Eq. 8's γ, the share of the value that each sync takes away, where the controller brings its own
    #: decay; None where the value is a factor on a schedule that goes on running.
    decay: float | None

    @abstractmethod
    def update(
        self, state: ControlState, *, losses: Sequence[float], multipliers: Sequence[float]
    ) -> Decision:
        """One sync: replica r ran at ``state.value * multipliers[r]`` and saw ``losses[r]``."""
