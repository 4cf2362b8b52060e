"""The examples run as their second line says, and examples/README.md lists them all."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests import ROOT

EXAMPLES = ROOT / "examples"
ALL = sorted(path.name for path in EXAMPLES.glob("*.py"))


def run(name: str, ranks: int = 1) -> list[str]:
    """The lines that an example prints."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    result = subprocess.run(
        [sys.executable, *(launch if ranks > 1 else []), str(EXAMPLES / name)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


@pytest.mark.parametrize("name", ALL)
def test_an_example_is_short_and_says_what_it_shows_and_how_to_run_it(name: str) -> None:
    lines = (EXAMPLES / name).read_text(encoding="utf-8").splitlines()
    assert len(lines) < 80
    assert re.fullmatch(r'"""[A-Z].*\.', lines[0])
    said = re.fullmatch(rf"Run: ((?:python|torchrun --nproc-per-node \d) examples/{name}).*", lines[1])
    assert said, lines[1]
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert f"| [`{name}`]({name}) |" in table
    assert f"`{said[1]}`" in table


def test_every_example_is_run_by_a_test_and_listed() -> None:
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("*/test_*.py"))
    calls = ('run("{}"', 'run_example("{}"', '"examples" / "{}"')
    ran = {name for name in ALL if any(call.format(name) in tests for call in calls)}
    by_launch_files = {"many_machines.py"}  # test_launch_files.py runs torchrun.sh, which names it
    assert "examples/many_machines.py" in (EXAMPLES / "launch" / "torchrun.sh").read_text(encoding="utf-8")
    assert ran | by_launch_files == set(ALL)
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"\[`([\w./]+)`\]\(\1\)", table))
    assert all((EXAMPLES / name).exists() for name in listed)
    assert {"report.ipynb", "launch/"} <= listed


def test_ddp() -> None:
    lines = [line.split() for line in run("ddp.py", ranks=2)]
    assert int(lines[-1][1]) == 200
    assert float(lines[-1][-1]) < 0.05 * float(lines[0][-1])


def test_fsdp2() -> None:
    *lines, saved = [line.split() for line in run("fsdp2.py", ranks=2)]
    assert int(lines[-1][1]) == 120
    assert float(lines[-1][-1]) < 0.3 * float(lines[0][-1])
    assert saved == ["saved", "3", "files"], "a part of each rank, and the list of them"


def test_replay() -> None:
    searched, size, *replayed = run("replay.py")
    assert int(size.split()[3]) < 2000
    assert len(replayed) == 3
    for line in replayed:
        assert float(line.split()[-1]) < 2 * float(searched.split()[-1]), "and it began at 0.3"


@pytest.mark.parametrize("ranks", [2, 4])
def test_published(ranks: int) -> None:
    lines = [line.split() for line in run("published.py", ranks) if line.startswith("step")]
    assert [int(line[1]) for line in lines] == list(range(20, 201, 20))
    assert float(lines[-1][3]) < 0.7 * float(lines[0][3])
    assert float(lines[-2][-1]) == pytest.approx(0.2 * 1e-2, rel=0.02), "Eq. 8: a fifth of the peak"


def test_auto_lr() -> None:
    first, *_, last = run("auto_lr.py")
    assert float(last.split()[2]) < 0.05 * float(first.split()[5])


def test_ema() -> None:
    *told, last = run("ema.py")
    assert "are not finite: back to the weights of step" in told[0]
    assert float(last.split()[-1]) < 0.05, "and not NaN"


def test_hyperparameters() -> None:
    *rounds, last = run("hyperparameters.py", ranks=4)
    found = rounds[-1].split()
    assert found[1] == "600"
    assert {"dropout", "label_smoothing", "weight_decay"} <= set(found)
    # Without looking for anything the same loop learns the wrong labels by heart, and ends at 2.2.
    assert float(last.split()[2]) < 1.6


def test_stacked() -> None:
    lines = run("stacked.py")
    assert [int(line.split()[1]) for line in lines] == list(range(20, 201, 20))
    losses = [float(line.split()[3]) for line in lines]
    assert losses[-1] < losses[0]


def test_auto_tune() -> None:
    *rounds, last = run("auto_tune.py")
    assert {"lr/0", "weight_decay", "dropout", "label_smoothing"} <= set(rounds[-1].split())
    # At AdamW's defaults the same loop learns the wrong labels by heart.
    assert float(last.split()[-1]) < 1.3


def test_tune_in_ddp() -> None:
    (line,) = run("tune_in_ddp.py", ranks=4)
    words = line.split()
    found = dict(zip(words[:6:2], map(float, words[1:6:2]), strict=True))
    assert found.keys() == {"lr", "weight_decay", "dropout"}
    assert found["dropout"] != 0.1, "it began there"
    # Plain DDP at a rate of 0.01, without dropout, learns the wrong labels by heart: 1.6 after 30 epochs.
    assert float(words[-1]) < 1.2


def test_diffusion() -> None:
    first, *_, best, distance = run("diffusion.py")
    loss, error = float(best.split()[5]), float(best.split()[7])
    assert loss < 0.85 * float(first.split()[-1])
    assert error < 0.05, "with one draw of noise it is 0.1"
    near, far = float(distance.split()[9].rstrip(",")), float(distance.split()[-1])
    assert near < 0.5 * far


def test_hsdp() -> None:
    lines = run("hsdp.py", ranks=4)
    assert [int(line.split()[1]) for line in lines] == list(range(10, 61, 10))
    losses = [float(line.split()[3]) for line in lines]
    assert losses[-1] < 0.9 * losses[0]


def test_muon_adamw() -> None:
    *rounds, last = run("muon_adamw.py")
    rates = [[float(rate) for rate in line.split()[3:5]] for line in rounds]
    assert rates[-2][0] != rates[-2][1], "each has a factor of its own"
    assert rates[-1] == [0.0, 0.0]
    assert float(last.split()[2]) < 0.05 * float(rounds[0].split()[6])
