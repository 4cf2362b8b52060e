"""The mean of displacements in eight or sixteen bits a value, with error feedback: for links that are slow.

Every replica owns one of N shards. It sends each owner that owner's shard, rounded to what the wire holds;
the owner averages what it was sent, in float32, and sends that to all, rounded again. 2·(N−1)/N codes leave
a rank for every value: of int8 a quarter, of bf16 half of what a ring sends in float32, whatever N is (an
all-gather of all values would send N−1). All ranks decode the same bytes: what they get is bit-equal.

It is displacements that are rounded, never weights: a sum of weights in bf16 would lose what a round has
moved them by, which is often less than bf16's step.

What rounding took off is kept and added next time, on either way. Nothing is lost for good, and the mean over
many rounds is that of the exact values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

from hdet.replicas.quantise import blocks_of, dequantise, quantise

__all__ = ["CompressedMean", "Post", "Wire", "bucket_values", "check_wire"]

#: What a displacement is rounded to on its way.
Wire = Literal["bf16", "int8"]
#: Values that travel together; what is unpacked at one time takes some ten times as many bytes. Of more than
#: 64 replicas there are more, so that each still sends the other enough to be worth a message.
BUCKET_VALUES = 4 << 20
LEAST_PART_VALUES = 64 << 10
MOST_BUCKET_VALUES = 32 << 20


def bucket_values(size: int) -> int:
    """How many values of so many replicas travel together.

    >>> [bucket_values(n) >> 20 for n in (2, 64, 128, 4096)]
    [4, 4, 8, 32]
    """
    return min(max(BUCKET_VALUES, LEAST_PART_VALUES * size), MOST_BUCKET_VALUES)


def check_wire(caller: str, wire: Wire | None) -> None:
    """Raise ValueError for a format that there is not."""
    if wire is not None and wire not in get_args(Wire):
        raise ValueError(f"{caller}: wire must be None, 'bf16' or 'int8', got {wire!r}")


@runtime_checkable
class Post(Protocol):
    """How bytes get to other replicas, where they are processes of their own."""

    @property
    def rank(self) -> int:
        """Which of them this one is."""

    @property
    def size(self) -> int:
        """How many there are."""

    def scatter_bytes(self, rows: Tensor) -> Tensor:
        """Row r goes to replica r; what comes back has a row from each of them. A collective."""

    def gather_bytes(self, row: Tensor) -> Tensor:
        """Everybody's row of bytes, all of one length, in order of rank. A collective."""


class CompressedMean:
    """Mean over replicas of a fixed layout of one-dimensional pieces.

    Args:
        lengths: of the pieces.
        device: where they lie.
        post: the other replicas.
        wire: what values are rounded to on their way.
        bucket: how many values travel together; by the number of replicas if None.

    Beside the pieces it keeps one float32 for each value and one for each value of this replica's shard.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        device: torch.device,
        post: Post,
        *,
        wire: Wire = "int8",
        bucket: int | None = None,
    ) -> None:
        self.lengths = list(lengths)
        self.device = device
        self._post = post
        self._wire = wire
        total = sum(lengths)
        bucket = bucket_values(post.size) if bucket is None else bucket
        self._spans = [(at, min(at + bucket, total)) for at in range(0, total, bucket)]
        #: What has not been sent yet: of this replica's own values, and of the mean of its shard.
        self._own = [torch.zeros(end - at, device=device) for at, end in self._spans]
        self._shard = [torch.zeros(self._shard_of(end - at), device=device) for at, end in self._spans]

    def _shard_of(self, values: int) -> int:
        return -(-values // self._post.size)

    @torch.no_grad()
    def __call__(self, pieces: Sequence[Tensor], starts: Sequence[Tensor], lost: Sequence[int] = ()) -> None:
        """Let every piece be its start plus the mean of all replicas' displacements. A collective.

        Args:
            pieces: where this replica stands.
            starts: where all of them began, the same on all.
            lost: replicas that have no part in the mean, and take the others'.
        """
        heard = self._post.rank not in lost
        among = self._post.size - len(lost)
        for bucket, span in enumerate(self._spans):
            parts = list(_cut(self.lengths, *span))
            began = torch.cat([starts[i][a:b].to(self.device) for i, a, b in parts])
            ended = torch.cat([pieces[i][a:b].to(self.device) for i, a, b in parts])
            wide = torch.promote_types(began.dtype, torch.float32)
            began = began.to(wide)
            sent = (ended.to(wide) - began).float() if heard else torch.zeros_like(self._own[bucket])
            point = began + self._exchange(bucket, sent, heard, among).to(wide)
            for (i, a, b), new in zip(parts, torch.split(point, [b - a for _, a, b in parts]), strict=True):
                pieces[i][a:b].copy_(new)

    def _exchange(self, bucket: int, values: Tensor, heard: bool, among: int) -> Tensor:
        """The mean of ``values`` over those who are heard."""
        count, size = values.numel(), self._post.size
        shard = self._shard_of(count)
        rows = torch.zeros(size * shard, device=self.device)
        if heard:
            rows[:count] = values + self._own[bucket]
        message, said = _encode(rows.view(size, shard), self._wire)
        if heard:
            _keep(self._own[bucket], (rows - said.flatten())[:count])
        arrived = _decode(self._post.scatter_bytes(message), shard, self._wire)
        mean = arrived.sum(0) / among + self._shard[bucket]
        message, said = _encode(mean.unsqueeze(0), self._wire)
        _keep(self._shard[bucket], mean - said[0])
        return _decode(self._post.gather_bytes(message[0]), shard, self._wire).flatten()[:count]

    def state_dict(self) -> dict[str, Any]:
        """What has not been sent yet; it is this replica's own."""
        return {"own": self._own, "shard": self._shard}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take it over from a run with the same pieces and as many replicas; from another one, nothing."""
        if [t.shape for t in (*state["own"], *state["shard"])] == [
            t.shape for t in (*self._own, *self._shard)
        ]:
            for mine, saved in zip((*self._own, *self._shard), (*state["own"], *state["shard"]), strict=True):
                mine.copy_(saved)


def _cut(lengths: Sequence[int], at: int, end: int) -> Iterable[tuple[int, int, int]]:
    """Which pieces a span of all values covers, and from where to where in each.

    >>> list(_cut([3, 0, 4], 2, 6))
    [(0, 2, 3), (2, 0, 3)]
    """
    first = 0
    for i, length in enumerate(lengths):
        low, high = max(at - first, 0), min(end - first, length)
        if low < high:
            yield i, low, high
        first += length


def _encode(rows: Tensor, wire: Wire) -> tuple[Tensor, Tensor]:
    """A message for each row, scales then codes, and what it says."""
    if wire == "bf16":
        short = rows.to(torch.bfloat16)
        return short.view(torch.uint8), short.float()
    codes, scales = quantise(rows)
    return torch.cat([scales.view(torch.uint8), codes.view(torch.uint8)], dim=1), dequantise(codes, scales)


def _decode(messages: Tensor, values: int, wire: Wire) -> Tensor:
    if wire == "bf16":
        return messages.contiguous().view(torch.bfloat16).float()
    scales, codes = torch.split(messages, [4 * blocks_of(values), values], dim=1)
    return dequantise(codes.contiguous().view(torch.int8), scales.contiguous().view(torch.float32))


def _keep(memory: Tensor, error: Tensor) -> None:
    """An error that is not finite was no rounding: nothing is owed for it."""
    memory.copy_(torch.where(torch.isfinite(error), error, 0.0))
