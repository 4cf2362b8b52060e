"""Ranks that are not where the others are: all say who is where, within the patience, and then exit."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import hdet
from hdet.replicas import ProcessReplicas
from hdet.replicas.launch import LocalProcesses, ReplicaError
from hdet.replicas.processes import patience
from tests.distributed.classifier import Answer, answer_to

SIZE, PATIENCE = 2, 4
#: Exit follows within so many seconds, on a machine that is busy with other things.
SLACK = 25


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def run_of(fault: str) -> Iterator[list[subprocess.Popen[str]]]:
    port = free_port()
    environment = {**os.environ, "HDET_PATIENCE": str(PATIENCE), "OMP_NUM_THREADS": "1"}
    if sys.platform == "linux":
        environment["GLOO_SOCKET_IFNAME"] = "lo"
    command = [sys.executable, "-m", "tests.distributed.stuck"]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(SIZE), str(port), fault],
            cwd=Path(__file__).parents[2],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(SIZE)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("stopped", [0, 1])  # rank 0 keeps the store through which they met
def test_survivors_of_a_stopped_rank_raise_and_exit(stopped: int) -> None:
    with run_of(f"rank {stopped} stops") as processes:
        survivors = [process for rank, process in enumerate(processes) if rank != stopped]
        for process in survivors:
            said, _ = process.communicate(timeout=60 + PATIENCE + SLACK)
            assert process.returncode == 1, said
            assert "gave up waiting for the other 1 at the sync after step 4" in said
            if stopped:
                assert f"no word from rank {stopped}:" in said
        assert processes[stopped].poll() is None, "it is stopped, not dead"
        processes[stopped].send_signal(signal.SIGKILL)


def alone(rank: int, call: str, path: str) -> Answer:
    """The others are elsewhere for longer than the patience."""
    torch.manual_seed(0)
    model = nn.Linear(7, 7)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HDET_PATIENCE", "2")
        if call == "hdet.save":
            auto = hdet.Ensemble(torch.optim.SGD(model.parameters(), lr=0.01), gradients="none", model=model)
            act = partial(hdet.save, path, auto=auto)
        else:
            probe = hdet.Probe(lambda x: model(x).square().mean(), torch.randn(8, 4, 7), model=model)
            best = hdet.BestMean(model, probe)
            best.step()
            act = best.finish_
    return answer_to(partial(time.sleep, 4) if rank else act)


@pytest.mark.parametrize("call", ["hdet.save", "finish_"])
def test_a_call_on_one_rank_alone_is_named(ranks: LocalProcesses, tmp_path: Path, call: str) -> None:
    kind, message, seconds = ranks.run(alone, call, str(tmp_path / "run"), size=2)[0]
    assert kind == "RuntimeError"
    assert f"gave up waiting for the other 1 at {call}(), which every rank calls" in message
    assert seconds < 20


def test_a_forgotten_step_under_data_parallelism() -> None:
    """Its gradients wait for the others, who wait for it; they do not pair."""
    with run_of("forgets a step") as processes:
        said = [process.communicate(timeout=60 + PATIENCE + SLACK)[0] for process in processes]
        assert all(process.returncode == 1 for process in processes), said
    assert "at the sync after step 8" in said[0]
    assert "no word from rank 1:" in said[0]


def run_own(rank: int, fault: str) -> Answer:
    """On gradients of their own nothing else holds the ranks together."""
    torch.manual_seed(0)
    model = nn.Linear(7, 7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    ensemble = hdet.Ensemble(optimizer, sync_every=4, gradients="none", model=model)

    def train() -> None:
        for step in range(1, 13):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 7)).square().mean()
            loss.backward()
            optimizer.step()
            if fault == "late" and rank == 1 and step == 8:
                time.sleep(1.5)
            if fault == "forgets a step" and rank == 1 and step == 3:
                continue
            ensemble.step(loss.detach())
        ensemble.converge()

    return answer_to(train)


def test_ranks_that_came_for_different_things_say_who_is_where(ranks: LocalProcesses) -> None:
    for kind, message, seconds in ranks.run(run_own, "forgets a step", size=2):
        assert kind == "RuntimeError"
        assert "the ranks are at different steps [12, 11]" in message
        assert "rank 0 is at the sync after step 12 (round 2)" in message
        assert "rank 1 is at the converge after step 11" in message
        assert seconds < 30


def test_a_late_rank_is_waited_for(ranks: LocalProcesses) -> None:
    for kind, message, _ in ranks.run(run_own, "late", size=2):
        assert not kind, message


def construct_on_some(rank: int) -> Answer:
    os.environ["HDET_PATIENCE"] = "2"
    try:
        if rank == 1:
            time.sleep(4)
            return ("RuntimeError", "every rank must construct the same things", 0.0)
        optimizer = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.01)
        return answer_to(lambda: hdet.Ensemble(optimizer, sync_every=4))
    finally:
        del os.environ["HDET_PATIENCE"]


def test_a_rank_that_constructs_nothing_is_not_waited_for_without_end(ranks: LocalProcesses) -> None:
    for kind, message, seconds in ranks.run(construct_on_some, size=2):
        assert kind == "RuntimeError"
        assert "every rank must construct the same things" in message
        assert seconds < 20


def groups(rank: int) -> tuple[bool, bool, bool, str]:
    """Groups that were made unevenly: rank 0 alone has one of its own."""
    device = torch.device("cpu")
    once, again = ProcessReplicas(None, device), ProcessReplicas(None, device)
    own = once._group is again._group and once._group is not dist.group.WORLD
    pair = dist.new_group([0, 1])
    of_pair = True
    if rank < 2:
        of_pair = ProcessReplicas(pair, device)._group not in (pair, once._group)
    uneven = dist.new_group([0, 2])
    dist.new_group([0])
    shared = True
    if rank != 1:
        given = ProcessReplicas(uneven, device)
        shared = given._group is uneven and given.gather([float(rank)]) == [[0.0], [2.0]]
    dist.destroy_process_group()
    kind, message, _ = answer_to(lambda: once.gather([1.0]))
    return own, of_pair, shared, f"{kind} {message}"


def test_one_group_serves_all_doors_and_ends_with_the_default_one(ranks: LocalProcesses) -> None:
    for own, of_pair, shared, message in ranks.run(groups, size=3):
        assert own
        assert of_pair
        assert shared
        assert "RuntimeError" in message
        assert "was destroyed" in message


def test_a_patience_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    for said in ("soon", "0", "nan"):
        monkeypatch.setenv("HDET_PATIENCE", said)
        with pytest.raises(ValueError, match="HDET_PATIENCE must be a number of seconds of at least 1, got"):
            patience()


def test_a_rank_that_died_between_two_runs_is_a_failed_replica() -> None:
    with LocalProcesses(1) as pool:
        assert pool.run(abs, size=1) == [0]
        pool._processes[0].kill()
        pool._processes[0].join()
        with pytest.raises(ReplicaError, match="the process died"):
            pool.run(abs, size=1)
        assert pool.run(abs, size=1) == [0], "the next run starts with fresh ones"
