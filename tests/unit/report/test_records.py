"""A file that grows, is cut, is replaced, or is not there yet; and more lines than a page can hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdet.report.records import HistoryFile, Tail, Thinned
from tests.browser.histories import rollback, save, sync, whole


def test_lines_are_read_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "grows"
    tail = Tail(path)
    assert list(tail.lines()) == []
    assert not tail.exists
    path.write_bytes(b"one\ntw")
    assert list(tail.lines()) == ["one"]
    assert tail.torn
    with path.open("ab") as file:
        file.write(b"o\nthree\n")
    assert list(tail.lines()) == ["two", "three"]
    assert list(tail.lines()) == []
    assert not tail.torn


@pytest.mark.parametrize("how", ["cut", "replaced", "gone for a while"])
def test_a_file_that_starts_again_is_read_again(tmp_path: Path, how: str) -> None:
    path = tmp_path / "run.jsonl"
    source = HistoryFile(save(path, whole())).read()
    assert source.about()["total"] == len(whole())
    if how == "cut":
        path.write_text("")
    elif how == "replaced":
        save(tmp_path / "other", [sync(0)] * 200).replace(path)
    else:
        path.unlink()
        source.read()
        assert source.lines() == []
    save(path, [sync(0), sync(1)])
    source.read()
    assert [record["step"] for record in source.records()] == [10, 20]
    assert source.restarts >= 1


@given(marked=st.lists(st.booleans(), max_size=400), limit=st.integers(1, 40))
def test_thinning_keeps_order_ends_and_marked_lines(marked: list[bool], limit: int) -> None:
    thinned = Thinned(limit=limit, bytes_=10**9)
    for i, mark in enumerate(marked):
        thinned.add(str(i), marked=mark)
    kept = [int(line) for line in thinned.lines()]
    assert kept == sorted(set(kept))
    assert len(kept) <= 2 * limit + 1
    if marked:
        assert kept[-1] == len(marked) - 1
        assert {marked.index(mark) for mark in set(marked)} <= set(kept)
    indices = [i for i, mark in enumerate(marked) if mark]
    if len(indices) <= limit:
        assert set(indices) <= set(kept)
    if len(marked) <= limit:
        assert len(kept) == len(marked)


def test_lines_that_are_no_records_are_counted_not_drawn(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text(
        f'{json.dumps(sync(0))}\n{{"step": 2\n[1]\n12\n\n{"[" * 5000}\n{json.dumps(sync(1))}\n{{"ste'
    )
    source = HistoryFile(path).read()
    assert (source.about()["total"], source.about()["torn"]) == (2, 5)


@pytest.mark.parametrize(
    "odd",
    [
        {"hyperparameters": [1, 2]},
        {"hyperparameters": {"lr": 1}},
        {"horizon": "none"},
        {"losses": 1.0},
        {"step": "ten"},
        {"step": 1.5},
        {"step": 1 << 62},
        {"plain": {"loss": "low"}},
        {"explored": {"lr": [1.0]}},
        {"kind": "handed", "weights": [1]},
        {"kind": "handed", "weights": {"step": 1.5}},
    ],
)
def test_a_record_whose_fields_are_of_another_kind_is_none(odd: dict[str, Any], tmp_path: Path) -> None:
    source = HistoryFile(save(tmp_path / "odd.jsonl", [sync(0), sync(1) | odd])).read()
    assert (source.about()["total"], source.about()["torn"]) == (1, 1)


def test_what_is_kept_has_a_size_whatever_a_line_has(tmp_path: Path) -> None:
    lines = [sync(i, losses=[1.0] * 2000) for i in range(60)]
    lines[30] = rollback(30)
    source = HistoryFile(save(tmp_path / "wide.jsonl", lines), bytes_=100_000).read()
    assert sum(map(len, source.lines())) < 150_000
    assert any(line["events"] for line in source.records())
