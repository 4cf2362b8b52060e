"""The mutation check: lines that run are changed, one at a time, and a suite that notices fails."""

from __future__ import annotations

from pathlib import Path

from benchmarks.tools.mutate import Mutant, attempt, draw, mutants_of, room_tests, short_suite
from tests import ROOT

LINES = '''"""Has 1 < 2 in its docstring."""
import math


def grow(value: int = 1) -> int:
    """Not a candidate: 3 < 4."""
    if value < 0:
        raise ValueError(f"{value} < 0")
    return value + len("2")
'''


def test_only_code_is_changed(tmp_path: Path) -> None:
    file = tmp_path / "grow.py"
    file.write_text(LINES)
    found = {(mutant.line, mutant.after) for mutant in mutants_of(file, tmp_path)}
    assert found == {
        (5, "def grow(value: int = 2) -> int:"),
        (7, "if (value <= 0):"),
        (7, "if value < 1:"),
        (9, "return (value - len('2'))"),
    }


def test_the_commit_draws_the_lines() -> None:
    files = sorted((ROOT / "src" / "hdet" / "published").glob("*.py"))
    first, second = draw(files, "a", 5), draw(files, "b", 5)
    assert first == draw(files, "a", 5)
    assert first != second
    assert len({(mutant.file, mutant.line) for mutant in first}) == 5


def test_the_room_tests_its_file_come_first() -> None:
    mutant = Mutant("src/hdet/autolr/rule.py", 1, "", "")
    assert room_tests(mutant, ROOT)[:2] == [mutant.file, "tests/unit/autolr/test_rule.py"]
    given = (*room_tests(mutant, ROOT), *short_suite()[2:])
    assert all((ROOT / test.partition("::")[0]).exists() for test in given)


def test_a_mutant_is_caught_and_taken_back(tmp_path: Path) -> None:
    """In a tree with one module and its doctest."""
    file = tmp_path / "src" / "hdet" / "grow.py"
    file.parent.mkdir(parents=True)
    (tmp_path / "tests" / "unit").mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --doctest-modules\n")
    file.write_text('"""\n>>> 1 + LEVEL\n3\n"""\nLEVEL = 2\n')
    (mutant,) = mutants_of(file, tmp_path)
    row = attempt(mutant, tmp_path)
    assert row["after"] == "LEVEL = 3"
    assert row["suite"] == "its room"
    assert file.read_text().endswith("LEVEL = 2\n")
