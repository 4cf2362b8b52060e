"""Records survive the file, whatever the losses were and wherever the file was cut."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from hdet import history
from hdet.history import HyperparameterRecord, SyncRecord, read_history


def shown(records: Sequence[SyncRecord]) -> list[str]:
    """To compare records by: since Python 3.13 a dataclass that holds NaN is not equal to itself."""
    return [repr(each) for each in records]


def record(step: int, losses: tuple[float, ...] = (1.0, 2.0)) -> SyncRecord:
    explored = HyperparameterRecord("lr/0", (0.9, 1.1), (0.09, 0.11), 0.1, 0.102, 0.04, 0.004)
    return SyncRecord(
        step=step,
        round=step // 10,
        losses=losses,
        weights=(0.4, 0.6),
        hyperparameters=(explored,),
        distance_measured=(0.5, 0.5),
        distance_predicted=(0.5, 0.5),
        milliseconds=1.25,
        events=("an event",),
    )


def test_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "history.jsonl"
    history.File(path).prepare()
    for step in (10, 20):
        history.write(path, history.of_sync(record(step)))
    assert shown(history.read_history(path)) == shown([record(10), record(20)])


def test_what_is_not_finite_is_null(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history.write(path, history.of_sync(record(10, (math.nan, math.inf))))
    assert json.loads(path.read_text())["losses"] == [None, None]
    assert all(math.isnan(x) for x in history.read_history(path)[0].losses)


def test_a_line_cut_by_a_crash_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history.write(path, history.of_sync(record(10)))
    with path.open("a") as file:
        file.write(record(20).to_json()[:40])
    assert shown(history.read_history(path)) == shown([record(10)])


def test_notes_are_no_syncs_and_stay_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history.File(path).prepare()
    history.write(path, history.of_note("run", id="a", lowest=-math.inf))
    history.write(path, history.of_sync(record(10), seconds=1.5))
    history.write(path, history.of_note("a kind of later versions"))
    assert shown(history.read_history(path)) == shown([record(10)]), (
        "what only the writing rank knows is not in the record"
    )
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.get("kind") for line in lines] == ["run", None, "a kind of later versions"]
    assert lines[0]["lowest"] is None
    assert lines[1]["seconds"] == 1.5


def test_a_run_that_goes_on_after_a_crash_begins_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    history.write(path, history.of_sync(record(10)))
    with path.open("a") as file:
        file.write(record(20).to_json()[:40])
    history.write(path, history.of_note("run", id="b", resumed_at=10))
    history.write(path, history.of_sync(record(20)))
    assert shown(history.read_history(path)) == shown([record(10), record(20)])


def test_a_line_that_no_crash_explains_is_not_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    path.write_text("not a record\n")
    history.write(path, history.of_sync(record(10)))
    with pytest.raises(ValueError, match=r"read_history: every line must be a record, and line 1 of"):
        history.read_history(path)


@pytest.mark.parametrize("line", ['{"step": 3}', "[]", "3", '{"step": 1, "hyperparameters": 7}', "[" * 5000])
def test_a_line_that_lacks_something_is_named_by_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "history.jsonl"
    history.write(path, history.of_sync(record(10)))
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(ValueError, match="line 2 of"):
        read_history(path)


@pytest.mark.parametrize("torn", [b"{", b'{"kind": "run", "id"', b"\xff\xfe", b"x" * 200_000])
def test_a_torn_tail_is_cut_before_the_next_line(tmp_path: Path, torn: bytes) -> None:
    """After a crash, and after a disk that was full for a while: the next record stands by itself."""
    path = tmp_path / "history.jsonl"
    for before in (b"", (record(10).to_json() + "\n").encode()):
        path.write_bytes(before + torn)
        assert shown(read_history(path)) == shown([record(10)] if before else [])
        history.write(path, history.of_sync(record(20)))
        assert path.read_bytes() == before + (record(20).to_json() + "\n").encode()
        assert history.cut_torn_tail(path) == 0
        assert shown(history.read_history(path)[-1:]) == shown([record(20)])


def test_what_a_resumed_run_took_again_is_told_once(tmp_path: Path) -> None:
    """Resumed from an older checkpoint, the file holds some steps twice."""
    path = tmp_path / "history.jsonl"
    history.write(path, history.of_note("run", id="a"))
    for step in (10, 20, 30):
        history.write(path, history.of_sync(record(step)))
    history.write(path, history.of_note("run", id="b", resumed_at=10))
    for step in (20, 30, 40):
        history.write(path, history.of_sync(record(step)))
    assert [r.step for r in read_history(path)] == [10, 20, 30, 40]
    assert [r.step for r in read_history(path, superseded=True)] == [10, 20, 30, 20, 30, 40]


def test_records_are_frozen() -> None:
    with pytest.raises(AttributeError):
        record(1).step = 2  # type: ignore[misc]


def test_a_record_knows_its_learning_rate() -> None:
    decay = HyperparameterRecord("weight_decay", (), (0.1,), 0.1, 0.2, 0.1, 0.0)
    lrs = [HyperparameterRecord(f"lr/{i}", (1.0,), (0.1,), 0.1, 0.3 + i, 0.1, 0.0) for i in range(2)]
    record = SyncRecord(4, 0, (1.0,), (), (decay, *lrs), (), (), 1.0)
    assert record.lr == 0.3
    assert SyncRecord.from_json(record.to_json()).lr == 0.3
    assert math.isnan(SyncRecord(4, 0, (1.0,), (), (decay,), (), (), 1.0).lr)


def test_runs_in_one_file_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    first, again, second = (history.of_note("run", **more) for more in ({}, {"resumed_at": 10}, {}))
    for line in (first, record(10), record(20), again, record(20), second, record(10)):
        history.write(path, line if isinstance(line, dict) else history.of_sync(line))
    assert [r.step for r in read_history(path)] == [10]
    assert [r.step for r in read_history(path, run=0)] == [10, 20]
    assert [r.step for r in read_history(path, run=-2, superseded=True)] == [10, 20, 20]
    with pytest.raises(IndexError, match=r"run must be from 0 to 1 of .*, got 2"):
        read_history(path, run=2)


def test_two_runs_that_write_at_once_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, other = history.File(tmp_path / "run.jsonl"), history.File(tmp_path / "run.jsonl")
    one(history.of_note("run"))
    one(history.of_note("said", event="alone"))
    assert not caplog.messages
    other(history.of_note("run"))
    for _ in range(2):
        one(history.of_note("said", event="beside another"))
    assert len(caplog.messages) == 1
    assert "another run writes to the history" in caplog.messages[0]
