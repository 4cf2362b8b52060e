"""The mean behind *converge* (Eq. 3): many tensors, few collectives, in place.

Small tensors are packed into reused buckets, summed in float32 (float64 stays float64) and copied back;
while two buckets are summed, a third is packed or unpacked. A large dense tensor of the sums' dtype is summed
where it lies. Addresses, strides and memory formats never change. The plan is made once; carrying it out
allocates nothing. What the ranks must agree on is looked at while the first buckets are summed.

``torch._foreach_copy_`` has no public name yet (torch 2.6 to 2.13); a loop of ``Tensor.copy_`` replaces it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "BucketedMean",
    "always",
    "bucket_memory",
    "differing_values",
    "distinct_tensors",
    "elements",
    "flat_pieces",
    "floating_and_integer",
]

#: All extra memory. Smaller buckets overlap better, larger ones cost fewer collectives (docs/log.md).
MEMORY_BYTES = 48 << 20
BUCKETS = 3
#: A ring cuts a bucket into a part for each replica, and a smaller part costs its latency, not its bytes: for
#: more than 64 replicas buckets are larger, up to a limit.
LEAST_PART_BYTES = 256 << 10
MOST_MEMORY_BYTES = 384 << 20
#: A smaller bucket's collective costs more than it gains.
LEAST_BUCKET_BYTES = 4 << 20
#: From this size on a collective of its own costs less than packing and unpacking; between two replicas
#: on CPUs from a smaller one on (docs/log.md).
IN_PLACE_BYTES, IN_PLACE_BYTES_OF_TWO = 3 << 20, 1 << 20


@dataclass(frozen=True, slots=True)
class _Bucket:
    """The pieces of one collective, and the memory in which they are summed; ``sums`` are views of ``flat``,
    one for each piece."""

    pieces: list[Tensor]
    flat: Tensor
    sums: list[Tensor]
    converts: bool

    def pack(self) -> None:
        if self.converts:
            torch._foreach_copy_(self.sums, self.pieces)
        else:  # the same, and a third faster for many small tensors
            torch.cat(self.pieces, out=self.flat)


def always() -> bool:
    """Nothing speaks against it."""
    return True


class BucketedMean:
    """Mean over replicas of a fixed set of floating tensors.

    Args:
        tensors: what to average. Views of one memory (tied parameters) are averaged once.
        exact: more of them, which are often constants (a mask's least float, a table of angles): they are
            summed in float64 where the device has it, so that equal ones stay as they are, bit for bit.
        size: the number of replicas.
        all_reduce: starts an in-place sum over the replicas, and returns a function that waits for it.
        memory_bytes: the extra memory, on each device, that the buckets share; by the number of replicas if
            None. It must be the same on every rank, or their buckets would not be: so it never depends on
            how much memory is free.
        in_place_bytes: dense tensors of the sums' dtype from this size on are not packed; by the number of
            replicas if None.
    """

    def __init__(
        self,
        tensors: Iterable[Tensor],
        exact: Iterable[Tensor] = (),
        *,
        size: int,
        all_reduce: Callable[[Tensor], Callable[[], object]],
        memory_bytes: int | None = None,
        in_place_bytes: int | None = None,
    ) -> None:
        self._size = size
        self._all_reduce = all_reduce
        self._in_place: list[Tensor] = []
        packed: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        exact = list(exact)
        wide = {id(tensor) for tensor in exact if tensor.device.type != "mps"}
        for tensor in distinct_tensors([*tensors, *exact]):
            pieces = flat_pieces(tensor)
            first = pieces[0]
            dtype = torch.float64 if first.dtype == torch.float64 or id(tensor) in wide else torch.float32
            as_it_lies = len(pieces) == 1 and first.is_contiguous() and first.dtype == dtype
            least = IN_PLACE_BYTES_OF_TWO if size == 2 and first.is_cpu else IN_PLACE_BYTES
            least = least if in_place_bytes is None else in_place_bytes
            if as_it_lies and first.numel() * dtype.itemsize >= least:
                self._in_place.append(first)
            else:
                packed.setdefault((tensor.device, dtype), []).extend(pieces)

        memory_bytes = bucket_memory(size) if memory_bytes is None else memory_bytes
        chunks = [
            (device, dtype, chunk)
            for (device, dtype), pieces in packed.items()
            for chunk in _chunks(pieces, _capacity(pieces, dtype, memory_bytes))
        ]
        # The buckets of a device take turns in its memories, each as large as its largest bucket.
        turns: dict[tuple[torch.device, int], int] = {}
        for i, (device, dtype, chunk) in enumerate(chunks):
            turn = device, i % BUCKETS
            turns[turn] = max(turns.get(turn, 0), _numel(chunk) * dtype.itemsize)
        self._memory = {turn: torch.empty(n, dtype=torch.uint8, device=turn[0]) for turn, n in turns.items()}
        self._buckets: list[_Bucket] = []
        for i, (device, dtype, chunk) in enumerate(chunks):
            flat = self._memory[device, i % BUCKETS][: _numel(chunk) * dtype.itemsize].view(dtype)
            views = list(torch.split(flat, [piece.numel() for piece in chunk]))
            converts = any(piece.dtype != dtype for piece in chunk)
            self._buckets.append(_Bucket(chunk, flat, views, converts))
        self._under_way: deque[tuple[_Bucket, Callable[[], object]]] = deque()

    @property
    def collective_bytes(self) -> list[int]:
        """What is summed at a time, in order: whole tensors, then buckets."""
        sums = [*self._in_place, *(bucket.flat for bucket in self._buckets)]
        return [total.numel() * total.element_size() for total in sums]

    @property
    def extra_bytes(self) -> int:
        """Memory held beside the tensors themselves."""
        return sum(memory.numel() for memory in self._memory.values())

    @torch.no_grad()
    def __call__(self, sound: Callable[[], bool] = always) -> bool:
        """Replace every tensor by its mean. A collective; every rank calls it at the same step.

        ``sound`` is asked once, while the first buckets are summed and nothing is written yet. If it says no,
        nothing is: returns what it said.
        """
        under_way = self._under_way
        while under_way:  # of a mean that was given up
            under_way.popleft()[1]()
        under_way.extend(map(self._begin, self._buckets[:BUCKETS]))
        if not sound():
            return False
        in_place = [(tensor, self._all_reduce(tensor)) for tensor in self._in_place]
        for bucket in self._buckets[BUCKETS:]:
            self._finish(*under_way.popleft())  # its memory is the next one's
            under_way.append(self._begin(bucket))
        while under_way:
            self._finish(*under_way.popleft())
        for tensor, wait in in_place:
            wait()
            self._divide(tensor)
        return True

    def _begin(self, bucket: _Bucket) -> tuple[_Bucket, Callable[[], object]]:
        bucket.pack()
        return bucket, self._all_reduce(bucket.flat)

    def _finish(self, bucket: _Bucket, wait: Callable[[], object]) -> None:
        wait()
        self._divide(bucket.flat)
        torch._foreach_copy_(bucket.pieces, bucket.sums)

    def _divide(self, total: Tensor) -> None:
        if self._size & (self._size - 1) == 0:
            total.mul_(1 / self._size)  # exact, and on some CPUs three times as fast as a division
        else:
            total.div_(self._size)


def floating_and_integer(tensors: Iterable[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Those that can be averaged, and those that cannot."""
    kinds: tuple[list[Tensor], list[Tensor]] = [], []
    for tensor in tensors:
        kinds[not (tensor.is_floating_point() or tensor.is_complex())].append(tensor)
    return kinds


def differing_values(count: int) -> tuple[str, ...]:
    """The warning about integer buffers that differed."""
    return (f"{count} integer buffer values differed: the maximum was taken",) if count else ()


def bucket_memory(size: int) -> int:
    """What the buckets of so many replicas may take together.

    >>> [bucket_memory(n) >> 20 for n in (2, 64, 128, 4096)]
    [48, 48, 96, 384]
    """
    return min(max(MEMORY_BYTES, BUCKETS * size * LEAST_PART_BYTES), MOST_MEMORY_BYTES)


def flat_pieces(tensor: Tensor) -> list[Tensor]:
    """One-dimensional views that cover a tensor, in order of memory where that is possible.

    A dense tensor, whatever its strides (channels_last, transposed), is one piece.
    """
    tensor = elements(tensor.detach())
    if tensor.numel() == 0:
        return []
    if _is_dense(tensor):
        return [tensor.as_strided((tensor.numel(),), (1,))]
    if tensor.dim() == 1:
        return [tensor]
    return [piece for row in tensor.unbind(0) for piece in flat_pieces(row)]


def _capacity(pieces: Iterable[Tensor], dtype: torch.dtype, memory_bytes: int) -> int:
    """Elements of a bucket: a third of the memory, or less where that still makes three buckets."""
    least, most = LEAST_BUCKET_BYTES // dtype.itemsize, memory_bytes // BUCKETS // dtype.itemsize
    return max(1, min(most, max(least, -(-_numel(pieces) // BUCKETS))))


def _numel(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def elements(tensor: Tensor) -> Tensor:
    """Real numbers, each element of memory once: an expanded dimension repeats one element."""
    tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    for dimension, stride in enumerate(tensor.stride()):
        if stride == 0 and tensor.shape[dimension] > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def _is_dense(tensor: Tensor) -> bool:
    expected = 1
    by_stride = sorted(zip(tensor.stride(), tensor.shape, strict=True))
    for stride, length in by_stride:
        if length == 1:
            continue
        if stride != expected:
            return False
        expected *= length
    return True


def distinct_tensors(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Each memory once, in the order given: a view of another one's memory (tied weights) is left out.

    The choice follows from the order and from who contains whom, never from addresses, so it is the same on
    every rank.
    """
    seen: dict[tuple[object, ...], Tensor] = {}
    for tensor in tensors:
        if tensor.layout != torch.strided or not (tensor.is_floating_point() or tensor.is_complex()):
            raise TypeError(
                "BucketedMean: only dense floating tensors can be averaged, got "
                f"{tensor.dtype} with layout {tensor.layout}"
            )
        seen.setdefault((tensor.device, tensor.data_ptr(), tensor.shape, tensor.stride()), tensor)
    kept = [tensor for tensor in seen.values() if tensor.numel()]
    spans = sorted(
        (str(tensor.device), start, -end, i)
        for i, tensor in enumerate(kept)
        if _is_dense(tensor)
        for start, end in [(tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size())]
    )
    contained: set[int] = set()
    last_device, last_end = "", 0
    for device, start, negative_end, i in spans:
        if device != last_device or start >= last_end:
            last_device, last_end = device, -negative_end
        elif -negative_end <= last_end:
            contained.add(i)
        else:
            raise TypeError(
                f"BucketedMean: tensor {i} of shape {tuple(kept[i].shape)} overlaps another one's memory in "
                "part; parameters may share all of their memory or none"
            )
    return [tensor for i, tensor in enumerate(kept) if i not in contained]


def _chunks(pieces: Sequence[Tensor], capacity: int) -> Iterable[list[Tensor]]:
    """Fill buckets to the last element; a piece that does not fit is cut."""
    chunk: list[Tensor] = []
    free = capacity
    for piece in pieces:
        start = 0
        while start < piece.numel():
            length = min(free, piece.numel() - start)
            chunk.append(piece[start : start + length])
            start += length
            free -= length
            if free == 0:
                yield chunk
                chunk, free = [], capacity
    if chunk:
        yield chunk
