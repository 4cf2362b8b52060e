"""Whatever a history file holds: records, or a ValueError that names the line; and nothing of it is run."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hdet.history import SyncRecord, cut_torn_tail, read_history, write
from hdet.report.alerts import summary
from hdet.report.health import examine
from hdet.report.page import content
from hdet.report.records import HistoryFile

RECORD = SyncRecord(
    step=10,
    round=1,
    losses=(1.0, math.nan),
    weights=(0.5, 0.5),
    hyperparameters=(),
    distance_measured=(0.1, 0.1),
    distance_predicted=(0.1, 0.1),
    milliseconds=1.0,
)
HOSTILE = st.sampled_from(
    [
        "</script><script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "__import__('os').system('false')",
        "!!python/object/apply:os.system ['false']",
        "\u2028</SCRIPT>",
        "\x00\ud800",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | HOSTILE,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(HOSTILE | st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)
READ_TOO = ("kind", "resumed_at", "total_steps", "explored", "plain", "lines", "seconds", "text", "level")
FIELDS = st.sampled_from([*sorted(asdict(RECORD)), *READ_TOO])
CHANGED = st.dictionaries(FIELDS, VALUES, min_size=1, max_size=3).map(
    lambda changes: json.dumps({**asdict(RECORD), **changes}).encode()
)
LINES = st.lists(
    st.binary(max_size=40).map(lambda raw: raw.replace(b"\n", b""))
    | CHANGED
    | st.just(RECORD.to_json().encode()),
    max_size=5,
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@given(lines=LINES, tail=st.binary(max_size=20))
def test_records_or_an_error_that_names_the_line(folder: Path, lines: list[bytes], tail: bytes) -> None:
    file = folder / "history.jsonl"
    file.write_bytes(b"".join(line + b"\n" for line in lines) + tail)
    try:
        records = read_history(file)
        said = ""
    except ValueError as error:
        records, said = [], str(error)
    assert not said or "read_history: every line must be a record, and line " in said
    assert all(isinstance(record, SyncRecord) for record in records)
    assert len(records) <= len(lines) + 1


@given(whole=st.integers(0, 3), cut=st.integers(0, 300))
def test_whatever_a_crash_leaves_of_a_line_the_next_one_is_read(folder: Path, whole: int, cut: int) -> None:
    file = folder / "torn.jsonl"
    line = RECORD.to_json().encode()
    file.write_bytes(whole * (line + b"\n") + line[: min(cut, len(line) - 1)])
    cut_torn_tail(file)
    write(file, json.loads(line))
    assert len(read_history(file)) == whole + 1


@settings(max_examples=40)
@given(lines=LINES)
def test_the_page_takes_any_history_and_runs_none_of_it(folder: Path, lines: list[bytes]) -> None:
    file = folder / "hostile.jsonl"
    file.write_bytes(b"".join(line + b"\n" for line in lines))
    source = HistoryFile(file).read()
    shown = content([source]).lower()
    assert "<script>" not in shown
    assert "<img" not in shown
    assert shown.count("<script") == shown.count("</script") == shown.count('type="application/json">{')


@given(lines=LINES | st.lists(CHANGED, min_size=1, max_size=5))
def test_the_doctor_has_a_sentence_for_any_history(folder: Path, lines: list[bytes]) -> None:
    file = folder / "examined.jsonl"
    file.write_bytes(b"".join(line + b"\n" for line in lines))
    source = HistoryFile(file).read()
    found = examine(source.records(), source.about()["torn"])
    assert found
    assert all(str(finding).endswith(".") for finding in found)
    assert summary("run", source.records())["verdict"]
