"""Weights that are lost within a window, noticed before its end and without a wait for the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from hdet.autolr.room import copy_into, room_for

__all__ = ["Alarm"]

#: How often it looks in a window, and how many times their usual size the weights of an explosion have.
_LOOKS, _FAR = 4, 100.0


class Alarm:
    """Looks at the norm of the weights a few times in a window; what it saw is read a look later, when the
    device has long been there.

    Args:
        weights: the iterates.
        size: of the weights, as the window found them.
        steps: of the window.
    """

    def __init__(self, weights: Sequence[Tensor], size: float, steps: int) -> None:
        self._weights = weights
        self._limit = _FAR * size
        self._steps = steps
        self._stride = max(2, steps // _LOOKS)
        self._taken = 0
        self._seen: tuple[Tensor, torch.cuda.Event | None] | None = None

    def rings(self) -> bool:
        """After every step: whether the weights were lost at a look before."""
        self._taken += 1
        if self._taken % self._stride:
            return False
        lost = self._read()
        norm = get_total_norm([weight.detach() for weight in self._weights])
        seen, event = room_for(norm, offload=True), None
        copy_into(seen, norm)
        if norm.device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(norm.device))
        self._seen = seen, event
        return lost or (event is None and self._read())

    def state(self) -> list[float | None]:
        """Steps of the window, those taken, and what was seen last."""
        return [self._steps, self._taken, self._norm()]

    def load(self, taken: int, seen: float | None) -> None:
        """Go on within a window."""
        self._taken = taken
        self._seen = None if seen is None else (torch.tensor(seen), None)

    def _read(self) -> bool:
        norm = self._norm()
        return norm is not None and not norm <= self._limit  # or not a number

    def _norm(self) -> float | None:
        if self._seen is None:
            return None
        norm, event = self._seen
        if event is not None:
            event.synchronize()
        return float(norm)
