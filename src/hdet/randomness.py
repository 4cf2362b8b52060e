"""The random states of this process: torch's, its accelerators', numpy's and Python's own."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch

__all__ = ["now", "set_to"]


def now() -> dict[str, Any]:
    """All of them, in plain values and tensors. Who has not imported numpy has no state of it."""
    version, inner, gauss = random.getstate()
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": [version, list(inner), gauss]}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states["cuda"] = torch.cuda.get_rng_state_all()
    if (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, *rest = numpy.random.get_state()
        states["numpy"] = [str(kind), [int(key) for key in keys], int(rest[0]), int(rest[1]), float(rest[2])]
    return states


def set_to(states: dict[str, Any]) -> None:
    """Go on from there. What this process has not is left out: other devices, numpy."""
    torch.set_rng_state(states["torch"])
    version, inner, gauss = states["python"]
    random.setstate((version, tuple(inner), gauss))
    if "cuda" in states and torch.cuda.is_available() and len(states["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(states["cuda"])
    if "numpy" in states and (numpy := sys.modules.get("numpy")) is not None:
        kind, keys, *rest = states["numpy"]
        numpy.random.set_state((kind, keys, *rest))
