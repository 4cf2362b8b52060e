"""The distance between two long vectors from what is left of each: a linear sketch.

Every value is given a sign and added to one of 65,536 bins. The signs are as good as random, so that in the
norm of the bins the products of different values cancel, and what remains is the norm of the vector but for
half a per cent. The map is linear: the difference of two sketches is the sketch of the difference. What has
no more values than there are bins is its own sketch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["sketch"]

_BINS = 1 << 16
#: Where in the signs, and in the bins, the k-th piece begins: odd, so that all places come up in turn.
_SIGN_STRIDE, _BIN_STRIDE = 40_503, 24_571
#: So many pieces of a GPU's tensor are added at once: a billion weights are sixteen thousand of them, and to
#: begin each by itself would take longer than to add it.
_AT_ONCE = 64


@torch.no_grad()
def sketch(tensors: Sequence[Tensor]) -> Tensor:
    """A vector of at most 65,536 values, on the device of the first tensor: sums in double precision, or the
    values themselves.

    >>> a, b = torch.randn(2, 300_000, generator=torch.Generator().manual_seed(0))
    >>> near = (sketch([a]) - sketch([b])).norm() / (a - b).norm()
    >>> 0.98 < near < 1.02
    tensor(True)
    """
    first = tensors[0]
    if sum(tensor.numel() for tensor in tensors) <= _BINS:
        return torch.cat([tensor.reshape(-1).to(first.device) for tensor in tensors])
    bins = _Bins(first.device)
    for tensor in tensors:
        flat = tensor.reshape(-1).to(first.device)
        whole = len(flat) // _BINS if first.device.type == "cuda" else 0
        for pieces in torch.split(flat[: whole * _BINS].view(whole, _BINS), _AT_ONCE) if whole else ():
            bins.add_pieces(pieces)
        for piece in torch.split(flat[whole * _BINS :], _BINS):
            bins.add_piece(piece)
    return bins.sums[:_BINS] + bins.sums[_BINS:]


class _Bins:
    """The sums so far, twice as many as there are bins: what goes beyond the last one is added to the first
    in the end."""

    def __init__(self, device: torch.device) -> None:
        wide = torch.float32 if device.type == "mps" else torch.float64
        self.sums = torch.zeros(2 * _BINS, dtype=wide, device=device)
        # The same on every device and in every process.
        coins = torch.randint(0, 2, (2 * _BINS,), generator=torch.Generator().manual_seed(0))
        self._signs = (2.0 * coins - 1.0).to(device, torch.float32)
        self._count = 0

    def add_piece(self, piece: Tensor) -> None:
        """One, as long as there are bins or shorter."""
        if not len(piece):
            return
        sign, at = self._count * _SIGN_STRIDE % _BINS, self._count * _BIN_STRIDE % _BINS
        self.sums[at : at + len(piece)] += piece * self._signs[sign : sign + len(piece)]
        self._count += 1

    def add_pieces(self, pieces: Tensor) -> None:
        """Several, each as long as there are bins: of every one the value that each bin is due, then their
        sum. No bin is written to by two at once, so the sum is the same every time."""
        device = pieces.device
        number = torch.arange(self._count, self._count + len(pieces), device=device)[:, None]
        due = (torch.arange(_BINS, device=device) - number * _BIN_STRIDE) % _BINS
        signed = pieces.gather(1, due) * self._signs[due + number * _SIGN_STRIDE % _BINS]
        self.sums[:_BINS] += signed.sum(0, dtype=self.sums.dtype)
        self._count += len(pieces)
