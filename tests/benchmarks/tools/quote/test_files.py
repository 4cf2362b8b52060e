"""A mark names a measurement, or the runs of a figure."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.tools.quote.files import read


def test_a_measurement_comes_before_a_figure(tmp_path: Path) -> None:
    for folder, names in (("evidence", ["a"]), ("figures", ["a", "b"])):
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / f"{name}.json").write_text(f'{{"in": "{folder}"}}', encoding="utf-8")
    assert read("a", tmp_path / "evidence") == {"in": "evidence"}
    assert read("b", tmp_path / "evidence") == {"in": "figures"}
    with pytest.raises(LookupError, match=r"no c\.json in docs/evidence, nor in docs/figures"):
        read("c", tmp_path / "evidence")
