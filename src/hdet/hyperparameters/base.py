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

from hdet import rules

__all__ = ["Axis", "Explorable", "Rows", "StandIn"]


class StandIn(Protocol):
    """Values of replicas that are rows of one matrix, for a number that their one forward pass reads."""

    def part_(self, values: Tensor) -> None:
        """Let each replica have its own, until :meth:`follow_`."""

    def follow_(self) -> None:
        """Let all replicas have the number that stands there."""


@runtime_checkable
class Rows(Protocol):
    """What a hyperparameter asks of replicas that are rows of one matrix."""

    def stand_in(self, owner: Any, attribute: str) -> StandIn:
        """For a number that the forward pass reads as an attribute."""

    def clip_grad_norm_(self, max_norm: float | Tensor) -> Tensor:
        """Clip the norm of every replica's gradient, at one norm or each at its own."""


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

    def stack(self, caller: str, rows: Rows) -> None:
        """Replicas that are rows of one matrix have values of their own from now on. Not asked of what acts
        while the optimizer steps, which takes a tensor of their values as it is."""
        raise TypeError(
            f"{caller}: replicas stacked in one process must differ in what the optimizer reads from its "
            f"groups or the forward pass from an attribute, got {self.name}, whose value is written by a "
            "function and so acts on all of them at once; name the attribute, as "
            "hdet.Temperature(model, attribute=...) does for any module's, or use one process per replica"
        )

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

    def check_state(self, caller: str, state: Mapping[str, Any]) -> None:
        """Raise ValueError for what :meth:`load_state_dict` cannot take. A run that explores nothing here has
        no rounds, and one that explores has: so neither takes the other's spread."""
        spread = rules.number(
            caller, f"the spread of {self.name}", state.get("spread", self.spread), least=0.0
        )
        if (spread > 0) != (self.spread > 0):
            raise ValueError(
                f"{caller}.load_state_dict: the spread of {self.name} must be "
                f"{'above 0' if spread else '0'}, as it was when the state was saved ({spread:g}), got "
                f"{self.spread:g}: whether replicas diverge is decided when the run is set up; give the "
                "spread it was saved with"
            )

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off."""
