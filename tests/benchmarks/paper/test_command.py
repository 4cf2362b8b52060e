"""``python -m benchmarks.paper``, tiny."""

import json
import sys

import pytest

from benchmarks.paper import __main__ as command
from benchmarks.paper.__main__ import put


def run(monkeypatch, *given):
    monkeypatch.setattr(sys, "argv", ["benchmarks.paper", *given])
    command.main()


@pytest.mark.slow
def test_two_studies_are_written_into_one_file(tmp_path, monkeypatch):
    file = tmp_path / "paper.json"
    run(monkeypatch, "edge", "--course", "digits", "--quick", "--output", str(file))
    run(monkeypatch, "averaging", "--course", "digits, SGD", "--quick", "--output", str(file))
    found = json.loads(file.read_text())
    assert found["experiment"] == "paper"
    edge = found["edge"]["digits"]
    assert edge["shifts"]["plain"]["shift"] == 0.0
    assert edge["shifts"].keys() == edge["crashed"].keys()
    assert {line["runs"] for line in edge["shifts"].values()} == {3 * 8}
    assert [line["spread"] for line in found["averaging"]["last"]] == pytest.approx([1 / 9, 0.25, 0.5], 1e-4)
    assert {line["places"] for line in found["averaging"]["pooled"]["best mean"]} == {1}


def test_a_course_that_the_study_does_not_have_is_refused(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        run(monkeypatch, "edge", "--course", "charlm")
    assert "--course must be one of digits, kuairand, got charlm" in capsys.readouterr().err


def test_a_course_that_is_run_again_replaces_its_cells_alone():
    def cell(course, loss):
        setting = {"replicas": 1, "spread": 0.0, "sync_every": 10}
        return {"course": course, "arm": "OneCycle", "lr": 1.0, **setting, "held_out": [loss, loss]}

    before = put({}, "eq8", [cell("kuairand", 1.0), cell("charlm", 2.0)])
    after = put({**before, "edge": {}}, "eq8", [cell("kuairand", 3.0)])
    assert after["edge"] == {}
    assert {one["course"]: one["held_out"][0] for one in after["eq8"]["cells"]} == {
        "kuairand": 3.0,
        "charlm": 2.0,
    }
