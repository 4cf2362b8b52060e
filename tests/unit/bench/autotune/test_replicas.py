"""The hook that AutoTune's arm is filled in at."""

from __future__ import annotations

import pytest

from hdet.bench.autotune.arena import Arena
from hdet.bench.autotune.replicas import autotune


def test_until_then_it_says_what_is_missing(arena: Arena) -> None:
    with pytest.raises(NotImplementedError, match=r"hdet\.bench\.autotune\.replicas\.autotune"):
        autotune(0, arena)
