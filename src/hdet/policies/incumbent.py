"""The best weights of a search, what windows are compared with, and when training has fallen behind them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from hdet.best import Keeper
from hdet.controllers.choice import Candidate
from hdet.policies.point_losses import PointLosses
from hdet.policies.useless_probe import average

__all__ = ["Incumbent"]

#: So many windows in a row clearly worse than the best, or without an improvement, lead back to the best.
_BEHIND, _IDLE = 2, 8


class Incumbent:
    """What a horizon remembers of the windows before.

    Args:
        keeper: keeps the best weights.
        patience: so often training goes back to them without a better one coming of it; None never does.
        remembers: whether L(p) is what L(m) was a window before, one point for all, whose losses are known.
        apart: whether weights are chosen by other losses than windows are compared by.
    """

    def __init__(self, keeper: Keeper, patience: int | None, *, remembers: bool, apart: bool) -> None:
        self.keeper = keeper
        self._patience = patience
        self.remembers = remembers
        self.apart = apart
        self._idle = self._retreats = 0
        #: The losses at p, of the batches of every rank in turn; None where they have to be measured.
        self.previous: list[float] | None = None
        #: The lowest losses at any m so far, likewise.
        self.best: list[float] | None = None

    def forget(self) -> None:
        """The losses that windows are compared with: of other weights."""
        self.previous = self.best = None

    def start(self, step: int, losses: PointLosses, weights: Mapping[int, Tensor]) -> None:
        """The first window that is measured shows what training began with, as well."""
        if losses.measured and self.remembers and self.previous is None:
            self.previous = losses.previous
            self.best = self.best or self.previous
            if not self.apart and self.keeper.choice.kept is None:
                self.keeper.offer(Candidate(step, "start", tuple(losses.previous)), weights)

    def offer(
        self, step: int, losses: PointLosses, mean: Mapping[int, Tensor], end: Mapping[int, Tensor] | None
    ) -> None:
        """What a window leaves behind, to be handed over one day: its mean, and the end of the run."""
        self.keeper.offer(Candidate(step, "mean", tuple(losses.chosen)), mean)
        if end is not None:
            self.keeper.offer(Candidate(step, "end", tuple(losses.chosen_end)), end)
        if self.remembers:
            self.previous = losses.mean()
            if self.best is None or average(self.previous) < average(self.best):
                self.best = self.previous

    def count(self, improved_before: int, *, rises: bool) -> None:
        """A window more; where the learning rate still rises, an improvement may yet come."""
        if self.keeper.choice.improved_at > improved_before:
            self._idle = self._retreats = 0
        elif not rises:
            self._idle += 1

    @property
    def _lost(self) -> bool:
        return self.keeper.choice.behind >= _BEHIND or self._idle >= _IDLE

    @property
    def leads_back(self) -> bool:
        """Whether the best weights are a better place to go on from, at a smaller learning rate."""
        if self._patience is None or not self.remembers or not self.keeper.keeps:
            return False
        return self._lost and self._retreats < self._patience

    @property
    def stalled(self) -> bool:
        """Whether going back has not helped for longer than patience lasts."""
        return self._patience is not None and self._lost and self._retreats >= self._patience

    def go_back_(self) -> int:
        """Write the best weights into the model; the step they are of."""
        kept = self.keeper.choice.kept
        assert kept is not None
        self.keeper.write_()
        self.keeper.choice = replace(self.keeper.choice, behind=0)
        # Deployed with running statistics, its losses are not those that windows are compared by.
        self.previous = None if self.apart else list(kept.losses)
        self._idle, self._retreats = 0, self._retreats + 1
        return kept.step

    def state_dict(self) -> dict[str, Any]:
        """Numbers, and the best weights."""
        return {
            "counts": [self._idle, self._retreats],
            "losses": [self.previous, self.best],
            "keeper": self.keeper.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off."""
        self._idle, self._retreats = state["counts"]
        losses: Sequence[list[float] | None] = state["losses"]
        self.previous, self.best = losses
        self.keeper.load_state_dict(state["keeper"])
