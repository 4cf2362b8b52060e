"""``Interruptible``: a run that is told to stop leaves as one model, saved, on all ranks at the same step.

A signal may reach one rank alone, and at any moment: within a collective, within an optimizer step. So the
handler only takes note of it, and ranks tell one another where the training loop asks, about once a second.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from hdet.replicas import Replicas

__all__ = ["Interruptible"]

logger = logging.getLogger("hdet")

#: Ranks tell one another about so often, in seconds: far less than whoever stops a run waits for it.
_EVERY = 1.0


class Interruptible:
    """Leaves a training loop in order when it is told to stop.

    Args:
        auto: an AutoLR, AutoTune, OneCycleAutoLR or Ensemble, whose replicas train together.
        save: called once, on every rank, when the replicas are one model; usually :func:`hdet.save`.
        signals: SIGTERM, as schedulers of clusters and torchrun send it, and SIGINT (Ctrl-C). The same one
            again acts as it did before: who presses Ctrl-C twice means it.

    :meth:`check` is a collective: every rank calls it once after every ``step()``. Leaving is by SystemExit
    with 128 plus the signal's number, as shells have it, so that ``finally`` blocks run.

    Example::

        with hdet.Interruptible(auto, save=lambda: hdet.save(path, model=model, auto=auto)) as run:
            for batch in loader:
                ...
                optimizer.step()
                auto.step(loss)
                run.check()
    """

    def __init__(
        self,
        auto: Any,
        *,
        save: Callable[[], object] | None = None,
        signals: tuple[int, ...] = (signal.SIGTERM, signal.SIGINT),
    ) -> None:
        replicas = getattr(auto, "replicas", None)
        if not isinstance(replicas, Replicas) or not hasattr(auto, "converge"):
            raise TypeError(
                "Interruptible: auto must be an AutoLR, AutoTune, OneCycleAutoLR or Ensemble, got "
                f"{type(auto).__name__}"
            )
        self._auto, self._save, self._replicas = auto, save, replicas
        self._signals = signals
        self._before: dict[int, Any] = {}
        #: The signal that was seen here, 0 if there was none.
        self._seen = 0
        self._until_next, self._asked_at = 1, 0.0
        self._steps = 0

    def __enter__(self) -> Interruptible:
        for number in self._signals:
            self._before[number] = signal.signal(number, self._note)
        self._asked_at = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
        if kind is None and self._seen:  # the run has come to its end meanwhile
            logger.warning("Interruptible: signal %d came in the last steps: the run is over", self._seen)

    def _note(self, number: int, frame: FrameType | None) -> None:
        """Nothing else is safe within a handler."""
        self._seen = number
        signal.signal(number, self._before[number])

    def check(self) -> None:
        """Whether any rank was told to stop; then all leave. Every rank calls it after every ``step()``."""
        self._until_next -= 1
        self._steps += 1
        if self._until_next > 0:
            return
        seconds = (time.monotonic() - self._asked_at) / self._steps
        rows = self._replicas.gather_ranks([float(self._seen), seconds])
        if number := int(max(row[0] for row in rows)):
            self._leave(number)
        # By what all of them said: so all ask again at the same step.
        self._until_next = max(1, min(1000, int(_EVERY / max(1e-6, *(row[1] for row in rows)))))
        self._steps, self._asked_at = 0, time.monotonic()

    def _leave(self, number: int) -> None:
        if self._replicas.world_rank == 0:
            said = "the replicas are one model" + ("" if self._save is None else ", and saved")
            logger.warning("Interruptible: signal %d: leaves at this step; %s", number, said)
        if self._auto.apart:
            self._auto.converge()
        if self._save is not None:
            self._save()
        self._seen = 0
        raise SystemExit(128 + number)
