"""Whether tensors are finite, and how large: one pass over them, at a sync.

``torch._foreach_norm`` has no public name yet (torch 2.6 to 2.13); it reads as fast as a copy does, and four
times as fast as an ``isfinite`` of each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["norm_of", "row_norms"]


@torch.no_grad()
def norm_of(tensors: Sequence[Tensor]) -> float:
    """‖·‖₂ of all together; NaN if any value is not finite. Waits for the device."""
    alike: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        if tensor.numel():
            wide = tensor.float() if tensor.element_size() == 1 else tensor  # 8-bit floats have no norm
            alike.setdefault((wide.device, wide.dtype), []).append(wide)
    norms: list[float] = []
    for (_, dtype), own in alike.items():
        sums_in = None if dtype.itemsize > 2 else torch.float32
        found = torch.stack(torch._foreach_norm(own, 2, sums_in)).tolist()
        norms += [norm if math.isfinite(norm) else _overflowed(t) for norm, t in zip(found, own, strict=True)]
    return math.hypot(*norms)


@torch.no_grad()
def row_norms(tensors: Sequence[Tensor], rows: int) -> Tensor:
    """The same for every row of matrices, one for each replica."""
    total = torch.zeros(rows, dtype=torch.float64)
    for tensor in (t for t in tensors if t.numel()):
        flat = tensor.reshape(rows, -1)
        sums_in = None if flat.is_complex() else torch.promote_types(flat.dtype, torch.float32)
        norms = torch.linalg.vector_norm(flat, dim=1, dtype=sums_in).double().cpu()
        for row in (~torch.isfinite(norms)).nonzero().flatten().tolist():
            norms[row] = _overflowed(flat[row])
        total = torch.hypot(total, norms)
    return total


def _overflowed(tensor: Tensor) -> float:
    """A sum of squares overflows before a value does: then the largest value; NaN if that is not finite."""
    largest = float(torch.linalg.vector_norm(tensor, math.inf))
    return largest if math.isfinite(largest) else math.nan
