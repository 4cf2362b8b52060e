"""Which groups share a factor, and by whose losses they are judged."""

from __future__ import annotations

import pytest

from hdet.controllers import HorizonDecision, HorizonState
from hdet.policies.scopes import Scopes


@pytest.mark.parametrize(
    ("made", "names", "of_group", "judged", "highest"),
    [
        (Scopes.of("together", (), 3), ["lr"], [0, 0, 0], 1, [5.0]),
        (Scopes.of("together", (3,), 3), ["lr"], [0, 0, 0], 1, [5.0]),
        (Scopes.of("together", (1, 2), 3), ["lr/0", "lr/1-2"], [0, 1, 1], 1, [2.0, 5.0]),
        (Scopes.of("together", (2, 1), 3), ["lr/0-1", "lr/2"], [0, 0, 1], 1, [5.0, 1.0]),
        (Scopes.of("each", (1, 2), 3), ["lr/0", "lr/1", "lr/2"], [0, 1, 2], 3, [5.0, 5.0, 5.0]),
    ],
)
def test_how_groups_are_cut(
    made: Scopes, names: list[str], of_group: list[int], judged: int, highest: list[float]
) -> None:
    """All together, each optimizer by itself though judged with the others, or each group altogether."""
    assert made.names() == names
    assert [made.of_group(i) for i in range(3)] == of_group
    assert made.judged == judged
    assert made.highest([2.0, 5.0, 1.0]) == highest


def decided(value: float, action: str, why: str = "", windows: int = 9) -> HorizonDecision:
    return HorizonDecision(HorizonState(value, windows=windows), action, 1.0, why=why)  # type: ignore[arg-type]


def after(*decisions: HorizonDecision, apart: bool = False) -> list[tuple[float, str]]:
    before = [HorizonState(1.0, windows=d.state.windows) for d in decisions]
    made = Scopes((1,) * len(decisions), apart=apart).as_one(before, decisions)
    return [(round(d.state.value, 9), d.action) for d in made]


def test_what_is_judged_together_moves_together() -> None:
    """By the mean of what each would have done, as a factor."""
    assert after(decided(4.0, "up"), decided(1.0, "hold", "not significant")) == [(2.0, "up")] * 2
    assert after(decided(0.25, "down"), decided(1.0, "hold", "no progress")) == [(0.5, "down")] * 2
    assert after(decided(8.0, "up"), decided(0.5, "down")) == [(2.0, "up")] * 2
    assert after(decided(4.0, "up"), decided(0.25, "down"), apart=True) == [(4.0, "up"), (0.25, "down")]


def test_until_all_are_at_speed_each_moves_by_itself() -> None:
    own = [(3.0, "scale"), (1.5, "up")]
    assert after(decided(3.0, "scale"), decided(1.5, "up")) == own
    assert after(decided(0.3, "back"), decided(1.5, "up")) == [(0.3, "back"), (1.5, "up")]


def test_one_at_its_bound_or_that_does_not_move_stays() -> None:
    assert after(decided(4.0, "up"), decided(1.0, "hold")) == [(2.0, "up"), (1.0, "hold")]
    idle = decided(1.0, "hold", "nothing is trained", windows=0)
    assert after(decided(4.0, "up"), idle) == [(4.0, "up"), (1.0, "hold")]
