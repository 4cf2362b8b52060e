"""Windows in the search, in the descent, and in a search that began anew."""

from __future__ import annotations

from hdet.autolr.clock import Clock
from hdet.loop.windows import Windows


def ends(clock: Clock, step: int) -> list[int]:
    found = []
    clock.begin(step)
    while clock.end is not None:
        found.append(clock.end)
        clock.begin(clock.end)
    return found


def test_the_descent_has_windows_to_the_last_step() -> None:
    clock = Clock(Windows(first=10, share=0.2, last=75), total_steps=100)
    assert ends(clock, 0) == [10, 20, 30, 40, 50, 60, 75, 90, 100]
    assert not clock.searching


def test_a_restarted_search_counts_from_there() -> None:
    clock = Clock(Windows(first=10, share=0.5, last=200), origin=100)
    assert ends(clock, 100) == [110, 120, 130, 145, 167, 200]


def test_without_an_end_the_search_is_all_there_is() -> None:
    clock = Clock(Windows(last=None))
    clock.begin(50)
    assert (clock.end, clock.length, clock.ends_run) == (60, 10, False)
    clock.stop()
    assert (clock.end, clock.length) == (None, 0)
    clock.end_at(80)
    assert (clock.end, clock.ends_run) == (80, True)


def test_it_is_saved_and_taken_up() -> None:
    clock = Clock(Windows(), total_steps=100, origin=30)
    clock.begin(40)
    again = Clock(Windows())
    again.load_state_dict(clock.state_dict())
    assert again == clock
