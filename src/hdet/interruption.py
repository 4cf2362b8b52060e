"""``Interruptible``: on a signal, all ranks average the replicas, save and exit at the same step.

A signal may reach one rank alone, and at any moment: within a collective, within an optimizer step. So the
handler only records it, and ``check()`` exchanges it between ranks, about once a second.
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

#: Seconds between two exchanges: far less than a cluster's scheduler waits before it kills a run.
_EVERY = 1.0


class Interruptible:
    """Exits a training loop in order on a signal.

    Args:
        auto: an AutoLR, AutoTune, OneCycleAutoLR or Ensemble, whose replicas train together.
        save: called once, on every rank, when the replicas are one model; usually :func:`hdet.save`.
        signals: SIGTERM, as schedulers of clusters and torchrun send it, and SIGINT (Ctrl-C). A second one of
            the same kind acts as without ``Interruptible``.

    :meth:`check` is a collective: every rank calls it once after every ``step()``. It raises SystemExit with
    128 plus the signal's number, as shells have it, so that ``finally`` blocks run.

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
        #: The signal that this rank got, 0 if there was none.
        self._seen = 0
        self._until_next, self._exchanged_at = 1, 0.0
        self._steps = 0

    def __enter__(self) -> Interruptible:
        for number in self._signals:
            self._before[number] = signal.signal(number, self._note)
        self._exchanged_at = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
        if kind is None and self._seen:  # the run ended before the next exchange
            logger.warning("Interruptible: signal %d came in the last steps: the run is over", self._seen)

    def _note(self, number: int, frame: FrameType | None) -> None:
        """A handler; doing more would not be safe."""
        self._seen = number
        signal.signal(number, self._before[number])

    def check(self) -> None:
        """Exit if any rank got a signal. Every rank calls it after every ``step()``."""
        self._until_next -= 1
        self._steps += 1
        if self._until_next > 0:
            return
        seconds = (time.monotonic() - self._exchanged_at) / self._steps
        rows = self._replicas.gather_ranks([float(self._seen), seconds])
        if number := int(max(row[0] for row in rows)):
            self._leave(number)
        # From the rows of all ranks, so that all exchange again at the same step.
        self._until_next = max(1, min(1000, int(_EVERY / max(1e-6, *(row[1] for row in rows)))))
        self._steps, self._exchanged_at = 0, time.monotonic()

    def _leave(self, number: int) -> None:
        if self._replicas.world_rank == 0:
            then = "averages the replicas" + ("" if self._save is None else ", saves")
            logger.warning("Interruptible: signal %d: %s and exits", number, then)
        if self._auto.apart:
            self._auto.converge()
        if self._save is not None:
            self._save()
        self._seen = 0
        raise SystemExit(128 + number)
