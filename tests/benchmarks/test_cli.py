"""The command line of the benchmarks: what they have in common."""

import inspect
import json
import subprocess
import sys
import types
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.cli import BENCHMARKS, app
from tests import ROOT

run = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}).invoke


def test_help_lists_every_benchmark_and_imports_no_torch():
    code = (
        "import sys; sys.argv = ['benchmarks', '--help']\nfrom benchmarks.cli import app\n"
        "try: app()\nexcept SystemExit: assert not {'torch', 'numpy', 'matplotlib'} & sys.modules.keys()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, timeout=60, capture_output=True, text=True, cwd=ROOT
    )
    for name in (*BENCHMARKS, "reproduce"):
        assert name in done.stdout


def test_a_benchmark_prints_the_table_and_writes_the_json(tmp_path, monkeypatch):
    seen = {}

    def measure(quick, device, on_progress):
        seen.update(quick=quick, device=device)
        on_progress("half way")
        return {"milliseconds": 3}

    fake = types.SimpleNamespace(run=measure, table=lambda result: f"{result['milliseconds']} ms")
    monkeypatch.setitem(sys.modules, "benchmarks.speed.step", fake)
    monkeypatch.chdir(tmp_path)
    result = run(app, ["step", "--quick"])
    assert result.exit_code == 0, result.output
    assert "3 ms" in result.output
    assert seen == {"quick": True, "device": "cpu"}
    assert json.loads((tmp_path / "runs" / "step.json").read_text()) == {"milliseconds": 3}

    (tmp_path / "docs" / "evidence").mkdir(parents=True)
    assert run(app, ["step"]).exit_code == 0
    assert (tmp_path / "docs" / "evidence" / "step.json").exists()


def test_every_benchmark_takes_the_options_that_it_is_listed_with():
    for name, listed in BENCHMARKS.items():
        experiment = import_module(f"benchmarks.{listed.module}")
        assert callable(experiment.table)
        taken = inspect.signature(experiment.run).parameters.keys() - {"quick", "device", "on_progress"}
        assert taken == listed.options.keys() - {"chart"}, name
        assert hasattr(experiment, "chart") == ("chart" in listed.options), name


def test_options_are_handed_on_and_those_it_does_not_take_refused(tmp_path, monkeypatch):
    seen = {}

    def measure(quick, device, on_progress, **options):
        seen.update(options)
        return {}

    fake = types.SimpleNamespace(run=measure, table=lambda result: "shown")
    monkeypatch.setitem(sys.modules, "benchmarks.lightbench.command", fake)
    monkeypatch.chdir(tmp_path)
    given = ["--steps", "60", "--rows", "kept.jsonl", "--processes", "1", "--minutes", "1.5"]
    assert run(app, ["lightbench", *given]).exit_code == 0
    assert seen == {"steps": 60, "rows": Path("kept.jsonl"), "processes": 1, "minutes": 1.5}
    for wrong, said in (
        (["lightbench", "--chart", "2"], "benchmarks: No such option: --chart"),
        (["regret", "--workloads", "x"], "benchmarks: Invalid value for '--workloads': must be some of"),
        (["speed"], "benchmarks: No such command 'speed'"),
    ):
        result = run(app, wrong)
        assert result.exit_code == 2
        assert result.stderr.startswith(said)
        assert result.stderr.endswith("--help`\n")


@pytest.mark.parametrize(
    ("place", "given"), [("speed.step", ["step"]), ("reproduce.command", ["reproduce", "table1"])]
)
def test_ctrl_c_says_how_to_go_on(place, given, monkeypatch, tmp_path):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(f"benchmarks.{place}.run", stop)
    result = run(app, given)
    assert result.exit_code == 130
    assert result.stderr.startswith("hdet: stopped")
    assert any(mend in result.stderr for mend in ("again", "goes on"))
