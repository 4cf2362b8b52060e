"""Real replicas on one machine: processes over gloo on loopback, every wait bounded.

The demo, the doctor, the benchmarks and the tests all start their ranks here. The processes stay alive
between runs (importing torch is what costs), and every run meets in a process group of its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from hdet.replicas.own_group import meet

__all__ = ["LocalProcesses", "ReplicaError"]

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
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        size: int | None = None,
        timeout: float = 120.0,
        on_report: Callable[[int, Any], None] | None = None,
    ) -> list[Any]:
        """Call ``function(rank, *args)`` on ``size`` ranks of one gloo group; their results, by rank.

        With ``on_report``, ``function`` also gets a keyword ``report``: what it is called with arrives here,
        as ``on_report(rank, what)``, while the run goes on.

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
            with contextlib.suppress(OSError):  # who died in between is found where results are awaited
                connection.send((function, args, size, str(meeting), timeout, on_report is not None))
        return self._collect(size, time.monotonic() + timeout, on_report)

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
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, rank), daemon=True)
            process.start()
            there.close()
            self._connections.append(here)
            self._processes.append(process)

    def _collect(self, size: int, deadline: float, on_report: Callable[[int, Any], None] | None) -> list[Any]:
        results: dict[int, Any] = {}
        failures: list[Failure] = []
        open_ranks = {self._connections[rank]: rank for rank in range(size)}
        while open_ranks:
            ready = wait(list(open_ranks), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for connection in ready:
                assert isinstance(connection, Connection)
                rank = open_ranks[connection]
                try:
                    kind, content = connection.recv()
                except (EOFError, OSError) as error:  # reset, if it left what it was sent unread
                    kind, content = "failure", Failure(rank, type(error).__name__, "the process died", "")
                if kind == "report":
                    assert on_report is not None
                    on_report(rank, content)
                    continue
                del open_ranks[connection]
                if kind == "result":
                    results[rank] = content
                else:
                    failures.append(content)
                    deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
        if open_ranks or failures:
            self._stop()  # the next run starts with fresh ones
        if failures:
            raise ReplicaError(sorted(failures, key=lambda failure: failure.rank))
        if open_ranks:
            raise TimeoutError(f"ranks {sorted(open_ranks.values())} were not done in time and were stopped")
        return [results[rank] for rank in range(size)]


def _serve(connection: Connection, rank: int) -> None:
    """What a rank's process does: wait for work, meet the others, do it, answer."""
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    ended: list[dist.ProcessGroup] = []
    while True:
        try:
            function, args, size, meeting, timeout, reports = connection.recv()
        except (EOFError, KeyboardInterrupt):
            return
        keywords = {"report": lambda what: connection.send(("report", what))} if reports else {}
        try:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{meeting}",
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=timeout),
            )
            meet(dist.group.WORLD, timedelta(seconds=timeout))
            answer = ("result", function(rank, *args, **keywords))
        except Exception as error:
            trace = traceback.format_exc()
            answer = ("failure", Failure(rank, type(error).__name__, str(error), trace))
        finally:
            if dist.is_initialized():
                # torch 2.6 frees a group with the GIL in its hand and joins a thread that may be waiting for
                # it. Groups that have ended are freed after the next run: their threads are idle by then.
                ended[:] = dist.distributed_c10d._world.pg_map
                dist.destroy_process_group()
        connection.send(answer)
