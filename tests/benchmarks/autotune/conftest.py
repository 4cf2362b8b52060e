"""A task that needs no file, tiny, and rows that were never run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.autotune.arena import Arena
from benchmarks.autotune.plan import Run


@pytest.fixture
def tiny() -> Callable[..., Run]:
    """A run of three members on the digits, two steps in each part."""

    def run(arm: str, **changed: Any) -> Run:
        return Run(
            **{"task": "digits", "arm": arm, "number": 0, "seed": 0, "members": 3, "steps": 20, **changed}
        )

    return run


@pytest.fixture
def arena(tiny: Callable[..., Run]) -> Arena:
    return Arena.of(tiny("random"))
