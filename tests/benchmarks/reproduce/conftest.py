"""Table 1, made up."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.reproduce.analysis import table
from tests.benchmarks.reproduce.rows import PLAN, all_done, with_head


@pytest.fixture
def result() -> dict[str, Any]:
    return with_head("table1", table(PLAN, all_done(PLAN)))
