"""Which groups share a factor, and how the factors of several optimizers move."""

from __future__ import annotations

import pytest

from hdet.autolr.policy import Factors
from hdet.autolr.rule import HorizonDecision, HorizonState


@pytest.mark.parametrize(
    ("sizes", "names", "of_group", "highest"),
    [
        ((), ["lr"], [0, 0, 0], [5.0]),
        ((1, 2), ["lr/0", "lr/1-2"], [0, 1, 1], [2.0, 5.0]),
        ((2, 1), ["lr/0-1", "lr/2"], [0, 0, 1], [5.0, 1.0]),
    ],
)
def test_each_optimizer_has_its_own(
    sizes: tuple[int, ...], names: list[str], of_group: list[int], highest: list[float]
) -> None:
    made = Factors(sizes)
    assert made.names() == names
    assert [made.of_group(i) for i in range(3)] == of_group
    assert made.highest([2.0, 5.0, 1.0]) == highest


def decided(value: float, action: str, why: str = "", windows: int = 9) -> HorizonDecision:
    return HorizonDecision(HorizonState(value, windows=windows), action, 1.0, why=why)  # type: ignore[arg-type]


def after(*decisions: HorizonDecision) -> list[tuple[float, str]]:
    before = [HorizonState(1.0, windows=d.state.windows) for d in decisions]
    made = Factors((1,) * len(decisions)).as_one(before, decisions)
    return [(round(d.state.value, 9), d.action) for d in made]


def test_they_move_together() -> None:
    """By the mean of what each would have done, as a factor."""
    assert after(decided(4.0, "up"), decided(1.0, "hold", "not significant")) == [(2.0, "up")] * 2
    assert after(decided(0.25, "down"), decided(1.0, "hold", "no progress")) == [(0.5, "down")] * 2
    assert after(decided(8.0, "up"), decided(0.5, "down")) == [(2.0, "up")] * 2


def test_until_all_are_at_speed_each_moves_by_itself() -> None:
    own = [(3.0, "scale"), (1.5, "up")]
    assert after(decided(3.0, "scale"), decided(1.5, "up")) == own
    assert after(decided(0.3, "back"), decided(1.5, "up")) == [(0.3, "back"), (1.5, "up")]


def test_one_at_its_bound_or_that_does_not_move_stays() -> None:
    assert after(decided(4.0, "up"), decided(1.0, "hold")) == [(2.0, "up"), (1.0, "hold")]
    idle = decided(1.0, "hold", "nothing is trained", windows=0)
    assert after(decided(4.0, "up"), idle) == [(4.0, "up"), (1.0, "hold")]
