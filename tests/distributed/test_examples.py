"""The examples run as their first line says."""

from __future__ import annotations

import os
import subprocess
import sys

from tests import ROOT

EXAMPLES = ROOT / "examples"


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


def test_ddp() -> None:
    lines = [line for line in run("ddp.py", ranks=2) if line.startswith("step")]
    assert [int(line.split()[1]) for line in lines] == list(range(20, 201, 20))
    losses = [float(line.split()[3]) for line in lines]
    assert losses[-1] < losses[0]


def test_auto_lr() -> None:
    first, *_, last = run("auto_lr.py")
    assert float(last.split()[2]) < 0.05 * float(first.split()[5])


def test_ema() -> None:
    *told, last = run("ema.py")
    assert "to nan: back to the weights of step" in told[0]
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
    # At AdamW's defaults the same loop, without an end, learns the wrong labels by heart.
    assert float(last.split()[-1]) < 1.3


def test_hsdp() -> None:
    lines = run("hsdp.py", ranks=4)
    assert [int(line.split()[1]) for line in lines] == list(range(10, 61, 10))
    losses = [float(line.split()[3]) for line in lines]
    assert losses[-1] < 0.9 * losses[0]
    assert len((EXAMPLES / "hsdp.py").read_text().splitlines()) < 80


def test_muon_adamw() -> None:
    *rounds, last = run("muon_adamw.py")
    rates = [[float(rate) for rate in line.split()[3:5]] for line in rounds]
    assert rates[-2][0] != rates[-2][1], "each has a factor of its own"
    assert rates[-1] == [0.0, 0.0]
    assert float(last.split()[2]) < 0.05 * float(rounds[0].split()[6])
