"""How far the replicas are apart, and how far they should be.

On a shared gradient the replicas of an interval lie on one line, θ_r = θ₀ + ρ_r·D, so replica r is at
distance |ρ_r − 1|·‖D‖ from the mean. Both sides are measured over the same fixed sample of the weights,
at a cost that does not grow with the model: a distance of 0 where one is predicted tells that something
undoes the fan-out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hdet.replicas.averaging import flat_pieces

__all__ = ["Divergence"]

_TENSORS_PER_GROUP = 64
_VALUES_PER_TENSOR = 256


class Divergence:
    """Samples the weights of each parameter group before and after every mean."""

    def __init__(self, groups: Sequence[Sequence[Tensor]]) -> None:
        self._samples = [_sample(group) for group in groups]
        # Scales a sample's norm to the whole group's.
        self._scales = [
            math.sqrt(sum(t.numel() for t in group) / max(1, sum(v.numel() for v in views)))
            for group, views in zip(groups, self._samples, strict=True)
        ]
        self._start = self.read()

    @torch.no_grad()
    def read(self) -> list[Tensor]:
        """The sampled weights as they are now."""
        return [
            torch.cat([view.to(torch.float32) for view in views]) if views else torch.zeros(1)
            for views in self._samples
        ]

    def restart(self) -> None:
        """Count displacements from the present weights."""
        self._start = self.read()

    @torch.no_grad()
    def measure(self, before: Sequence[Tensor]) -> tuple[float, list[float]]:
        """After the mean: this replica's distance from it, and ‖D‖ for each group; then restart.

        ``before`` is what :meth:`read` gave before the mean.
        """
        after = self.read()
        norms = torch.stack(
            [torch.linalg.vector_norm(b - a).cpu() for a, b in zip(after, before, strict=True)]
            + [torch.linalg.vector_norm(a - s).cpu() for a, s in zip(after, self._start, strict=True)]
        ).tolist()
        self._start = after
        groups = len(self._scales)
        scaled = [norm * scale for norm, scale in zip(norms, self._scales * 2, strict=True)]
        return math.hypot(*scaled[:groups]), scaled[groups:]


def _sample(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Evenly spaced values of evenly spaced tensors; the same choice on every rank."""
    pieces = [piece for tensor in tensors for piece in flat_pieces(tensor)]
    chosen = pieces[:: max(1, math.ceil(len(pieces) / _TENSORS_PER_GROUP))]
    return [piece[:: max(1, piece.numel() // _VALUES_PER_TENSOR)] for piece in chosen]
