"""The outer optimizer's learning rate and momentum, explored by where replicas begin a round.

At a sync all replicas are at θ, which the base values gave. With the first step of the next round, replica r
moves to where its own values would have led it, along the last displacement and the momentum, and trains from
there; its loss at the round's end speaks for them. The mean of the starts is θ, so the averaged model is
what it would be without exploring.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from torch.optim import Optimizer

from hdet.hyperparameters.base import Explorable
from hdet.hyperparameters.checks import check_bounds
from hdet.hyperparameters.scalar import Place, ScalarAxis
from hdet.hyperparameters.scales import LogScale, Scale

__all__ = ["OuterLR", "OuterMomentum", "place_outer"]

_HIGHEST_MOMENTUM = 0.9999


@dataclass(frozen=True, slots=True)
class _OfOuter:
    spread: float = 0.3
    bounds: tuple[float, float] = (0.0, 1.0)
    #: Where the value stands; the door that is given ``outer=`` says so.
    _group: dict[str, float] | None = field(default=None, kw_only=True)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(spread={self.spread!r}, bounds={self.bounds!r})"

    def _axis(self, key: str, scale: Scale) -> list[ScalarAxis]:
        group = self._group
        if group is None:
            raise ValueError(
                f"{type(self).__name__}: there must be an outer optimizer to explore, got outer=None; give "
                "outer=hdet.Outer() and gradients='none' to hdet.Ensemble"
            )
        place = Place(lambda: group[key], lambda value: group.__setitem__(key, value))
        return [ScalarAxis(f"outer_{key}", [place], scale, self.spread)]


@dataclass(frozen=True, slots=True, repr=False)
class OuterLR(_OfOuter):
    """Explore the learning rate of :class:`~hdet.Outer`: on a logarithmic scale.

    Args:
        spread: replicas lie between base·e^−spread and base·e^spread.
        bounds: values never leave them.

    Give a probe: what a start is worth is seen at the end of the round that begins there. A base value that
    was moved is used from the next sync on.
    """

    bounds: tuple[float, float] = (0.01, 4.0)

    def bind(self, optimizer: Optimizer) -> list[ScalarAxis]:
        """One axis."""
        return self._axis("lr", LogScale(*check_bounds("OuterLR", self.bounds, above=0.0)))


@dataclass(frozen=True, slots=True, repr=False)
class OuterMomentum(_OfOuter):
    """Explore the momentum of :class:`~hdet.Outer`: on a logarithmic scale of 1 − μ.

    Args:
        spread: the replicas' 1 − μ lie between (1 − base)·e^−spread and (1 − base)·e^spread.
        bounds: values never leave them.

    A replica's own μ acts where momentum enters its start; v itself is the base's, the same on all ranks.
    """

    bounds: tuple[float, float] = (0.0, _HIGHEST_MOMENTUM)

    def bind(self, optimizer: Optimizer) -> list[ScalarAxis]:
        """One axis."""
        low, high = check_bounds("OuterMomentum", self.bounds, least=0.0, below=1.0)
        return self._axis("momentum", LogScale(low, high, mirrored=True))


_Item = TypeVar("_Item", bound=Explorable)


def place_outer(explore: Iterable[_Item], group: dict[str, float] | None) -> list[Explorable]:
    """``explore``, its items of the outer optimizer bound to where that one keeps its values."""
    return [replace(item, _group=group) if isinstance(item, _OfOuter) else item for item in explore]
