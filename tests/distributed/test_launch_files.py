"""The files in examples/launch: parsed, held against torchrun's parser, run where that is possible."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from torch.distributed.run import get_args_parser

from hdet import history
from tests import ROOT
from tests.distributed.test_many_machines import free_port, outcome, start

LAUNCH = ROOT / "examples" / "launch"
SHELL = sorted(LAUNCH.glob("*.sh"))
BIN = Path(sys.executable).parent


def torchrun(arguments: list[str]) -> argparse.Namespace:
    """As torchrun reads them; what it does not know ends the parser."""
    try:
        read = get_args_parser().parse_args(arguments)
    except SystemExit:
        pytest.fail(f"torchrun does not take {arguments}")
    assert (ROOT / read.training_script).is_file()
    assert read.rdzv_backend == "c10d"
    assert read.nproc_per_node == "gpu"
    host, port = read.rdzv_endpoint.rsplit(":", 1)
    assert host
    assert int(port) == 29500
    return read


def filled_in(text: str, **values: str) -> str:
    """A command with its variables, ``$NAME`` and ``${NAME:-default}``, in place."""
    text = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda found: values.get(found[1], found[2]), text)
    return re.sub(r"\$(\w+)", lambda found: values[found[1]], text)


def test_none_is_forgotten() -> None:
    assert {file.name for file in LAUNCH.iterdir()} == {"kubernetes.yaml", "slurm.sh", "torchrun.sh"}


@pytest.mark.parametrize("script", SHELL, ids=lambda script: script.name)
def test_shell_is_shell(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    if shutil.which("shellcheck"):  # bash alone sees less
        subprocess.run(["shellcheck", script], check=True)


def test_torchrun_takes_its_arguments() -> None:
    text = (LAUNCH / "torchrun.sh").read_text().replace("\\\n", " ")
    command = filled_in(text[text.index("torchrun  ") :], NODES="2", HEAD="first:29500")
    program, *arguments = shlex.split(command)
    assert program == "torchrun"
    read = torchrun(arguments)
    assert (read.nnodes, read.rdzv_id, read.max_restarts) == ("2", "hdet", 3)


def test_slurm_asks_for_one_agent_a_machine() -> None:
    asked = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", (LAUNCH / "slurm.sh").read_text(), re.M))
    assert asked["ntasks-per-node"] == "1"
    assert int(asked["nodes"]) > 1
    assert {"gpus-per-node", "time", "requeue"} <= asked.keys()


def test_the_slurm_script_trains_on_two_machines(tmp_path: Path) -> None:
    """With stand-ins for SLURM's own commands: two agents of one process each, on one loopback."""
    port = free_port()
    stand_ins = {
        "scontrol": "echo localhost",
        "srun": f'shift; HEAD=localhost:{port}; export HEAD; "$@" & "$@" && wait $!',
    }
    for name, text in stand_ins.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\nset -e\n{text}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "two", "SLURM_NNODES": "2", "SLURM_JOB_ID": "7"}
    folder = tmp_path / "run"
    more = {"FOLDER": str(folder), "PROCESSES": "1", "RESTARTS": "0", "GLOO_SOCKET_IFNAME": "lo"}
    more["PATH"] = f"{tmp_path}:{BIN}:/usr/local/bin:/usr/bin:/bin"
    (text,) = outcome(start(["bash", str(LAUNCH / "slurm.sh")], **slurm, **more))
    ends = re.findall(r"rank (\d) of 2 [^w]* weights (-?[\d.]+)", text)
    assert sorted(rank for rank, _ in ends) == ["0", "1"]
    assert len({weights for _, weights in ends}) == 1
    steps = [record.step for record in history.read_history(folder / "history.jsonl")]
    assert steps == sorted(set(steps))
    assert steps[-1] == 120
    assert (folder / "checkpoint.pt").is_file()


@pytest.fixture(scope="module")
def manifest() -> dict[str, Any]:
    parts = list(yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text()))
    assert [(part["apiVersion"], part["kind"]) for part in parts] == [("v1", "Service"), ("batch/v1", "Job")]
    return {part["kind"]: part for part in parts}


def test_kubernetes_pods_find_each_other(manifest: dict[str, Any]) -> None:
    """Pod k of an indexed Job is <job>-k.<subdomain>, if a headless Service of that name selects it."""
    service, job = manifest["Service"], manifest["Job"]
    pod = job["spec"]["template"]["spec"]
    assert job["spec"]["completionMode"] == "Indexed"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    (container,) = pod["containers"]
    assert container["command"] == ["torchrun"]
    read = torchrun(container["args"])
    assert int(read.nnodes) == job["spec"]["completions"] == job["spec"]["parallelism"]
    assert read.rdzv_endpoint == f"{job['metadata']['name']}-0.{pod['subdomain']}:29500"
    assert [port["port"] for port in service["spec"]["ports"]] == [29500]


def test_kubernetes_pods_share_a_folder_and_start_again(manifest: dict[str, Any]) -> None:
    pod = manifest["Job"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert mounts.keys() == volumes.keys()
    assert "persistentVolumeClaim" in volumes["shared"]
    assert container["args"][-1].startswith(mounts["shared"] + "/")
    assert pod["restartPolicy"] == "OnFailure"
    assert container["resources"]["limits"]["nvidia.com/gpu"] > 0
