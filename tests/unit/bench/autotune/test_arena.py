"""What is asked of packages that are not there."""

from __future__ import annotations

import pytest

from hdet.bench.autotune.arena import Arena, needed


def test_a_missing_package_is_named_with_what_to_install() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"needs no_such_package: pip install 'hdet\[search\]'"):
        needed("no_such_package.tune")


def test_nothing_is_spent_at_the_start(arena: Arena) -> None:
    assert arena.ledger.samples == 0
    assert arena.segment == 2
