"""How long windows are: they grow with the run, and leave no gap and no stub."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from hdet.loop.windows import Windows


def ends(windows: Windows, until: int) -> list[int]:
    found, step = [], windows.end_after(0)
    while step is not None and step <= until:
        found.append(step)
        step = windows.end_after(step)
    return found


# ---------------------------------------------------------------------- windows


def test_windows_grow_with_the_run() -> None:
    assert ends(Windows(), 150) == [10, 20, 30, 40, 50, 60, 72, 86, 103, 123, 147]


@given(st.integers(1, 50), st.floats(0, 1), st.one_of(st.none(), st.integers(1, 3000)))
def test_windows_cover_the_search_without_gap_or_stub(first: int, share: float, last: int | None) -> None:
    windows = Windows(first, share, last)
    found = [0, *ends(windows, 5000)]
    lengths = [b - a for a, b in pairwise(found)]
    for start, length in zip(found, lengths, strict=False):
        asked = max(first, int(share * start))
        if start + length != last:
            assert length == asked
        else:
            assert 0 < length < 1.5 * asked + 1, "the last one takes in a rest that is too short"
    if last is not None and len(lengths) > 1:
        assert lengths[-1] >= lengths[-2] // 2, "so none is a stub"
    if last is not None:
        assert found[-1] == last
        assert windows.end_after(last) is None
        assert windows.end_after(last + 7) is None


def test_fixed_windows() -> None:
    assert ends(Windows(first=25, share=0.0), 110) == [25, 50, 75, 100]
    assert ends(Windows(first=25, share=0.0, last=110), 200) == [25, 50, 75, 110], "a rest of 10 is added"
    assert ends(Windows(first=25, share=0.0, last=115), 200) == [25, 50, 75, 100, 115], "one of 15 is not"
