"""How long a temperature takes to show: what is compared, and what the table says."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from benchmarks.hyperparameters import delay
from tests.benchmarks.hyperparameters.rows import needs_data


@pytest.fixture(scope="module")
def result() -> dict[str, object]:
    needs_data()
    return delay.run(quick=True)


def test_a_row_says_when_a_value_breaks_even() -> None:
    row = delay._row(1.0, (0, 25, 50), [[0.5, 0.1, -0.2], [0.3, 0.1, -0.4]])
    assert row["mean"] == pytest.approx([0.4, 0.1, -0.3])
    assert row["difference"][0] == [0.5, 0.3]
    assert row["breaks_even_after"] == 50
    assert delay._row(1.0, (0, 25), [[0.5, 0.1]])["breaks_even_after"] is None


def test_the_table_is_printed(result: dict) -> None:
    screen = io.StringIO()
    Console(file=screen, width=120).print(delay.table(result))
    assert "staying at 0.01" in screen.getvalue()
