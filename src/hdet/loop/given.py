"""Buffers that are not finite by design, a causal mask of −inf say, are no sign of a lost replica."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["GivenBuffers"]


class GivenBuffers:
    """Remembers which buffers were not finite when they were first seen: they were given so.

    A buffer is known by its place among the others and its shape. One that comes later, or in another shape,
    is seen for the first time then.
    """

    def __init__(self) -> None:
        self._given: dict[tuple[int, torch.Size], bool] = {}

    def judged(self, buffers: Sequence[Tensor]) -> list[Tensor]:
        """Those that training is to keep finite. Waits for the device where some are new."""
        return [
            buffer
            for place, buffer in enumerate(buffers)
            if not self._was_given((place, buffer.shape), buffer)
        ]

    def _was_given(self, key: tuple[int, torch.Size], buffer: Tensor) -> bool:
        if key not in self._given:
            # Eight bits know no infinity, or are asked as wider ones.
            wide = buffer.float() if buffer.element_size() == 1 else buffer
            self._given[key] = not bool(torch.isfinite(wide).all())
        return self._given[key]
