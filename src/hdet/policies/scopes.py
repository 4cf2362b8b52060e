"""Which parameter groups share a factor, and whether each such scope is judged by losses of its own."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from hdet.controllers import HorizonDecision, HorizonState

__all__ = ["Scopes"]


@dataclass(frozen=True, slots=True)
class Scopes:
    """How the groups are cut into scopes, each with a factor and a speed of its own.

    Args:
        sizes: how many groups each scope holds, in order; None for one scope that holds whatever there is.
        apart: whether a scope is judged with the others at m, which takes two points more for each; otherwise
            all are judged by the losses of all weights together, and move together.
    """

    sizes: tuple[int, ...] | None = None
    apart: bool = False

    @classmethod
    def of(cls, scope: Literal["together", "each"], parts: Sequence[int], groups: int) -> Scopes:
        """``"each"`` group by itself; or all together, but that every optimizer has a factor of its own.

        Args:
            parts: how many groups each optimizer has; one number, or none, where there is one.
            groups: how many there are.
        """
        if scope == "each":
            return cls((1,) * groups, apart=True)
        return cls(tuple(parts)) if len(parts) > 1 else cls()

    @property
    def cut(self) -> tuple[tuple[int, ...] | None, bool]:
        """Both."""
        return self.sizes, self.apart

    @property
    def judged(self) -> int:
        """How many scopes are judged by losses of their own."""
        return len(self.sizes) if self.apart and self.sizes is not None else 1

    def of_group(self, group: int) -> int:
        """The scope that a group is in."""
        ends = accumulate(self.sizes or ())
        return next((scope for scope, end in enumerate(ends) if group < end), 0)

    def first_groups(self) -> list[int]:
        """The first group of each scope."""
        return [0] if self.sizes is None else [0, *accumulate(self.sizes)][:-1]

    def highest(self, values: Sequence[float]) -> list[float]:
        """The highest of the groups' values, for each scope; of all of them where every group is a scope."""
        if self.sizes is None or self.apart:
            return [max(values)] * (1 if self.sizes is None else len(self.sizes))
        cut = zip(self.first_groups(), self.sizes, strict=True)
        return [max(values[first : first + size]) for first, size in cut]

    def as_one(
        self, before: Sequence[HorizonState], decisions: Sequence[HorizonDecision]
    ) -> list[HorizonDecision]:
        """Scopes that are judged together move together, by the mean of what each would have done, once all
        have been brought to speed: by losses that all share, their ratio cannot be judged.

        One that its own top speed or ceiling holds back is not raised, and one that has not moved yet waits.
        """
        if self.apart or len(decisions) == 1 or any(d.action in ("scale", "back") for d in decisions):
            return list(decisions)
        own = [math.log(d.state.value / s.value) for d, s in zip(decisions, before, strict=True)]
        moving = [change for change, s in zip(own, before, strict=True) if s.windows > 0]
        common = math.fsum(moving) / len(moving) if moving else 0.0
        if common == 0.0:
            return list(decisions)
        after = []
        for decision, state in zip(decisions, before, strict=True):
            bounded = common > 0 and decision.action == "hold" and not decision.why
            if state.windows > 0 and not bounded:
                value = min(state.value * math.exp(common), state.cap)
                moved = replace(decision.state, value=value)
                decision = replace(decision, state=moved, action="up" if common > 0 else "down", why="")
            after.append(decision)
        return after

    def names(self) -> list[str]:
        """What records call them: by the numbers of their groups."""
        if self.sizes is None:
            return ["lr"]
        return [
            f"lr/{first}" if size == 1 else f"lr/{first}-{first + size - 1}"
            for first, size in zip(self.first_groups(), self.sizes, strict=True)
        ]
