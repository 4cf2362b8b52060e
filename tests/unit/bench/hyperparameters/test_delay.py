"""How long a temperature takes to show: what is compared, and what the table says."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from hdet.bench.hyperparameters import delay
from tests.unit.bench.hyperparameters.rows import needs_data


@pytest.fixture(scope="module")
def result() -> dict[str, object]:
    needs_data()
    return delay.run(quick=True)


def test_all_values_are_held_against_staying(result: dict) -> None:
    assert result["start"] == 0.01
    assert [row["value"] for row in result["rows"]] == [0.016, 0.027, 0.074, 0.2, 1.0]
    for row in result["rows"]:
        assert len(row["mean"]) == len(row["after"]) == 2
        assert all(len(of_seeds) == result["seeds"] == 1 for of_seeds in row["difference"])


def test_a_row_says_when_a_value_breaks_even() -> None:
    row = delay._row(1.0, (0, 25, 50), [[0.5, 0.1, -0.2], [0.3, 0.1, -0.4]])
    assert row["mean"] == pytest.approx([0.4, 0.1, -0.3])
    assert row["difference"][0] == [0.5, 0.3]
    assert row["breaks_even_after"] == 50
    assert delay._row(1.0, (0, 25), [[0.5, 0.1]])["breaks_even_after"] is None


def test_staying_differs_from_itself_by_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies that go on at the same value train the same way: what is told is the value's doing alone."""
    needs_data()
    monkeypatch.setattr(delay, "_VALUES", (0.01,))
    (row,) = delay.run(quick=True)["rows"]
    assert row["difference"] == [[0.0], [0.0]]


def test_the_table_is_printed(result: dict) -> None:
    screen = io.StringIO()
    Console(file=screen, width=120).print(delay.table(result))
    assert "staying at 0.01" in screen.getvalue()


def test_another_device_is_refused() -> None:
    with pytest.raises(ValueError, match="device must be 'cpu'"):
        delay.run(device="cuda")
