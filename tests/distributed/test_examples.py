"""The examples run as their first line says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_ddp() -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    result = subprocess.run(
        [*launch, str(EXAMPLES / "ddp.py")],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    lines = [line for line in result.stdout.splitlines() if line.startswith("step")]
    assert [int(line.split()[1]) for line in lines] == list(range(20, 201, 20))
    losses = [float(line.split()[3]) for line in lines]
    assert losses[-1] < losses[0]


def test_auto_lr() -> None:
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / "auto_lr.py")],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    first, *_, last = result.stdout.splitlines()
    assert float(last.split()[2]) < 0.05 * float(first.split()[5])
