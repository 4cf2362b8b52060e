"""The commands as a person runs them; ``doctor`` and ``demo`` start real processes."""

import inspect
import json
import os
import subprocess
import sys
import types
from importlib import import_module
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from hdet import __version__, history, replay
from hdet.cli import app
from hdet.cli.bench import BENCHMARKS
from hdet.demos.doctor import Finding
from hdet.demos.published import MAX_LRS, Outcome, Run, verdict
from tests.unit.cli.surface import LISTING, surface

COMMANDS = ("demo", "report", "watch", "demo-published", "doctor", "bench", "reproduce")
run = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}).invoke


def test_version():
    result = run(app, ["--version"])
    assert result.exit_code == 0
    assert result.output.strip() == f"hdet {__version__}"


def test_help_lists_every_command():
    result = run(app, ["--help"])
    assert result.exit_code == 0
    for command in COMMANDS:
        assert command in result.output


def test_the_surface_is_the_one_that_was_agreed_on():
    """A command, a flag or a default that changes is a change for users: write the listing anew
    (``python -m tests.unit.cli.surface``) and say so in CHANGELOG.md."""
    assert surface() == LISTING.read_text(encoding="utf-8")


@pytest.mark.parametrize("line", [line for line in surface().splitlines() if line.startswith("  ")])
def test_every_flag_has_a_sentence_and_a_default(line):
    assert line.endswith(".")
    assert " = " in line or "(needed)" in line


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["repot"], "hdet: No such command 'repot'"),
        (["report"], "hdet: Missing argument 'RUN...'"),
        (["report", "nowhere.jsonl"], "hdet: Invalid value: RUN must be a history or a folder with some"),
        (["demo", "--seed", "x"], "hdet: Invalid value for '--seed'"),
        (["watch", "a.jsonl", "--plain", "--json"], "hdet: Invalid value: --plain and --json exclude"),
        (["watch", "a.jsonl", "--once"], "hdet: Invalid value: --once prints and ends"),
        (["bench", "regret", "--workloads", "x"], "hdet: Invalid value for '--workloads': must be some of"),
        (["bench", "speed"], "hdet: No such command 'speed'"),
    ],
)
def test_an_error_is_one_line_with_the_mend_and_status_2(given, said):
    result = run(app, given)
    assert result.exit_code == 2
    assert result.stderr.startswith(said)
    assert result.stderr.endswith("--help`\n")
    assert result.stderr.count("\n") == 1
    assert not result.stdout


def test_completion_is_offered():
    result = run(app, ["--show-completion", "bash"])
    assert result.exit_code in (0, 2)
    assert "--show-completion" in run(app, ["--help"]).output


def test_importing_hdet_imports_no_command_line():
    code = "import sys, hdet; assert not {'typer', 'rich', 'sklearn', 'hdet.cli'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_doctor_finds_that_replicas_can_diverge():
    result = run(app, ["doctor"])
    assert result.exit_code == 0, result.output
    assert "Replicas can diverge here" in result.output
    assert "equal bit for bit" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("measured", "equal_after", "said"),
    [
        ((0.0, 0.0), True, "Replicas cannot diverge here"),
        ((0.1, 0.103), True, "Replicas cannot diverge here"),
        ((0.1, 0.1), False, "Replicas cannot be averaged here"),
    ],
)
def test_doctor_exits_1_when_a_replica_is_not_where_it_should_be(monkeypatch, measured, equal_after, said):
    finding = Finding("2 processes", measured, (0.1, 0.1), equal_after)
    monkeypatch.setattr("hdet.demos.doctor._local", lambda timeout: finding)
    result = run(app, ["doctor"])
    assert result.exit_code == 1
    assert said in result.output


def test_doctor_under_torchrun_examines_the_ranks_it_was_started_with():
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "hdet", "doctor"]
    result = subprocess.run(
        [sys.executable, *launch], capture_output=True, text=True, timeout=90, env=_environment()
    )
    assert result.returncode == 0, result.stderr
    prose = " ".join(result.stdout.split())
    assert prose.count("Replicas can diverge here. On the 2 gloo ranks of this launch") == 1
    assert "WORLD_SIZE=2" in prose


def test_demo_finds_what_no_guess_had_to_tell_it(tmp_path):
    (tmp_path / "autolr.jsonl").write_text("not a record\n")
    result = run(app, ["demo", "--steps", "200", "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.output.splitlines() if not line.startswith("History"))
    assert "none: AutoLR" in result.output
    records = history.read(tmp_path / "autolr.jsonl")
    assert 150 in [record.step for record in records]  # from there the schedule comes down
    assert records[-1].step == 200
    lrs = [record.hyperparameters[0].base_after for record in records]
    assert lrs[0] > 10 * records[0].hyperparameters[0].base_before
    assert max(lrs) > 1e-3
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=5.0)
    replay(optimizer, tmp_path / "schedule.json")
    assert optimizer.param_groups[0]["lr"] == records[0].hyperparameters[0].base_before


def test_published_demo_trains_shows_and_leaves_histories(tmp_path):
    stale = tmp_path / "max_lr-0.1.jsonl"
    stale.write_text("not a record\n")
    result = run(app, ["demo-published", "--replicas", "2", "--steps", "20", "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "(predicted)" in result.output
    assert all(len(line) <= 80 for line in result.output.splitlines() if "OneCycle" in line[:25])
    assert result.output.count("OneCycleAutoLR") >= len(MAX_LRS)
    for max_lr in MAX_LRS:
        records = history.read(tmp_path / f"max_lr-{max_lr:g}.jsonl")
        assert records[-1].step == 20
        middle = records[len(records) // 2]  # at the schedule's floor the distances are rounding errors
        assert middle.distance_measured == pytest.approx(middle.distance_predicted, rel=0.01)


def test_the_verdict_follows_the_numbers(tmp_path):
    def outcomes(auto_losses):
        return [
            Outcome(Run(lr, 20, 2, 1 / 9, 0, path), factor * lr, loss, loss, 0.9)
            for lr, plain, auto in zip(MAX_LRS, (1.0, 0.1, 2.0), auto_losses, strict=True)
            for path, loss, factor in ((None, plain, 1.0), (tmp_path, auto, 0.5))
        ]

    poor, good = verdict(outcomes((0.9, 0.1, float("nan")))), verdict(outcomes((0.105, 0.1, 2.0)))
    assert "did not make up for a wrong max_lr: 0.900 from 0.01 and nan from 1" in poor
    assert "-10.0%, +0.0%, +nan%" in poor
    assert "made up for a wrong max_lr: 0.105 from 0.01, where OneCycleLR at 0.1 has 0.100" in good
    assert "×0.50" in good


def test_bench_prints_the_table_and_writes_the_json(tmp_path, monkeypatch):
    seen = {}

    def measure(quick, device, on_progress):
        seen.update(quick=quick, device=device)
        on_progress("half way")
        return {"milliseconds": 3}

    fake = types.SimpleNamespace(run=measure, table=lambda result: f"{result['milliseconds']} ms")
    monkeypatch.setitem(sys.modules, "hdet.bench.speed.step", fake)
    monkeypatch.chdir(tmp_path)
    result = run(app, ["bench", "step", "--quick"])
    assert result.exit_code == 0, result.output
    assert "3 ms" in result.output
    assert seen == {"quick": True, "device": "cpu"}
    assert json.loads((tmp_path / "runs" / "step.json").read_text()) == {"milliseconds": 3}

    (tmp_path / "docs" / "evidence").mkdir(parents=True)
    assert run(app, ["bench", "step"]).exit_code == 0
    assert (tmp_path / "docs" / "evidence" / "step.json").exists()


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_can_be_run_and_shown(name):
    experiment = import_module(f"hdet.bench.{BENCHMARKS[name].module}")
    assert callable(experiment.table)
    taken = inspect.signature(experiment.run).parameters.keys() - {"quick", "device", "on_progress"}
    given = {"with_published" if option == "published" else option for option in BENCHMARKS[name].options}
    assert taken == given - {"chart", "table"}
    assert hasattr(experiment, "chart") == ("chart" in given)


def test_bench_hands_its_options_on_and_refuses_those_it_does_not_take(tmp_path, monkeypatch):
    seen = {}

    def measure(quick, device, on_progress, **options):
        seen.update(options)
        return {}

    fake = types.SimpleNamespace(run=measure, table=lambda result: "shown")
    monkeypatch.setitem(sys.modules, "hdet.bench.replicas.command", fake)
    monkeypatch.chdir(tmp_path)
    given = ["--seeds", "2", "--rows", "kept.jsonl", "--processes", "1", "--minutes", "1.5"]
    assert run(app, ["bench", "replicas", *given]).exit_code == 0
    assert seen == {"seeds": 2, "rows": Path("kept.jsonl"), "processes": 1, "minutes": 1.5}
    for name, option in (("replicas", "--chart"), ("stacked", "--seeds"), ("deepobs", "--steps")):
        result = run(app, ["bench", name, option, "2"])
        assert result.exit_code == 2
        assert result.stderr.startswith(f"hdet: No such option: {option}")
        assert result.stderr.endswith(f"; see `hdet bench {name} --help`\n")


def test_bench_refuses_an_unknown_name():
    result = run(app, ["bench", "speed"])
    assert result.exit_code == 2
    assert "see `hdet bench --help`" in result.output


def test_a_run_that_takes_too_long_ends_with_a_plain_error(tmp_path):
    result = run(
        app,
        ["demo-published", "--replicas", "2", "--steps", "20", "--timeout", "1", "--output", str(tmp_path)],
    )
    assert result.exit_code == 1
    assert "were not done in time" in result.output
    assert "Traceback" not in result.output


def _environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
