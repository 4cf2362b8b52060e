"""How far the replicas are apart, and how far they should be.

On a shared gradient the replicas of a round lie on one line, θ_r = θ₀ + ρ_r·D, so replica r is at
distance |ρ_r − 1|·‖D‖ from the mean. Both sides are measured over the same fixed sample of the weights,
at a cost that does not grow with the model: a distance of 0 where one is predicted tells that something
undoes the fan-out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hdet.replicas import Replicas, local
from hdet.replicas.averaging import flat_pieces

__all__ = ["Divergence", "Measured", "predicted_distances"]

_TENSORS_PER_GROUP = 64
_VALUES_PER_TENSOR = 256


@dataclass(frozen=True, slots=True)
class Measured:
    """This replica's distance from the mean, ‖D‖ for each group, and the size of rounding errors.

    Of several replicas in one process, the distance is each one's, and the rest the first one's.
    """

    distance: float | Tensor
    displacements: tuple[float, ...]
    rounding: float


class Divergence:
    """Samples the weights of each parameter group before and after every mean.

    Args:
        groups: the parameters.
        replicas: who holds them. Of several in this process, weights are matrices with a row for each; of one
            that lies on several ranks, each samples its own part.
    """

    def __init__(self, groups: Sequence[Sequence[Tensor]], replicas: Replicas) -> None:
        self._several = replicas.here > 1
        self._whole_norms = replicas.whole_norms
        self._nothing = torch.zeros(replicas.here, 1) if self._several else torch.zeros(1)
        weights = [[(local(p), replicas.share_of(p)) for p in group] for group in groups]
        sampled = [_sample_rows(group) if self._several else _sample(group) for group in weights]
        self._samples = [[view for view, _ in views] for views in sampled]
        self._roots = [_roots(views) for views in sampled]
        # Scales a sample's norm to that of the whole group, or of this rank's share of it.
        self._scales = [
            math.sqrt(_count(group) / (_count(views) or 1))
            for group, views in zip(weights, sampled, strict=True)
        ]
        self._epsilons = [
            max([torch.finfo(torch.float32).eps, *(torch.finfo(v.dtype).eps for v in views)])
            for views in self._samples
        ]
        self._start = self.read()

    @torch.no_grad()
    def read(self) -> list[Tensor]:
        """The sampled weights as they are now."""
        return [
            torch.cat([view.to(views[0].device, torch.float32) for view in views], dim=-1)
            if views
            else self._nothing
            for views in self._samples
        ]

    @torch.no_grad()
    def measure(self, before: Sequence[Tensor]) -> Measured:
        """Compare with the weights after the mean; then restart.

        ``before`` is what :meth:`read` gave before the mean.
        """
        after = self.read()
        groups = list(zip(after, before, self._start, strict=True))
        differences = [b - a for a, b, _ in groups] + [a - s for a, _, s in groups] + after
        weighed = [
            d if root is None else d * root for d, root in zip(differences, self._roots * 3, strict=True)
        ]
        norms = [torch.linalg.vector_norm(d, dim=-1).cpu() for d in weighed]
        distances = torch.stack([n * scale for n, scale in zip(norms, self._scales, strict=False)]).double()
        scaled = self._whole_norms(
            [float(norm.flatten()[0]) * scale for norm, scale in zip(norms, self._scales * 3, strict=True)]
        )
        self._start = after
        n = len(groups)
        return Measured(
            distance=distances.norm(dim=0) if self._several else math.hypot(*scaled[:n]),
            displacements=tuple(scaled[n : 2 * n]),
            rounding=math.hypot(*(e * w for e, w in zip(self._epsilons, scaled[2 * n :], strict=True))),
        )


def predicted_distances(
    multipliers: Sequence[Sequence[float]], displacements: Sequence[float]
) -> tuple[float, ...]:
    """|ρ_r − 1|·‖D‖ for every replica, where each group has multipliers and a displacement of its own.

    >>> predicted_distances([(0.5, 1.5), (1.25, 0.75)], [3.0, 8.0])
    (2.5, 2.5)
    """
    return tuple(
        math.hypot(*((rho - 1) * norm for rho, norm in zip(column, displacements, strict=True)))
        for column in zip(*multipliers, strict=True)
    )


#: Weights, and the share with which their squares count.
_Shared = tuple[Tensor, float]


def _count(weights: Sequence[_Shared]) -> float:
    return sum(share * weight.numel() for weight, share in weights)


def _roots(views: Sequence[_Shared]) -> Tensor | None:
    """By what the values of views are multiplied before they are squared; None if all count whole."""
    if all(share == 1 for _, share in views):
        return None
    parts = [
        torch.full((view.numel(),), math.sqrt(share), device=views[0][0].device) for view, share in views
    ]
    return torch.cat(parts)


def _sample_rows(matrices: Sequence[_Shared]) -> list[_Shared]:
    """Evenly spaced columns."""
    columns = _TENSORS_PER_GROUP * _VALUES_PER_TENSOR
    return [(matrix.detach()[:, :: max(1, matrix.shape[1] // columns)], share) for matrix, share in matrices]


def _sample(tensors: Sequence[_Shared]) -> list[_Shared]:
    """Evenly spaced values of evenly spaced tensors; the same choice on every replica."""
    pieces = [(piece, share) for tensor, share in tensors for piece in flat_pieces(tensor)]
    chosen = pieces[:: max(1, math.ceil(len(pieces) / _TENSORS_PER_GROUP))]
    return [(piece[:: max(1, piece.numel() // _VALUES_PER_TENSOR)], share) for piece, share in chosen]
