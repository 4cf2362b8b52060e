"""Whether weights have been trained before: what training leaves in a matrix, and chance does not.

The largest singular value of a matrix of n rows and m columns whose values are drawn independently around
their mean, each of size s, is s·(√n + √m). Of the zoo's models none begins with a matrix above that; of those
that were trained two thirds of the values, mostly nine tenths, lie in matrices 1.25 to 3 times above it.
Which weights are new is not asked of the user, and does not follow from the loss: below a new head, spoilt
weights cost nothing at first.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hdet.replicas.norms import norm_of

__all__ = ["was_trained"]

#: So many times the largest singular value of a random matrix.
_STANDS_OUT = 1.25
#: Values that differ by less than this share of their size are one constant.
_ALL_ALIKE = 1e-3
#: Of the power iteration. What stands out is found in a few; for others too low a value comes out.
_ITERATIONS = 8


@torch.no_grad()
def was_trained(tensor: Tensor) -> bool:
    """Whether a tensor of two or more dimensions, as a matrix with its first as rows, stands out. Waits for
    the device.

    >>> drawn = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    >>> was_trained(drawn), was_trained(drawn + torch.outer(drawn[:, 0], drawn[0]))
    (False, True)
    """
    matrix = tensor.flatten(1)
    norm = norm_of([matrix])
    if not 0 < norm < math.inf:
        return False
    rows, columns = matrix.shape
    wide = None if matrix.is_complex() else torch.promote_types(matrix.dtype, torch.float32)
    mean = matrix.mean(dtype=wide).to(matrix.dtype)
    around = math.sqrt(max(norm * norm - matrix.numel() * float(mean.abs()) ** 2, 0.0))
    if around < _ALL_ALIKE * norm:
        return False
    drawn = torch.randn(columns, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    vector = drawn.to(matrix.device, matrix.dtype)
    for _ in range(_ITERATIONS):  # the mean is taken off the products, not off a copy of the matrix
        image = matrix @ vector - mean * vector.sum()
        image = image / torch.linalg.vector_norm(image)
        vector = matrix.mH @ image - mean.conj() * image.sum()
        largest = torch.linalg.vector_norm(vector)
        vector = vector / largest
    random = around / math.sqrt(rows * columns) * (math.sqrt(rows) + math.sqrt(columns))
    return float(largest) > _STANDS_OUT * random
