"""The compressed mean among replicas that are threads: exact in the long run, the same for all."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch
from torch import Tensor

from hdet.replicas.compressed import CompressedMean, Wire


class Table:
    """Where N threads lay their bytes down; no wait is longer than ten seconds."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.rows: list[Tensor] = [torch.empty(0)] * size
        self.barrier = Barrier(size, timeout=10)

    def swap(self, rank: int, row: Tensor) -> list[Tensor]:
        self.rows[rank] = row.clone()
        self.barrier.wait()
        rows = list(self.rows)
        self.barrier.wait()
        return rows


class Post:
    def __init__(self, table: Table, rank: int) -> None:
        self.table, self.rank, self.size = table, rank, table.size
        self.sent = 0

    def scatter_bytes(self, rows: Tensor) -> Tensor:
        self.sent += rows.numel() * (self.size - 1) // self.size
        return torch.stack([row[self.rank] for row in self.table.swap(self.rank, rows)])

    def gather_bytes(self, row: Tensor) -> Tensor:
        self.sent += row.numel() * (self.size - 1)
        return torch.stack(self.table.swap(self.rank, row))


class Team:
    """N replicas of pieces of some lengths; ``mean`` lets all of them meet."""

    def __init__(
        self, size: int, lengths: Sequence[int], bucket_values: int = 1 << 20, wire: Wire = "int8"
    ) -> None:
        table = Table(size)
        self.posts = [Post(table, rank) for rank in range(size)]
        cpu = torch.device("cpu")
        self.means = [CompressedMean(lengths, cpu, p, wire=wire, bucket=bucket_values) for p in self.posts]

    def mean(self, pieces: list[list[Tensor]], starts: list[Tensor], lost: Sequence[int] = ()) -> None:
        def meet(rank: int) -> None:
            self.means[rank](pieces[rank], starts, lost)

        everybody(len(self.posts), meet)


def everybody(size: int, act: Callable[[int], object]) -> None:
    with ThreadPoolExecutor(size) as pool:
        list(pool.map(act, range(size)))


def random_pieces(lengths: Sequence[int], seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, generator=generator).to(dtype) for n in lengths]


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("bucket_values", [10, 1500, 1 << 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("wire", ["bf16", "int8"])
def test_all_get_the_same_and_it_is_near_the_mean(
    size: int, bucket_values: int, dtype: torch.dtype, wire: Wire
) -> None:
    lengths = [3, 1, 1025, 1, 700]
    starts = random_pieces(lengths, 9, dtype)
    pieces = [
        [s + 0.1 * d.to(dtype) for s, d in zip(starts, random_pieces(lengths, r), strict=True)]
        for r in range(size)
    ]
    exact = [torch.stack([own[i].double() for own in pieces]).mean(0) for i in range(len(lengths))]
    Team(size, lengths, bucket_values, wire).mean(pieces, starts)
    for i, mean in enumerate(exact):
        assert all(torch.equal(own[i], pieces[0][i]) for own in pieces)
        slack = 0.02 if dtype == torch.bfloat16 else 0.006 if wire == "int8" else 0.003
        torch.testing.assert_close(pieces[0][i].double(), mean, rtol=0, atol=slack)


def test_who_has_not_moved_stays_bit_for_bit() -> None:
    starts = random_pieces([50, 7], 0)
    pieces = [[s.clone() for s in starts] for _ in range(3)]
    Team(3, [50, 7]).mean(pieces, starts)
    assert all(torch.equal(p, s) for own in pieces for p, s in zip(own, starts, strict=True))


@pytest.mark.parametrize(("wire", "share"), [("bf16", 0.5), ("int8", 0.25)])
def test_half_or_a_quarter_of_the_bytes_whatever_the_size(wire: Wire, share: float) -> None:
    for size in (2, 4, 8):
        starts = [torch.zeros(100_000)]
        team = Team(size, [100_000], wire=wire)
        team.mean([[torch.randn(100_000)] for _ in range(size)], starts)
        in_float32 = 2 * 4 * 100_000 * (size - 1) / size
        for post in team.posts:
            assert share <= post.sent / in_float32 < share + 0.01


@pytest.mark.parametrize(("wire", "step"), [("int8", 1 / 127), ("bf16", 2.0**-8)])
@pytest.mark.parametrize("large", [[1.0, -1.0, 1.0, -1.0], [1.0, 1.0, 1.0, 1.0]], ids=["cancels", "stays"])
def test_errors_come_back_so_that_the_mean_of_many_rounds_is_exact(
    large: list[float], wire: Wire, step: float
) -> None:
    """Replicas drift by what eight bits cannot say: most values are far below half a step of their block, in
    what replicas send and, where the large ones do not cancel, in what the owner of a shard sends."""
    size, rounds, n = 4, 300, 40
    generator = torch.Generator().manual_seed(0)
    drift = 1e-4 * torch.randn(size, n, generator=generator)
    drift[:, :: n // size] = torch.tensor(large).unsqueeze(1)  # one in each shard sets its scale
    small = torch.arange(n) % (n // size) > 0
    team = Team(size, [n], wire=wire)
    theta, exact = torch.zeros(n), torch.zeros(n, dtype=torch.float64)
    off = []
    for k in range(rounds):
        pieces = [[theta + drift[r] * (1 + 0.5 * math.sin(k + r))] for r in range(size)]
        exact += torch.stack([own[0] - theta for own in pieces]).double().mean(0)
        team.mean(pieces, [theta])
        theta = pieces[0][0]
        off.append(float((theta.double() - exact)[small if wire == "int8" else ~small].abs().max()))
    # Without it nothing of these values would ever arrive. With it, what is owed stays below some steps,
    # however long it goes on. In bf16, whose step follows each value, it is the large ones that lose.
    assert float(exact[small].abs().max()) > 0.02
    assert max(off) < 3 * step
    assert max(off[-50:]) < 2 * max(off[:50]) + 1e-3


def test_a_lost_replica_is_left_out_and_owes_nothing_that_is_not_finite() -> None:
    lengths = [30]
    starts = [torch.zeros(30)]
    team = Team(3, lengths)
    pieces = [[torch.full((30,), 1.0)], [torch.full((30,), math.nan)], [torch.full((30,), 2.0)]]
    team.mean(pieces, starts, lost=[1])
    for own in pieces:
        torch.testing.assert_close(own[0], torch.full((30,), 1.5), rtol=0, atol=0.02)
    assert all(torch.equal(own[0], pieces[0][0]) for own in pieces)
    pieces = [[torch.full((30,), 1.0)], [torch.full((30,), math.inf)], [torch.full((30,), 2.0)]]
    team.mean(pieces, starts)  # nobody said that it is lost: then all see it
    assert all(bool(own[0].isnan().all()) for own in pieces)
    for mean in team.means:
        assert all(bool(t.isfinite().all()) for kept in mean.state_dict().values() for t in kept)


def test_what_is_owed_is_taken_up_and_that_of_other_pieces_is_not() -> None:
    starts = [torch.zeros(100)]
    one, two = Team(2, [100]), Team(2, [100])
    first = [[torch.randn(100)] for _ in range(2)]
    one.mean(first, starts)
    for a, b in zip(one.means, two.means, strict=True):
        b.load_state_dict({k: [t.clone() for t in kept] for k, kept in a.state_dict().items()})
    again = [[torch.randn(100)] for _ in range(2)]
    same = [[own[0].clone()] for own in again]
    one.mean(again, starts)
    two.mean(same, starts)
    assert torch.equal(again[0][0], same[0][0])
    other = Team(2, [99])
    other.means[0].load_state_dict(one.means[0].state_dict())
    assert not any(bool(t.any()) for kept in other.means[0].state_dict().values() for t in kept)
