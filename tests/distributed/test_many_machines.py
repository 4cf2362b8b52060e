"""Two machines: two torchrun agents that meet over c10d, on two networks where that is allowed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import hdet
from hdet import history
from tests import ROOT
from tests.distributed.machines import STEPS, SYNC_EVERY

WORKER = ROOT / "tests" / "distributed" / "machines.py"
CABLE = ROOT / "tests" / "distributed" / "two_machines.sh"
UNSHARE = ["unshare", "--map-root-user", "--net", "--uts"]
#: Both runs take some ten seconds; an agent that waits for longer waits in vain.
BOUND_S = 150


def agent(head: str, script: Path, *arguments: str) -> list[str]:
    """A machine's command: one process, and a machine that does not come is not waited for forever."""
    run = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    run += ["--rdzv-backend", "c10d", "--rdzv-endpoint", head, "--rdzv-id", "test"]
    return [*run, "--rdzv-conf", "join_timeout=60", "--max-restarts", "0", str(script), *arguments]


def environment(**more: str) -> dict[str, str]:
    here = f"{Path(hdet.__file__).parents[1]}{os.pathsep}{ROOT}"
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": here, **more}


def start(command: list[str], **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(**more),
        cwd=ROOT,
        start_new_session=True,
    )


def outcome(*machines: subprocess.Popen[str]) -> list[str]:
    """What all of them printed. One that fails or does not end in time is an error, and none is left."""
    try:
        printed = [machine.communicate(timeout=BOUND_S)[0] for machine in machines]
    finally:
        for machine in machines:
            if machine.poll() is None:
                os.killpg(machine.pid, signal.SIGKILL)
    for machine, text in zip(machines, printed, strict=True):
        assert machine.returncode == 0, text
        assert "terminate called" not in text, text
    return printed


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def check(folder: Path) -> None:
    """Both ranks came to one model by one history."""
    found = [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert sorted(rank.pop("machine") for rank in found) == ["0", "1"]
    assert found[0] == found[1]
    for kind, run in found[0].items():
        assert [record.step for record in history.read_history(folder / f"{kind}.jsonl")] == run["syncs"]
    assert found[0]["OneCycleAutoLR"]["syncs"] == list(range(SYNC_EVERY, STEPS + 1, SYNC_EVERY))
    (first, *_) = history.read_history(folder / "OneCycleAutoLR.jsonl")
    assert len(set(first.losses)) == 2  # each has seen data of its own


def test_two_machines(tmp_path: Path) -> None:
    """On two networks, where neither reaches the other but by the address it was given; on one loopback where
    network namespaces are not allowed."""
    allowed = subprocess.run(
        [*UNSHARE, "ip", "link", "add", "cable-one", "type", "veth"], capture_output=True, check=False
    )
    if allowed.returncode == 0:
        outcome(start([*UNSHARE, "bash", str(CABLE), *agent("10.77.0.1:29500", WORKER, str(tmp_path))]))
    else:
        command = agent(f"127.0.0.1:{free_port()}", WORKER, str(tmp_path))
        outcome(*(start(command, GLOO_SOCKET_IFNAME="lo") for _ in range(2)))
    check(tmp_path)
