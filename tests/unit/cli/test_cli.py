"""The commands as a person runs them; ``doctor`` and ``demo`` start real processes."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from hdet import Ensemble, __version__, history, replay
from hdet import save as save_run
from hdet.cli import app
from hdet.cli.demo_runs import Outcome, replicas_sentence
from hdet.cli.machine_check import Measured
from hdet.cli.watch import drawn, sparkline
from hdet.loop.state import digest
from hdet.report.alerts import Alert
from tests.browser.histories import nothing_finite, save, whole
from tests.unit.cli.surface import LISTING, surface

run = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1", "TERM": "dumb"}).invoke


def test_the_surface_is_the_one_that_was_agreed_on():
    """A command, a flag or a default that changes is a change for users: write the listing again
    (``python -m tests.unit.cli.surface``) and say so in CHANGELOG.md."""
    listed = surface()
    assert listed == LISTING.read_text(encoding="utf-8")
    flags = [line for line in listed.splitlines() if line.startswith("  ")]
    assert all(line.endswith(".") and (" = " in line or "(needed)" in line) for line in flags)
    assert run(app, ["--version"]).output.strip() == f"hdet {__version__}"


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (["repot"], "hdet: No such command 'repot'"),
        (["bench", "regret"], "hdet: bench was removed: run `python -m benchmarks` in a checkout"),
        (["demo-published"], "hdet: demo-published was removed: run `hdet demo`"),
        (["report"], "hdet: Missing argument 'RUN'"),
        (
            ["report", "nowhere.jsonl"],
            "hdet: Invalid value: RUN must be a history or a folder with some, and",
        ),
        (["watch", "a.jsonl", "--plain", "--json"], "hdet: Invalid value: --plain and --json exclude"),
        (["watch", "a.jsonl", "--once"], "hdet: Invalid value: --once prints and ends"),
        (["find", "train"], "hdet: Invalid value for MODULE:BUILD: must be MODULE:BUILD, got 'train'"),
        (["find", "json:nothing"], "hdet: Invalid value for MODULE:BUILD: module 'json' has no attribute"),
        (["find", "no_such.py:build"], "hdet: Invalid value for MODULE:BUILD: there is no file no_such.py"),
        (["find", "os:getcwd"], "hdet: Invalid value for MODULE:BUILD: os:getcwd must return (model, opt"),
    ],
)
def test_an_error_is_one_line_and_status_2(given, error):
    result = run(app, given)
    assert result.exit_code == 2
    assert result.stderr.startswith(error)
    assert result.stderr.endswith("--help`\n")
    assert result.stderr.count("\n") == 1
    assert not result.stdout


def test_help_opens_with_the_readmes_sentence_and_fits_80_columns():
    lines = run(app, ["--help"]).output.splitlines()
    told = " ".join(" ".join(lines).split())
    readme = (Path(__file__).parents[3] / "README.md").read_text(encoding="utf-8")
    sentence = readme.split("**")[1]
    assert sentence in told
    for command in ("", "demo", "find", "report", "watch", "doctor"):
        text = run(app, [*command.split(), "--help"]).output
        assert "<bool>" not in text
        assert "..." not in text.split("Commands:")[-1] or "Commands:" not in text, "no sentence is cut"
        assert all(len(line) <= 80 for line in text.splitlines())


def test_shells_complete_commands():
    asked = {"_HDET_COMPLETE": "complete_bash", "COMP_WORDS": "hdet re", "COMP_CWORD": "1"}
    command, environment = [sys.executable, "-m", "hdet"], {**os.environ, **asked}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["report"]


@pytest.mark.parametrize("command", ["demo", "watch"])
def test_ctrl_c_says_how_to_go_on(command, monkeypatch, tmp_path):
    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    def stop_serving(server):
        server._http.server_close()
        raise KeyboardInterrupt

    monkeypatch.setattr("hdet.cli.demo_runs.demo", stop)
    monkeypatch.setattr("hdet.report.server.Server.serve", stop_serving)
    more = {"demo": ["--output", str(tmp_path)], "watch": [str(tmp_path / "run.jsonl"), "--port", "0"]}
    result = run(app, [command, *more[command]])
    assert result.exit_code == 130
    assert result.stderr.startswith("hdet: stopped")
    assert any(next_ in result.stderr for next_ in ("again", "goes on"))


@pytest.mark.parametrize("command", ["report", "watch", "doctor"])
@pytest.mark.parametrize(
    "text",
    [
        "import torch\n\nprint(1)\n",
        '{"loss": 1.0, "step": 3}\n{"loss": 2.0}\n',
        "[1, 2]\n",
        "garbage",
        "\x00\xff\n",
    ],
    ids=["a script", "another tool's lines", "a list", "no line", "bytes"],
)
def test_a_file_that_is_no_history_is_an_error(command, text, tmp_path):
    path = tmp_path / "garbage.jsonl"
    path.write_text(text, encoding="utf-8")
    page = tmp_path / "page.html"
    more = {"watch": ["--plain", "--once"], "report": ["-o", str(page)], "doctor": []}
    for given in (path, tmp_path):
        result = run(app, [command, str(given), *more[command]])
        assert result.exit_code == 2
        rule = f"hdet: Invalid value: RUN must be a history or a folder with some, and {given} holds none"
        assert result.stderr.startswith(f"{rule}; give the file that AutoLR(..., history='run.jsonl') writes")
        assert not result.stdout
    assert not page.exists()
    save(tmp_path / "run.jsonl", whole())
    result = run(app, [command, str(tmp_path), *more[command]])
    assert "garbage" not in result.output, "a folder may hold other files"
    assert "step" in result.output


@pytest.mark.parametrize("text", ["", '{"kind": "run", "cal'])
def test_a_history_may_have_just_begun(text, tmp_path):
    path = tmp_path / "run.jsonl"
    path.write_text(text, encoding="utf-8")
    assert run(app, ["report", str(path), "-o", str(tmp_path / "page.html")]).exit_code == 0
    assert run(app, ["watch", str(path), "--plain", "--once"]).exit_code == 0
    assert run(app, ["watch", str(tmp_path / "later.jsonl"), "--plain", "--once"]).exit_code == 0


@pytest.mark.parametrize("command", ["report", "watch", "doctor"])
def test_looking_at_a_run_imports_no_torch(command, tmp_path):
    path = save(tmp_path / "run.jsonl", whole())
    more = {"watch": ["--plain", "--once"], "report": ["-o", str(tmp_path / "page.html")], "doctor": []}
    code = (
        f"import sys\nfrom hdet.cli import app\ntry: app({[command, str(path), *more[command]]!r})\n"
        "except SystemExit as e: assert not e.code\n"
        "assert not {'torch', 'numpy'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, capture_output=True)


# ---------------------------------------------------------------------- doctor


def test_doctor_finds_that_replicas_can_diverge():
    result = run(app, ["doctor"])
    assert result.exit_code == 0, result.output
    assert "Training replicas for 5 steps" in result.output
    assert "Replicas can diverge here" in result.output
    assert "equal bit for bit" in " ".join(result.output.split())


@pytest.mark.slow
def test_doctor_prints_no_control_characters(tmp_path):
    save_run(tmp_path / "run", model=torch.nn.Linear(2, 1))
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    manifest.pop("digest")
    manifest["hdet"] = "\x1b[2J\x07"
    text = json.dumps({**manifest, "digest": digest(manifest)})
    (tmp_path / "run" / "manifest.json").write_text(text)
    result = run(app, ["doctor", str(tmp_path / "run")])
    assert result.exit_code == 0
    assert "hdet ?[2J?" in result.output


def test_doctor_under_torchrun_measures_the_ranks_it_was_started_with():
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "hdet", "doctor"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    command = [sys.executable, *launch]
    result = subprocess.run(command, capture_output=True, text=True, timeout=90, env=environment)
    assert result.returncode == 0, result.stderr
    prose = " ".join(result.stdout.split())
    assert prose.count("Replicas can diverge here. On the 2 gloo ranks of this launch") == 1
    assert "WORLD_SIZE=2" in prose


@pytest.mark.parametrize(
    ("measured", "equal_after", "verdict"),
    [
        ((0.0, 0.0), True, "Replicas cannot diverge here"),
        ((0.1, 0.103), True, "Replicas cannot diverge here"),
        ((0.1, 0.1), False, "Replicas cannot be averaged here"),
    ],
)
def test_doctor_exits_1_when_a_replica_is_not_where_it_should_be(monkeypatch, measured, equal_after, verdict):
    found = Measured("2 processes", measured, (0.1, 0.1), equal_after)
    monkeypatch.setattr("hdet.cli.machine_check._local", lambda timeout: found)
    result = run(app, ["doctor"])
    assert result.exit_code == 1
    assert verdict in result.output


def test_doctor_says_of_a_run_whether_it_was_healthy(tmp_path):
    save(tmp_path / "one.jsonl", whole())
    healthy = run(app, ["doctor", str(tmp_path / "one.jsonl")])
    assert healthy.exit_code == 0
    assert healthy.stdout.startswith("one: Found a learning rate")
    save(tmp_path / "two.jsonl", whole()[:1])
    both = run(app, ["doctor", str(tmp_path)])
    assert both.exit_code == 1
    assert "  error: no sync has been recorded: train at least until" in both.stdout
    printed = [json.loads(line) for line in run(app, ["doctor", str(tmp_path), "--json"]).stdout.splitlines()]
    assert [line["run"] for line in printed] == ["one", "two"]
    assert printed[1]["findings"][0]["level"] == "error"


def test_doctor_says_of_a_checkpoint_whether_it_is_whole(tmp_path):
    model, path = torch.nn.Linear(2, 1), tmp_path / "checkpoint"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with Ensemble(optimizer, sync_every=5) as ensemble:
        for _ in range(2):
            save_run(path, model=model, auto=ensemble)
            optimizer.step()
            ensemble.step()
    save(tmp_path / "run.jsonl", whole())
    printed = run(app, ["doctor", str(tmp_path / "run.jsonl"), str(path)]).stdout.splitlines()[-2:]
    assert printed[0].startswith(
        f"{path}: whole, 1 rank(s) of step 1, hdet {__version__}; the history goes on to step 800: resuming"
    )
    assert printed[1].startswith(f"{path}.previous: whole, 1 rank(s) of step 0")
    file = path / "shared.pt"
    file.write_bytes(file.read_bytes()[:-1])
    damaged = run(app, ["doctor", str(path), "--json"])
    assert damaged.exit_code == 1
    newest, before = (json.loads(line) for line in damaged.stdout.splitlines())
    assert newest["trouble"].startswith("shared.pt is damaged: its SHA-256 is ")
    assert (newest["steps"], newest["ranks"]) == (1, 1)
    assert before == {"checkpoint": f"{path}.previous", "steps": 0, "ranks": 1, "trouble": ""}


# ---------------------------------------------------------------------- demo and find


@pytest.mark.slow
def test_demo_shows_tables_sentences_and_a_report(tmp_path, monkeypatch):
    monkeypatch.setattr("hdet.cli.demo_runs.REPLICAS", 2)
    (tmp_path / "language-model").mkdir()
    (tmp_path / "language-model" / "older.jsonl").write_text("not a record\n")
    given = ["--steps", "40", "--replica-steps", "40", "--output", str(tmp_path)]
    result = run(app, ["demo", *given])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert lines[0] == "Python's help texts: rate 0.1, a bad guess", "plain lines where there is no terminal"
    assert all(len(line) <= 80 for line in lines if not line.startswith("The report"))
    rows = [line.split()[0] for line in lines if line.endswith(tuple("0123456789")) and " loss" not in line]
    assert rows.count("rate") == 2
    assert rows.count("nothing:") == 2
    assert rows.count("OneCycleLR,") == rows.count("HDET,") == 1
    assert "AutoLR, given no learning rate, ended" in result.output.split("The report:")[1]
    assert result.output.endswith("held-out digits to choose by.\n")
    language, replicas = tmp_path / "language-model", tmp_path / "replicas"
    names = {path.stem for folder in (language, replicas) for path in folder.glob("*.jsonl")}
    assert names == {"autolr", "rate-0.1", "rate-0.0032", "autotune", "hdet", "onecycle"}
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(page) < 1.5e6
    charts = [json.loads(part.split("</script>")[0]) for part in page.split('application/json">')[1:]]
    losses = [{one["name"] for one in c["series"]} for c in charts if c["title"] == "Held-out loss"]
    assert losses == [{"autolr", "rate-0.1", "rate-0.0032"}, {"autotune", "hdet", "onecycle"}]
    alone, published, together = (
        history.read_history(path)
        for path in (language / "autolr.jsonl", replicas / "hdet.jsonl", replicas / "autotune.jsonl")
    )
    found = re.search(r"nothing: AutoLR +rate (\S+)", result.output)
    assert f"Found a learning rate of {found[1]}," in page, "the table's rate is the report's"
    assert (alone[-1].step, len(alone[-1].losses), len(together[-1].losses)) == (40, 1, 2)
    assert [record.step for record in published] == list(range(1, together[-1].step + 1))
    for record in published:
        (rate,) = record.hyperparameters
        assert sorted(rate.values) == pytest.approx([rate.base_before * rho for rho in (8 / 9, 10 / 9)])
        assert (rate.base_after != rate.base_before) == (record.step >= together[-1].step // 3), "the vote"
    assert {seen.name for seen in together[-1].hyperparameters} == {"lr/0", "weight_decay"}
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=5.0)
    replay(optimizer, language / "schedule.json")
    assert optimizer.param_groups[0]["lr"] == alone[0].hyperparameters[0].base_before


def test_the_sentence_on_replicas_follows_the_numbers():
    def sentence(*losses):
        return replicas_sentence(*(Outcome("", "–", 20, loss) for loss in losses))

    one = sentence(2.0, 2.1, 1.0)
    assert one.startswith("HDET ended 5.0% above OneCycleLR's loss from the same max_lr; AutoTune, given ")
    assert "nothing, ended 50.0% below it, with 256" in one
    assert "HDET ended 10.0% below" in sentence(2.0, 1.8, 3.0)
    assert "AutoTune, given nothing, ended far from it" in sentence(2.0, 1.8, math.nan)


def test_ranks_that_take_too_long_end_with_a_plain_error(tmp_path, monkeypatch):
    def late(*args, **kwargs):
        raise TimeoutError("ranks [1] were not done in time")

    monkeypatch.setattr("hdet.cli.demo_runs.demo", late)
    result = run(app, ["demo", "--output", str(tmp_path)])
    assert result.exit_code == 1
    assert result.stderr == "hdet: ranks [1] were not done in time\n"


def test_find_prints_the_rate_of_a_users_own_model_and_writes_its_schedule(tmp_path, monkeypatch):
    monkeypatch.delenv("HDET_QUIET", raising=False)
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
    assert "AutoLR" not in result.stderr, "the command says itself what was found"
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))])
    replay(optimizer, page)
    assert 0 < optimizer.param_groups[0]["lr"] < 1


# ---------------------------------------------------------------------- report and watch


def test_report_writes_the_page_and_prints_the_verdicts(tmp_path):
    save(tmp_path / "one.jsonl", whole())
    save(tmp_path / "two.jsonl", whole())
    page = tmp_path / "page.html"
    result = run(app, ["report", str(tmp_path), "-o", str(page)])
    assert result.exit_code == 0, result.output
    assert result.stdout.count("Found a learning rate") == 2
    assert page.exists()
    printed = run(app, ["report", str(tmp_path), "-o", str(page), "--json"]).stdout.splitlines()
    assert [json.loads(line)["run"] for line in printed] == ["one", "two"]


def test_watch_prints_records_and_alerts_for_scripts(tmp_path):
    path = save(tmp_path / "run.jsonl", whole())
    lines = [
        json.loads(line) for line in run(app, ["watch", str(path), "--json", "--once"]).stdout.splitlines()
    ]
    alerts = [line for line in lines if line.get("kind") == "alert"]
    assert {line["kind"] for line in lines if "kind" in line} == {"run", "said", "end", "handed", "alert"}
    assert {alert["level"] for alert in alerts} == {"warning", "info"}
    assert {alert["alert"] for alert in alerts} == {"rollback", "steps not counted", "early end"}
    assert len(lines) - len(alerts) == len(whole())
    assert "/run: Found" in run(app, ["watch", str(path), "--plain", "--once"]).stdout
    waiting = run(app, ["watch", str(tmp_path / "not yet"), "--plain", "--once"])
    assert "Nothing has been measured yet." in waiting.stdout


def test_a_run_as_text():
    text = drawn("mine", whole(), [Alert(100, "warning", "rollback", "it rose")])
    lines = text.splitlines()
    assert all(len(line) <= 78 for line in lines), "words are not broken by the terminal"
    *verdict_lines, rate, loss, alert = lines
    verdict = " ".join(line.strip() for line in verdict_lines)
    assert verdict.startswith("mine: Found a learning rate")
    assert rate.strip().startswith("rate  ▁")
    assert loss.strip().endswith("0.494")
    assert alert == "  warning: step 100: rollback: it rose"
    assert "–" in drawn("mine", nothing_finite(), []), "what is not finite"
    assert sparkline([]) == sparkline([math.nan]).strip() == ""
    assert len(sparkline(list(range(10_000)), width=50)) <= 50
