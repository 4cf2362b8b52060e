"""What every explored scalar is: a *base* value that all replicas share, and a replica's own around it.

An :class:`Axis` is bound to places (a key of a parameter group, an attribute of a module). A place holds the
base value; the replica's own stands there only for as long as it acts: while the optimizer steps, or, for
what acts in the forward pass, from one sync to the next.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor
from torch.optim import Optimizer

__all__ = ["Axis", "Explorable"]


@runtime_checkable
class Explorable(Protocol):
    """What ``explore=`` is a list of."""

    def bind(self, optimizer: Optimizer) -> Sequence[Axis]:
        """The scalars to explore, one or several, bound to where they stand."""


class Axis(ABC):
    """One explored scalar.

    Where replica r has level z_r in [−1, 1], its value lies ``spread · z_r`` from the base, measured along
    the coordinate of the hyperparameter and cut off at its bounds.
    """

    name: str
    #: Half the width over which the replicas lie, in units of the coordinate.
    spread: float
    #: The widest that an adaptive spread may become.
    widest: float = math.inf
    #: Whether the replica's value acts while the optimizer steps; if not, it acts all the time.
    acts_in_step = False
    #: Whether the loss measured through it is lowest when it is off.
    regulariser = False
    #: Whether it acts through the gradient alone, so that replicas which share theirs never differ by it.
    needs_own_gradients = False
    #: Whether it makes the optimizer's state differ although the gradient is shared.
    bends_state = False
    #: Whether its value stands where one rank could come to hold another than the others.
    may_part = True
    #: What a user should know before training begins, if anything.
    doubt = ""

    @property
    @abstractmethod
    def base(self) -> float:
        """The value that all replicas share."""

    def readings(self) -> tuple[float, ...]:
        """What stands in its places now."""
        return (self.base,)

    @abstractmethod
    def values(self, levels: Sequence[float]) -> tuple[float, ...]:
        """What every replica's value is."""

    @abstractmethod
    def offsets(self, levels: Sequence[float]) -> tuple[float, ...]:
        """How far each replica's value lies from the base, bounds included, along the coordinate."""

    @abstractmethod
    def fan_out(self, level: float | Tensor) -> None:
        """Let this replica's own value stand in its places until :meth:`restore`.

        Of several replicas in one process, ``level`` has each one's, and so has what then stands there.
        """

    @abstractmethod
    def restore(self) -> None:
        """Let the base value stand there again."""

    @abstractmethod
    def shift(self, by: float) -> None:
        """Move the base along the coordinate, within its bounds. The base must stand in its places."""

    @property
    def overwritten(self) -> bool:
        """Whether somebody else has written the base since it was moved last."""
        return False

    def silence(self) -> None:  # noqa: B027 — most have nothing to silence
        """Turn a regulariser off until :meth:`restore` or :meth:`fan_out`: a probe measures without it."""

    def close(self) -> None:
        """The run is over: the base value stays."""
        self.restore()

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off."""
