"""Regression beside a horizon: in its windows, on its path, by its batches.

Where there are several replicas they are compared with one another (:class:`Beside`). One alone tries values
one window after the other (:class:`InTurn`), which tells less, and later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hdet.controllers import RegressionController
from hdet.hyperparameters import Axis, Explorable
from hdet.policies.base import Context, Decided, Seen
from hdet.policies.evidence import AtWindowMean
from hdet.policies.horizon import Horizon
from hdet.policies.regression import Regression

__all__ = ["Beside", "InTurn", "windows_in_turn"]


class Beside(Regression):
    """Replicas explore while a horizon searches, and each is judged at its own mean over the window.

    Args:
        explore: what is moved.
        horizon: whose windows they are. It comes first among the policies: its decision may undo a window.
        controller: the rule.
    """

    probes = True

    def __init__(
        self, explore: Sequence[Explorable], horizon: Horizon, controller: RegressionController
    ) -> None:
        super().__init__(explore, horizon.windows, controller)
        self._horizon = horizon
        self.needs_loss = False

    def facts(self) -> dict[str, str]:
        return {"regression controller": repr(self._controller)}

    def bind(self, axes: Sequence[Axis], context: Context) -> None:
        super().bind(axes, context)
        if not self._horizon.axes:
            raise ValueError(
                f"{context.caller}: the horizon must come first among the policies, got it later"
            )
        self._held_out = AtWindowMean(self._horizon.evidence)

    def start(self, step: int) -> None:
        self.window_end = self._horizon.window_end if self._horizon.learns else None

    def judges(self, step: int) -> bool:
        return self._horizon.learns and self._horizon.judges(step)

    def end_at(self, step: int) -> None:
        self.start(step)


def windows_in_turn(hyperparameters: int) -> int:
    """How many windows a decision takes: as many as tell the hyperparameters, a trend and noise apart.

    >>> windows_in_turn(1), windows_in_turn(3), windows_in_turn(6)
    (4, 8, 12)
    """
    return 4 * -(-(hyperparameters + 3) // 4)


class InTurn(Beside):
    """One replica tries values one window after the other; what a window gained speaks for those it had.

    A block of windows has each value high as often as low, in an order that tells all of them apart, and from
    the trend of a run that gains less and less.
    """

    kind = "in turn"

    def bind(self, axes: Sequence[Axis], context: Context) -> None:
        super().bind(axes, context)
        spreads, widest = [axis.spread for axis in axes], [axis.widest for axis in axes]
        # The trend is estimated with the others, and nothing stands for it to be moved.
        self._state = self._controller.start([*spreads, 1.0], [*widest, 1.0])
        self._length = windows_in_turn(len(axes))
        #: The averaged model's loss after the last window; of each window since a decision what it lost, and
        #: where its values were.
        self._before: float | None = None
        self._block: list[tuple[float, list[float]]] = []

    def doubts(self) -> list[str]:
        names = ", ".join(axis.name for axis in self.axes)
        return [
            f"one replica alone tries {names} in turn, and decides every {self._length} windows; with "
            f"{len(self.axes) + 1} replicas or more (processes of their own) they are compared in "
            "every window"
        ]

    def decide(self, seen: Seen) -> Decided:
        self.start(seen.step)
        ((own, mean),) = seen.rows
        if self._before is not None:
            offsets = [axis.offsets(row)[0] for axis, row in zip(self.axes, seen.levels, strict=True)]
            self._block.append((own - self._before, offsets))
        self._before = mean
        ended = seen.step == seen.total_steps
        decided = self.observe(seen.levels)
        if len(self._block) >= self._length and not ended:
            decided = self._move_block(seen)
        return replace(decided, held_out=(own,), held_out_mean=mean)

    def _move_block(self, seen: Seen) -> Decided:
        lost = tuple(loss for loss, _ in self._block)
        middle = (len(lost) - 1) / 2
        columns = [tuple(values) for values in zip(*(offsets for _, offsets in self._block), strict=True)]
        trend = tuple((k - middle) / middle for k in range(len(lost)))
        self._block = []
        return self.apply(seen.levels, lost, [*columns, trend])

    def state_dict(self) -> dict[str, Any]:
        block = [[lost, list(offsets)] for lost, offsets in self._block]
        return {**super().state_dict(), "before": self._before, "block": block}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._before = state["before"]
        self._block = [(lost, list(offsets)) for lost, offsets in state["block"]]
