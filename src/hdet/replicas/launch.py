"""Ranks on this machine: those that a launcher has started, and local processes over gloo on loopback.

The demo, the doctor, the benchmarks and the tests start their ranks with it; every wait has a limit. The
processes stay alive between runs, because importing torch takes long, and every run has its own process
group.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from hdet.replicas.processes import meet

__all__ = [
    "LocalProcesses",
    "ReplicaError",
    "available_backends",
    "launch_variables",
    "launched_group",
    "launched_ranks",
]

#: How long the other ranks may still take once one has failed, before all are stopped.
_GRACE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Failure:
    """What went wrong on one rank."""

    rank: int
    kind: str
    message: str
    traceback: str


class ReplicaError(RuntimeError):
    """At least one rank raised; ``failures`` holds each of them."""

    def __init__(self, failures: list[Failure]) -> None:
        self.failures = failures
        super().__init__("\n".join(f"rank {f.rank}: {f.kind}: {f.message}\n{f.traceback}" for f in failures))


class LocalProcesses:
    """A pool of processes, one per rank.

    Args:
        size: how many ranks there are at the most.

    Example::

        with LocalProcesses(2) as ranks:
            results = ranks.run(train, learning_rate)   # train(rank, learning_rate) on both ranks
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._folder = tempfile.TemporaryDirectory(prefix="hdet-")
        self._runs = 0
        self._connections: list[Connection] = []
        self._processes: list[Any] = []

    def __enter__(self) -> LocalProcesses:
        self._start()  # importing torch takes them seconds, which the caller may use
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self, function: Callable[..., Any], *args: Any, size: int | None = None, timeout: float = 120.0
    ) -> list[Any]:
        """Call ``function(rank, *args)`` on ``size`` ranks of one gloo group; their results, by rank.

        Raises:
            ReplicaError: a rank raised.
            TimeoutError: not all ranks were done after ``timeout`` seconds; they have been stopped.
        """
        size = self.size if size is None else size
        if not 1 <= size <= self.size:
            raise ValueError(f"LocalProcesses.run: size must be in 1…{self.size}, got {size}")
        if not self._processes:
            self._start()
        self._runs += 1
        meeting = Path(self._folder.name) / f"run-{self._runs}"
        for connection in self._connections[:size]:
            with contextlib.suppress(OSError):  # _collect finds a process that has died
                connection.send((function, args, size, str(meeting), timeout))
        return self._collect(size, time.monotonic() + timeout)

    def close(self) -> None:
        """Stop all processes, for good."""
        self._stop()
        self._folder.cleanup()

    def _stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()
        for connection in self._connections:
            connection.close()
        self._processes, self._connections = [], []

    def _start(self) -> None:
        context = mp.get_context("spawn")
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank), daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self._processes.append(process)

    def _collect(self, size: int, deadline: float) -> list[Any]:
        results: dict[int, Any] = {}
        failures: list[Failure] = []
        open_ranks = {self._connections[rank]: rank for rank in range(size)}
        while open_ranks:
            ready = wait(list(open_ranks), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = open_ranks.pop(connection)
                try:
                    answer = connection.recv()
                except (EOFError, OSError) as error:  # reset, if it left what it was sent unread
                    answer = Failure(rank, type(error).__name__, "the process died", "")
                results[rank] = answer
                if isinstance(answer, Failure):
                    failures.append(answer)
                    deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
        if open_ranks or failures:
            self._stop()  # the next run starts with fresh ones
        if failures:
            raise ReplicaError(sorted(failures, key=lambda failure: failure.rank))
        if open_ranks:
            raise TimeoutError(f"ranks {sorted(open_ranks.values())} were not done in time and were stopped")
        return [results[rank] for rank in range(size)]


def _serve(connection: Connection, rank: int) -> None:
    """What a rank's process does: wait for a call, join the group, call, answer."""
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    ended: list[dist.ProcessGroup] = []
    while True:
        try:
            function, args, size, meeting, timeout = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{meeting}",
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=timeout),
            )
            meet(dist.group.WORLD, timedelta(seconds=timeout))
            answer = function(rank, *args)
        except Exception as error:
            answer = Failure(rank, type(error).__name__, str(error), traceback.format_exc())
        finally:
            if dist.is_initialized():
                # torch 2.6 frees a group with the GIL held, and joins a thread that may wait for the GIL. So
                # groups that have ended are freed after the next run, when their threads are idle.
                ended[:] = dist.distributed_c10d._world.pg_map
                dist.destroy_process_group()
        connection.send(answer)


# ---------------------------------------------------------------------- ranks that a launcher has started


def available_backends() -> dict[str, bool]:
    """Which of torch's own backends this build of torch can use."""
    return {
        "gloo": dist.is_gloo_available(),
        "nccl": dist.is_nccl_available(),
        "mpi": dist.is_mpi_available(),
    }


def launch_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment variables that torchrun, or another launcher, has set."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return {name: environment[name] for name in names if name in environment}


def launched_ranks(environment: Mapping[str, str] = os.environ) -> int:
    """How many ranks a launcher has started; 1 where there was none.

    >>> launched_ranks({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost"})
    2
    >>> launched_ranks({"WORLD_SIZE": "2"})
    1
    """
    complete = {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= environment.keys()
    return int(environment["WORLD_SIZE"]) if complete else 1


@contextlib.contextmanager
def launched_group(timeout: float = 60.0) -> Iterator[tuple[str, torch.device]]:
    """The default group over the ranks that a launcher has started; yields its backend and our device.

    NCCL where every rank of this machine has a GPU to itself, gloo otherwise.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    local_size = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    on_gpu = dist.is_nccl_available() and torch.cuda.device_count() >= local_size
    backend = "nccl" if on_gpu else "gloo"
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    try:
        yield backend, device
        dist.barrier()  # leave together: no rank takes the group down while another still uses it
    finally:
        # An optimizer and the hooks on it hold each other, and with them DDP: let those go before the group.
        gc.collect()
        dist.destroy_process_group()
