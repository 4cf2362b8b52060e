"""What happened, for whoever wants to be called when it does: an average of the weights that has to go back
with them, a logger, an alert."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from hdet.history import SyncRecord
from hdet.policies.base import Decided

__all__ = ["Event", "Listener", "of_sync"]

logger = logging.getLogger("hdet")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a run, the same on every rank.

    Args:
        kind: ``"moved"``: a controller has moved a base value. ``"best"``: the probe has seen nothing better
            so far, by more than its error. ``"back"``: the weights are older ones; what was made of the newer
            ones (a moving average) must go back, too. ``"lost"``: a replica has no part in the mean, or
            replicas have come or gone. ``"end"``: the last step was taken.
        step: optimizer steps counted so far.
        sentence: what is logged of it.
        record: of the sync at which it happened; None for an end without one.
    """

    kind: Literal["moved", "best", "back", "lost", "end"]
    step: int
    sentence: str
    record: SyncRecord | None = None


class Listener:
    """Hands events over at the end of a step, when everything has been done that follows from them.

    Args:
        caller: begins what is said.
        on_event: called with each. One that raises is logged, once, and training goes on: a rank that stopped
            alone would leave the others waiting.
    """

    def __init__(self, caller: str, on_event: Callable[[Event], object] | None) -> None:
        if on_event is not None and not callable(on_event):
            raise TypeError(
                f"{caller}: on_event must be a function of one hdet.Event, got {type(on_event).__name__}"
            )
        self._caller = caller
        self._on_event = on_event
        self._waiting: list[Event] = []
        self._said = False

    def note(self, events: Sequence[Event]) -> None:
        """These have happened."""
        self._waiting += events

    def tell(self) -> None:
        """Hand over what has happened since the last time."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        if self._on_event is None:
            return
        for event in waiting:
            try:
                self._on_event(event)
            except Exception:
                if not self._said:
                    self._said = True
                    logger.exception(
                        "%s: on_event raised at step %d (%s); training goes on, and this is said once",
                        self._caller,
                        event.step,
                        event.kind,
                    )


def of_sync(record: SyncRecord, decided: Decided, odd: Sequence[str]) -> list[Event]:
    """What a sync has brought, in the order in which it happened."""
    events = [Event("lost", record.step, said, record) for said in odd]
    moved = [one for one in record.hyperparameters if one.base_after != one.base_before]
    if decided.best:
        loss = record.horizon[0].loss_mean if record.horizon else record.held_out_mean
        events.append(Event("best", record.step, f"the probe's loss is {loss:.4g}, the best so far", record))
    if decided.went_back:
        events.append(Event("back", record.step, "; ".join(decided.events), record))
    if moved:
        said = ", ".join(f"{one.name} from {one.base_before:.4g} to {one.base_after:.4g}" for one in moved)
        events.append(Event("moved", record.step, said, record))
    return events
