"""Which groups share a factor, and by whose losses they are judged."""

from __future__ import annotations

import pytest

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
    assert [made.judged_as(scope) for scope in range(len(names))] == (
        list(range(judged)) if judged > 1 else [0] * len(names)
    )
    assert made.highest([2.0, 5.0, 1.0]) == highest
