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

from hdet import Ensemble, __version__, history, replay
from hdet import save as save_run
from hdet.cli import app
from hdet.cli.bench import BENCHMARKS
from hdet.demos.doctor import Finding
from hdet.demos.published import MAX_LRS, Outcome, Run, verdict
from tests.browser.histories import save, whole
from tests.unit.cli.surface import LISTING, surface

COMMANDS = ("demo", "find", "report", "watch", "demo-published", "doctor", "bench", "reproduce")
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
        (["find", "train"], "hdet: Invalid value for MODULE:BUILD: must be MODULE:BUILD, got 'train'"),
        (["find", "no.such:build"], "hdet: Invalid value for MODULE:BUILD: No module named 'no'"),
        (["find", "no_such.py:build"], "hdet: Invalid value for MODULE:BUILD: there is no file no_such.py"),
        (["find", "json:nothing"], "hdet: Invalid value for MODULE:BUILD: module 'json' has no attribute"),
        (["find", "os:getcwd"], "hdet: Invalid value for MODULE:BUILD: os:getcwd must return (model, opt"),
    ],
)
def test_an_error_is_one_line_with_the_mend_and_status_2(given, said):
    result = run(app, given)
    assert result.exit_code == 2
    assert result.stderr.startswith(said)
    assert result.stderr.endswith("--help`\n")
    assert result.stderr.count("\n") == 1
    assert not result.stdout


def test_shells_complete_commands_and_flags():
    def complete(line, word):
        told = {"_HDET_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(word)}
        done = subprocess.run(
            [sys.executable, "-m", "hdet"],
            env={**os.environ, **told},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout.split()

    assert set(complete("hdet re", 1)) == {"report", "reproduce"}
    assert "--workloads" in complete("hdet bench regret --w", 3)


def test_importing_hdet_imports_no_command_line():
    code = "import sys, hdet; assert not {'typer', 'rich', 'sklearn', 'hdet.cli'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_doctor_finds_that_replicas_can_diverge():
    result = run(app, ["doctor"])
    assert result.exit_code == 0, result.output
    assert "Training replicas for 5 steps" in result.output, "it takes longer than two seconds"
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


def test_doctor_says_of_a_run_whether_it_was_healthy(tmp_path):
    save(tmp_path / "one.jsonl", whole())
    healthy = run(app, ["doctor", str(tmp_path / "one.jsonl")])
    assert healthy.stdout.startswith("one: Found a learning rate")
    save(tmp_path / "two.jsonl", whole()[:1])
    both = run(app, ["doctor", str(tmp_path)])
    assert both.exit_code == 1
    assert "  error: no sync has been recorded: train at least until" in both.stdout
    told = [json.loads(line) for line in run(app, ["doctor", str(tmp_path), "--json"]).stdout.splitlines()]
    assert [line["run"] for line in told] == ["one", "two"]
    assert told[1]["findings"][0]["level"] == "error"


def test_doctor_says_of_a_checkpoint_whether_it_is_whole(tmp_path):
    model, path = torch.nn.Linear(2, 1), tmp_path / "checkpoint"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Ensemble(optimizer, sync_every=5) as ensemble:
        for _ in range(2):
            save_run(path, model=model, auto=ensemble)
            optimizer.step()
            ensemble.step()
    save(tmp_path / "run.jsonl", whole())
    told = run(app, ["doctor", str(tmp_path / "run.jsonl"), str(path)]).stdout.splitlines()[-2:]
    assert told[0].startswith(
        f"{path}: whole, 1 rank(s) of step 1, hdet {__version__}; the history goes on to"
    )
    assert told[1].startswith(f"{path}.previous: whole, 1 rank(s) of step 0")
    file = path / "shared.pt"
    file.write_bytes(file.read_bytes()[:-1])
    damaged = run(app, ["doctor", str(path), "--json"])
    assert damaged.exit_code == 1
    newest, before = (json.loads(line) for line in damaged.stdout.splitlines())
    assert newest["trouble"].startswith("shared.pt is damaged: its SHA-256 is ")
    assert before == {"checkpoint": f"{path}.previous", "steps": 0, "ranks": 1, "trouble": ""}


def test_doctor_under_torchrun_examines_the_ranks_it_was_started_with():
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "hdet", "doctor"]
    result = subprocess.run(
        [sys.executable, *launch], capture_output=True, text=True, timeout=90, env=_environment()
    )
    assert result.returncode == 0, result.stderr
    prose = " ".join(result.stdout.split())
    assert prose.count("Replicas can diverge here. On the 2 gloo ranks of this launch") == 1
    assert "WORLD_SIZE=2" in prose


def test_demo_shows_a_table_a_sentence_and_a_report(tmp_path, monkeypatch):
    monkeypatch.delenv("HDET_DATA", raising=False)
    monkeypatch.chdir(tmp_path)  # no data lies near: whoever has cloned the repository has no other file
    (tmp_path / "autolr.jsonl").write_text("not a record\n")
    given = ["--steps", "60", "--replica-steps", "40", "--output", str(tmp_path)]
    result = run(app, ["demo", *given])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "Python's help texts: a bad guess, 0.1", "plain lines where there is no terminal"
    assert all(len(line) <= 80 for line in lines if not line.startswith("The report"))
    assert "nothing: AutoLR" in result.output
    assert "one seed, so small differences are noise." in " ".join(result.output.split())
    assert lines[-1] == f"The report: {tmp_path / 'report.html'}"
    assert "AutoTune" in (tmp_path / "report.html").read_text(encoding="utf-8")
    alone, together = (history.read(tmp_path / f"{name}.jsonl") for name in ("autolr", "autotune"))
    assert (alone[-1].step, len(alone[-1].losses), len(together[-1].losses)) == (60, 1, 4)
    assert {seen.name for seen in together[-1].hyperparameters} == {"lr/0", "weight_decay"}
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=5.0)
    replay(optimizer, tmp_path / "schedule.json")
    assert optimizer.param_groups[0]["lr"] == alone[0].hyperparameters[0].base_before


@pytest.mark.parametrize("command", ["demo", "bench", "reproduce", "watch"])
def test_ctrl_c_says_how_to_go_on(command, monkeypatch, tmp_path):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    for place in ("demos.tour.demo", "bench.speed.step.run", "bench.reproduce.command.run"):
        monkeypatch.setattr(f"hdet.{place}", stop)

    def stop_serving(watch):
        watch._server.server_close()
        raise KeyboardInterrupt

    monkeypatch.setattr("hdet.report.watch.Watch.serve", stop_serving)
    more = {"bench": ["step"], "reproduce": ["table1"], "watch": ["run.jsonl", "--port", "0"]}
    result = run(app, [command, *more.get(command, [])])
    assert result.exit_code == 130
    assert result.stderr.startswith("hdet: stopped")
    assert any(mend in result.stderr for mend in ("again", "anew", "goes on"))


def test_watch_prints_records_and_alerts_for_scripts(tmp_path):
    path = save(tmp_path / "run.jsonl", whole())
    lines = [
        json.loads(line) for line in run(app, ["watch", str(path), "--json", "--once"]).stdout.splitlines()
    ]
    alerts = [line for line in lines if line.get("kind") == "alert"]
    assert {alert["kind"] for alert in lines if "kind" in alert} == {"run", "said", "end", "handed", "alert"}
    assert {alert["level"] for alert in alerts} == {"warning"}
    assert {alert["alert"] for alert in alerts} == {"relapse", "steps not counted", "overfitting"}
    assert len(lines) - len(alerts) == len(whole())
    drawn = run(app, ["watch", str(path), "--plain", "--once"])
    assert drawn.stdout.startswith("run: Found a learning rate") or "/run: Found" in drawn.stdout
    waiting = run(app, ["watch", str(tmp_path / "not yet"), "--plain", "--once"])
    assert "Nothing has been measured yet." in waiting.stdout


def test_report_writes_the_page_and_says_the_verdicts(tmp_path):
    save(tmp_path / "one.jsonl", whole())
    save(tmp_path / "two.jsonl", whole())
    page = tmp_path / "page.html"
    result = run(app, ["report", str(tmp_path), "-o", str(page)])
    assert result.exit_code == 0, result.output
    assert result.stdout.count("Found a learning rate") == 2
    assert page.exists()
    told = run(app, ["report", str(tmp_path), "-o", str(page), "--json"]).stdout.splitlines()
    assert [json.loads(line)["run"] for line in told] == ["one", "two"]


def test_find_says_the_rate_of_a_user_s_own_model_and_writes_its_schedule(tmp_path):
    (tmp_path / "my_training.py").write_text(
        "import torch\n"
        "def build():\n"
        "    torch.manual_seed(0)\n"
        "    model = torch.nn.Linear(4, 1)\n"
        "    loss = lambda x: (model(x) - x.sum(1, keepdim=True)).square().mean()\n"
        "    return model, torch.optim.SGD(model.parameters()), loss, list(torch.randn(40, 16, 4))\n"
    )
    page = tmp_path / "found.json"
    given = ["find", f"{tmp_path / 'my_training.py'}:build", "--steps", "80", "-o", str(page)]
    result = run(app, given)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("learning rate  0.")
    assert "Right for runs of about 80 steps" in result.stdout
    assert "step 80 of 80" in result.stderr
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    replay(optimizer, page)
    assert 0 < optimizer.param_groups[0]["lr"] < 1


@pytest.mark.parametrize("command", ["report", "watch", "doctor"])
def test_looking_at_a_run_imports_no_torch(command, tmp_path):
    path = save(tmp_path / "run.jsonl", whole())
    more = {"watch": ["--plain", "--once"], "report": ["-o", str(tmp_path / "page.html")], "doctor": []}
    code = (
        f"import sys\nfrom hdet.cli import app\ntry: app({[command, str(path), *more[command]]!r})\n"
        "except SystemExit as e: assert not e.code\n"
        "assert not {'torch', 'numpy', 'plotly'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)


def test_published_demo_trains_shows_and_leaves_histories(tmp_path):
    stale = tmp_path / "max_lr-0.1.jsonl"
    stale.write_text("not a record\n")
    result = run(app, ["demo-published", "--replicas", "2", "--steps", "20", "--output", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "(predicted)" in result.output
    parts = [line for line in result.output.splitlines() if ", max_lr " in line]
    assert len(parts) == 2 * len(MAX_LRS), "where there is no terminal, a line for each run"
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
