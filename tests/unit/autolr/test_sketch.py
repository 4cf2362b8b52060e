"""What is left of a long vector tells how far it has moved."""

from __future__ import annotations

import pytest
import torch

from hdet.autolr.sketch import _Bins, sketch


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [1, 100, 65_536])
def test_what_is_small_is_its_own_sketch(size: int) -> None:
    vector = noise(size)
    assert torch.equal(sketch([vector]), vector)


@pytest.mark.parametrize(
    "shapes", [[(70_000,)], [(300, 1000), (1000,), (5,)], [(200_000,)] * 4, [(7,)] * 20_000]
)
def test_distances_are_kept(shapes: list[tuple[int, ...]]) -> None:
    here = [noise(*shape, seed=i) for i, shape in enumerate(shapes)]
    there = [a + 0.01 * noise(*a.shape, seed=-1 - i) for i, a in enumerate(here)]
    true = torch.cat([(a - b).flatten() for a, b in zip(here, there, strict=True)]).double().norm()
    assert float((sketch(here) - sketch(there)).norm() / true) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("rows", [2, 3, 64, 256])
def test_rows_that_move_alike_do_not_deceive_it(rows: int) -> None:
    """The same movement in every row of a matrix as wide as there are bins, and in one not as wide."""
    for width in (65_536, 40_000):
        moved = noise(width).expand(rows, width).contiguous()
        assert float(sketch([moved]).norm() / moved.double().norm()) == pytest.approx(1, abs=0.05)


def test_it_is_linear() -> None:
    a, b = noise(100_000), noise(100_000, seed=1)
    assert torch.allclose(sketch([a]) - sketch([b]), sketch([a.double() - b.double()]), atol=1e-5)


def test_small_movements_are_not_lost_in_rounding() -> None:
    a = noise(1_000_000)
    b = a * (1 + 1e-5)
    true = (a.double() - b.double()).norm()
    assert float((sketch([a]) - sketch([b])).norm() / true) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("before", [0, 5])
def test_many_pieces_at_once_are_the_same_as_one_after_the_other(dtype: torch.dtype, before: int) -> None:
    """The way of a GPU, and its slow twin."""
    pieces = noise(7, 65_536).to(dtype)
    slow, fast = (_Bins(pieces) for _ in range(2))
    for bins in (slow, fast):
        for k in range(before):
            bins.add_piece(noise(100 + k))
    for piece in pieces:
        slow.add_piece(piece)
    fast.add_pieces(pieces[:4])
    fast.add_pieces(pieces[4:])
    found, expected = (bins.sums[:65_536] + bins.sums[65_536:] for bins in (fast, slow))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
