"""The best weights of a search, what windows are compared with, and when training has fallen behind them."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from torch import Tensor

from hdet.autolr.choice import Candidate, Choice, regrouped
from hdet.autolr.keeper import Keeper
from hdet.autolr.probe_checks import average

__all__ = ["Incumbent"]

logger = logging.getLogger("hdet")

#: So many windows in a row clearly worse than the best, or without an improvement, lead back to the best.
_BEHIND, _IDLE = 2, 3
#: Where so many times the steps that led to the best are left, there is time to begin anew instead.
_ANEW = 1.5
#: A search is young for this share of its steps; where nobody knows how many they are, for so many.
_YOUTH, _YOUNG_STEPS = 0.15, 200
#: A third of a third of the learning rate is slow enough.
_RESTARTS = 2


class Incumbent:
    """What a horizon remembers of the windows before.

    Args:
        keeper: keeps the best weights.
        patience: so often training goes back to them without a better one coming of it; None never does.
        apart: whether weights are chosen by other losses than windows are compared by.
    """

    def __init__(self, keeper: Keeper, patience: int | None, *, apart: bool) -> None:
        self.keeper = keeper
        self._patience = patience
        self.apart = apart
        self._idle = self._retreats = self._restarts = 0
        #: Whether others have moved anything since the best was found.
        self.others_moved = False
        #: What this search has come to, since it began, or began anew; the keeper knows all of them.
        self._search = keeper.choice
        #: The factors that led to its best.
        self.factors: list[float] = []
        #: The losses at p, of the batches of every rank in turn; None before anything was measured.
        self.previous: list[float] | None = None
        #: The lowest losses at any m so far, likewise.
        self.best: list[float] | None = None

    def forget(self) -> None:
        """The losses that windows are compared with: of other weights."""
        self.previous = self.best = None

    def start(
        self, step: int, losses: list[float], chosen: Sequence[float], mean: Mapping[int, Tensor]
    ) -> None:
        """A window that has hardly moved the weights shows what training began with: ``losses`` that windows
        are compared by, and those by which weights are ``chosen``."""
        self.previous = self.best = losses
        candidate = Candidate(step, "start", tuple(chosen))
        self._search, _ = self._search.offered(candidate)
        if self.keeper.choice.kept is None:
            self.keeper.offer(candidate, mean)

    def offer(
        self,
        step: int,
        losses: list[float],
        chosen: Sequence[float],
        mean: Mapping[int, Tensor],
        chosen_end: Sequence[float],
        end: Mapping[int, Tensor] | None,
    ) -> None:
        """What a window leaves behind, to be returned one day: its mean, and the end of the run."""
        candidate = Candidate(step, "mean", tuple(chosen))
        self.keeper.offer(candidate, mean)
        self._search, _ = self._search.offered(candidate)
        if end is not None:
            self.keeper.offer(Candidate(step, "end", tuple(chosen_end)), end)
        self.previous = losses
        if self.best is None or average(self.previous) < average(self.best):
            self.best = self.previous

    @property
    def improved_at(self) -> int:
        """The step of this search's last improvement beyond the error."""
        return self._search.improved_at

    def count(self, step: int, factors: Sequence[float], *, rises: bool, moved: bool = False) -> None:
        """A window more, that ran with these ``factors``; where the learning rate still rises, or something
        else was ``moved`` for it, an improvement may yet come."""
        if self._search.kept is not None and self._search.kept.step == step:
            self.factors = list(factors)
        if self.keeper.choice.improved_at == step:
            self._retreats = 0
        # Before anything was learnt, a plateau is no standstill: a smaller rate would not lead off it.
        if self._search.improved_at == step or not self._search.learnt:
            self._idle = 0
        elif not rises:
            self._idle += 1
        self.others_moved = self._search.improved_at != step and (self.others_moved or moved)

    @property
    def _lost(self) -> bool:
        return self._search.behind >= _BEHIND or self._idle >= _IDLE

    @property
    def improves(self) -> bool:
        """Whether the last window was better than all before, or nothing has been learnt yet."""
        return self._idle == 0 and self._search.behind == 0

    @property
    def leads_back(self) -> bool:
        """Whether the best weights are a better place to go on from, at a smaller learning rate."""
        return self._patience is not None and self._lost and self._retreats < self._patience

    @property
    def stalled(self) -> bool:
        """Whether going back has not helped for longer than patience lasts."""
        exhausted = self._patience is not None and self._retreats >= self._patience
        return exhausted and self._lost

    def may_begin_anew(self, step: int, began: int, total_steps: int | None) -> bool:
        """Whether a slower search from the beginning, instead of from the best weights, may come to more.

        Not in the youth of a search, whose troubles are others; only where this one, which ``began`` then,
        has found the best of all, so that slower still is worth trying; if there is time for it; and twice at
        most.
        """
        best = self._search.kept
        if best is None or best.kind == "start" or best != self.keeper.choice.kept:
            return False
        if self._restarts == _RESTARTS:
            return False
        if total_steps is None:
            return step - began > _YOUNG_STEPS
        young = step - began <= _YOUTH * (total_steps - began)
        return not young and total_steps - step >= _ANEW * (best.step - began)

    def begin_anew(self) -> None:
        """The best weights stay kept; windows are compared with those of the new search alone."""
        self.forget()
        self._search = Choice()
        self._restarts += 1
        self._gone_back()

    def _gone_back(self) -> None:
        self._idle, self._retreats, self.others_moved = 0, self._retreats + 1, False

    def go_back_(self) -> int:
        """Write the best weights into the model; the step they are of."""
        kept = self.keeper.choice.kept
        assert kept is not None
        self.keeper.write_()
        self._search = self.keeper.choice = replace(self.keeper.choice, behind=0)
        # Deployed with running statistics, its losses are not those that windows are compared by.
        self.previous = self.keeper.measure_together() if self.apart else list(kept.losses)
        self._gone_back()
        return kept.step

    def state_dict(self) -> dict[str, Any]:
        """Numbers, and the best weights."""
        return {
            "counts": [self._idle, self._retreats, self._restarts],
            "others_moved": self.others_moved,
            "losses": [self.previous, self.best],
            "keeper": self.keeper.state_dict(),
            "search": {"choice": asdict(self._search), "factors": list(self.factors)},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off."""
        self._idle, self._retreats, self._restarts = state["counts"]
        self.others_moved = state["others_moved"]
        self.keeper.load_state_dict(state["keeper"])
        self._search = Choice.from_dict(state["search"]["choice"])
        self.factors = list(state["search"]["factors"])
        self.previous, self.best = state["losses"]
        self._regroup(state["keeper"]["replicas"], self.keeper.replicas)

    def _regroup(self, before: int, now: int) -> None:
        """The losses of as many replicas as there were, as those of as many as there are."""
        each = self.keeper.batches
        known = [None if x is None else regrouped(x, before, now, each) for x in (self.previous, self.best)]
        search = self._search.of_fewer(before, now, each)
        if search is None or (self.previous is not None and known[0] is None):
            self.forget()
            self._search, self._idle = Choice(), 0
            logger.warning(
                "load_state_dict: the state is of %d replicas, this run has %d, each with %d batches to "
                "choose by: their losses cannot be compared batch by batch. Windows are compared, weights "
                "chosen, from here on",
                before,
                now,
                each,
            )
            return
        self._search = search
        self.previous, self.best = (None if x is None else list(x) for x in known)
