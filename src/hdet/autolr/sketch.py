"""The distance between two long vectors from what is left of each: a linear sketch.

Every value is given a sign and added to one of 65,536 bins. The signs are as good as random, so that in the
norm of the bins the products of different values cancel, and what remains is the norm of the vector but for
half a per cent. The map is linear: the difference of two sketches is the sketch of the difference. What has
no more values than there are bins is its own sketch.

Where the values of a vector lie on several ranks, each adds its own to the bins they have in the whole, and
the sum over the ranks is the sketch that one rank alone would have made: however the vector is cut.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hdet.replicas import shard_offset, shard_positions

__all__ = ["sketch", "sketch_of_shards"]

_BINS = 1 << 16
#: Where in the signs, and in the bins, the k-th piece begins: odd, so that all places come up in turn.
_SIGN_STRIDE, _BIN_STRIDE = 40_503, 24_571
#: So many pieces of a GPU's tensor are added at once: a billion weights are sixteen thousand of them, and to
#: begin each by itself would take longer than to add it.
_PIECES = 64
#: Values whose places in the whole are worked out together.
_AT_ONCE = 1 << 20


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
    bins = _Bins(first)
    for tensor in tensors:
        flat = tensor.reshape(-1).to(first.device)
        whole = len(flat) // _BINS if first.device.type == "cuda" else 0
        for pieces in torch.split(flat[: whole * _BINS].view(whole, _BINS), _PIECES) if whole else ():
            bins.add_pieces(pieces)
        if not whole or len(flat) % _BINS:
            for piece in torch.split(flat[whole * _BINS :], _BINS):
                bins.add_piece(piece)
    return bins.sums[:_BINS] + bins.sums[_BINS:]


class _Bins:
    """The sums so far, twice as many as there are bins: what goes beyond the last one is added to the first
    in the end."""

    def __init__(self, like: Tensor) -> None:
        self.sums = torch.zeros(2 * _BINS, dtype=_wide(like), device=like.device)
        self._signs = _signs(like.device)
        self._count = 0

    def add_piece(self, piece: Tensor) -> None:
        """One, as long as there are bins or shorter."""
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


@torch.no_grad()
def sketch_of_shards(
    shards: Sequence[Tensor], parameters: Sequence[Tensor], shares: Sequence[float]
) -> Tensor:
    """What this rank adds to the sketch of whole parameters, in double precision.

    Args:
        shards: what it has of each.
        parameters: what they are shards of.
        shares: with which they count; those of all ranks that hold the same values add up to 1.
    """
    device, wide = shards[0].device, _wide(shards[0])
    few = sum(parameter.numel() for parameter in parameters) <= _BINS
    bins = torch.zeros(sum(p.numel() for p in parameters) if few else _BINS, dtype=wide, device=device)
    signs = None if few else _signs(device)
    before = 0  # values of the parameters before this one; or pieces of so many values as there are bins
    for shard, parameter, share in zip(shards, parameters, shares, strict=True):
        flat, start = shard.reshape(-1), shard_offset(parameter)
        at = 0
        while at < flat.numel():
            # In one run of the whole no bin comes up twice. Else they are looked up one by one.
            left = _BINS - (start + at) % _BINS if start is not None else _AT_ONCE
            piece = flat[at : at + left].to(device, wide) * share
            if start is None:
                where = shard_positions(parameter, at, at + len(piece), device)
            else:
                where = torch.arange(start + at, start + at + len(piece), device=device)
            if signs is None:
                bins.index_add_(0, where + before, piece)
            else:
                k, j = where // _BINS + before, where % _BINS
                bins.index_add_(0, (k * _BIN_STRIDE + j) % _BINS, piece * signs[k * _SIGN_STRIDE % _BINS + j])
            at += len(piece)
        before += parameter.numel() if few else max(1, -(-parameter.numel() // _BINS))
    return bins


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def _signs(device: torch.device) -> Tensor:
    """The same on every device and in every process."""
    coins = torch.randint(0, 2, (2 * _BINS,), generator=torch.Generator().manual_seed(0))
    return (2.0 * coins - 1.0).to(device, torch.float32)
