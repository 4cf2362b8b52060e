"""The bucket plan against a plain mean, with a communicator that counts and plays the other replicas."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hdet.replicas import averaging
from hdet.replicas.averaging import BucketedMean, flat_pieces


class Echo:
    """A communicator among replicas that all hold what this one holds: SUM multiplies by N."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sent: list[Tensor] = []
        self.under_way = 0
        self.most_under_way = 0

    def all_reduce(self, tensor: Tensor) -> Callable[[], None]:
        self.sent.append(tensor)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)

        def wait() -> None:
            self.under_way -= 1
            tensor.mul_(self.size)

        return wait


def check(tensors: list[Tensor], *, bucket_bytes: int, in_place_bytes: int = 1 << 30, size: int = 4) -> Echo:
    echo = Echo(size)
    before = [t.clone() for t in tensors]
    layout = [(t.data_ptr(), t.stride()) for t in tensors]
    mean = BucketedMean(
        tensors,
        size=size,
        all_reduce=echo.all_reduce,
        memory_bytes=3 * bucket_bytes,
        in_place_bytes=in_place_bytes,
    )
    mean()
    mean()
    for a, b in zip(before, tensors, strict=True):
        assert torch.equal(a, b)
    assert layout == [(t.data_ptr(), t.stride()) for t in tensors]
    assert mean.extra_bytes <= 3 * bucket_bytes
    assert echo.under_way == 0
    return echo


def test_two_tensors_of_six_with_room_for_ten() -> None:
    echo = check([torch.randn(6), torch.randn(6)], bucket_bytes=40)
    assert [t.numel() for t in echo.sent] == [10, 2] * 2


def test_one_tensor_larger_than_a_bucket() -> None:
    echo = check([torch.randn(5, 5)], bucket_bytes=40)
    assert [t.numel() for t in echo.sent] == [10, 10, 5] * 2
    assert echo.most_under_way == 3


def test_large_tensors_travel_as_they_lie() -> None:
    large, small, half = torch.randn(5, 5), torch.randn(3), torch.randn(30).to(torch.bfloat16)
    echo = check([large, small, half], bucket_bytes=400, in_place_bytes=60)
    assert echo.sent[1].data_ptr() == large.data_ptr()
    assert [t.numel() for t in echo.sent] == [33, 25] * 2


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=12),
    st.integers(1, 200),
    st.integers(1, 200),
    st.sampled_from([torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64]),
)
@settings(deadline=None, max_examples=25)
def test_every_element_exactly_once(
    sizes: list[int], bucket_bytes: int, in_place_bytes: int, dtype: torch.dtype
) -> None:
    tensors = [torch.randn(n).to(dtype) for n in sizes]
    bucket_bytes = max(bucket_bytes, 8)
    echo = check(tensors, bucket_bytes=bucket_bytes, in_place_bytes=in_place_bytes)
    real = 2 if dtype.is_complex else 1
    assert sum(t.numel() for t in echo.sent) == 2 * real * sum(sizes)
    assert all(t.dtype in (torch.float32, torch.float64) for t in echo.sent)


def test_mixed_dtypes_and_layouts() -> None:
    base = torch.randn(8, 10)
    tensors = [
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.randn(5, 7).t(),
        base[:, ::2],  # a slice with gaps: its neighbours must survive
        torch.randn(11, dtype=torch.float64),
        torch.randn(9).to(torch.bfloat16),
        torch.tensor(2.5),
    ]
    neighbours = base[:, 1::2].clone()
    check(tensors, bucket_bytes=64)
    assert torch.equal(base[:, 1::2], neighbours)


def test_views_of_one_memory_are_averaged_once() -> None:
    tensor = torch.randn(6)
    echo = check([tensor, tensor, tensor.view(6)], bucket_bytes=400)
    assert [t.numel() for t in echo.sent] == [6, 6]


@pytest.mark.parametrize("in_place_bytes", [1, 1 << 30])
def test_tied_by_a_view_of_another_shape(in_place_bytes: int) -> None:
    """A decoder that is its encoder transposed: two collectives on one memory would race."""
    encoder = torch.randn(6, 4)
    tied = [encoder, encoder.t(), encoder[2:], encoder.view(24)]
    echo = check(tied, bucket_bytes=400, in_place_bytes=in_place_bytes)
    assert [t.numel() for t in echo.sent] == [24, 24]
    echo = check(tied[::-1], bucket_bytes=400, in_place_bytes=in_place_bytes)
    assert [t.numel() for t in echo.sent] == [24, 24]


def test_memory_shared_in_part_is_refused() -> None:
    memory = torch.randn(10)
    with pytest.raises(TypeError, match="overlaps another one's memory in part"):
        BucketedMean([memory[:6], memory[4:]], size=2, all_reduce=Echo(2).all_reduce)


def test_an_expanded_tensor_is_averaged_once() -> None:
    echo = check([torch.randn(3, 1).expand(3, 5)], bucket_bytes=400)
    assert [t.numel() for t in echo.sent] == [3, 3]


@pytest.mark.parametrize("size", [3, 24])
def test_in_float64_equal_constants_stay_as_they_are(size: int) -> None:
    tensors = [torch.tensor(torch.finfo(torch.float32).min), torch.randn(1000)]
    before = [t.clone() for t in tensors]
    echo = Echo(size)
    BucketedMean([], tensors, size=size, all_reduce=echo.all_reduce)()
    assert all(torch.equal(a, b) for a, b in zip(before, tensors, strict=True))


@pytest.mark.parametrize("size", [3, 7])
def test_sums_are_float32_whatever_the_weights(size: int) -> None:
    """In bf16 the sum of N equal values is not N times the value; in float32 it is, so they come back."""
    tensor = torch.randn(1000).to(torch.bfloat16)
    check([tensor], bucket_bytes=1 << 12, size=size)


def test_dense_tensors_are_one_piece() -> None:
    assert len(flat_pieces(torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last))) == 1
    assert len(flat_pieces(torch.randn(5, 7).t())) == 1
    assert len(flat_pieces(torch.randn(8, 10)[:, ::2])) == 8
    assert flat_pieces(torch.empty(0, 3)) == []


def test_what_cannot_be_averaged_is_refused() -> None:
    for tensor in (torch.arange(3), torch.eye(3).to_sparse()):
        with pytest.raises(TypeError, match="only dense floating tensors"):
            BucketedMean([tensor], size=2, all_reduce=Echo(2).all_reduce)


def test_buckets_grow_with_the_replicas_and_the_plan_is_the_same_on_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A ring cuts a bucket into a part for each: parts of many replicas would be all latency."""
    for name, value in (("MEMORY_BYTES", 120), ("LEAST_PART_BYTES", 4), ("MOST_MEMORY_BYTES", 480)):
        monkeypatch.setattr(averaging, name, value)
    monkeypatch.setattr(averaging, "LEAST_BUCKET_BYTES", 40)
    largest = {}
    for size in (2, 10, 20, 1000):
        echo = Echo(size)
        mean = BucketedMean([torch.ones(500)], size=size, all_reduce=echo.all_reduce)
        mean()
        assert sum(mean.collective_bytes) == 2000
        assert [t.numel() * 4 for t in echo.sent] == mean.collective_bytes
        largest[size] = max(mean.collective_bytes)
    assert largest == {2: 40, 10: 40, 20: 80, 1000: 160}


def test_nothing_is_written_where_something_speaks_against_it_and_the_next_mean_is_right() -> None:
    """What the ranks have to say is heard while the first sums are under way; large tensors are not yet."""
    tensors = [torch.randn(12), torch.randn(40)]
    before = [t.clone() for t in tensors]
    echo = Echo(2)
    mean = BucketedMean(tensors, size=2, all_reduce=echo.all_reduce, memory_bytes=48, in_place_bytes=80)

    def sound() -> bool:
        assert [t.numel() for t in echo.sent] == [4, 4, 4]
        return False

    def objects() -> bool:
        raise RuntimeError("the ranks disagree")

    assert not mean(sound)
    with pytest.raises(RuntimeError, match="the ranks disagree"):
        mean(objects)
    assert all(torch.equal(a, b) for a, b in zip(before, tensors, strict=True))
    assert mean()
    assert all(torch.equal(a, b) for a, b in zip(before, tensors, strict=True))
    assert echo.under_way == 0


@pytest.mark.parametrize(("size", "megabytes"), [(2, 1), (4, 3)])
def test_from_some_size_on_a_tensor_is_summed_where_it_lies(size: int, megabytes: int) -> None:
    least = megabytes << 20
    tensors = [torch.zeros(least // 4), torch.zeros(least // 4 - 1)]
    mean = BucketedMean(tensors, size=size, all_reduce=Echo(size).all_reduce)
    assert mean.collective_bytes == [least, least - 4]
    assert mean.extra_bytes == least - 4, "packed is the smaller one alone"
