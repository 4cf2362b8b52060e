"""Many short runs of several replicas each: a core for every replica, and processes that are kept.

As :mod:`benchmarks.pool`, for runs that are a group of processes themselves.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Lock
from typing import Any, Protocol, TypeVar

from benchmarks.pool import Say
from benchmarks.rows import KeptRows, Row, environment, failure
from hdet.replicas.launch import LocalProcesses, ReplicaError

__all__ = ["complete", "kept_processes"]


class _OfReplicas(Protocol):
    @property
    def replicas(self) -> int:
        """How many processes it takes."""

    def __hash__(self) -> int: ...


_Run = TypeVar("_Run", bound=_OfReplicas)


def complete(
    planned: Callable[[], Sequence[_Run]],
    done: KeptRows[_Run],
    work: Callable[[_Run], Row],
    *,
    cores: int,
    deadline: float,
    say: Say,
    told: Callable[[Row], str],
) -> None:
    """Do whatever the plan still lacks, in its order, a core for each replica, until ``deadline``.

    ``planned`` is asked anew after every result, since some runs follow from others; ``told`` puts a row
    into words.
    """
    started: set[_Run] = set()
    pending: dict[Future[Row], _Run] = {}
    with ThreadPoolExecutor(cores) as threads:
        while True:
            runs = planned()
            todo = (one for one in runs if one not in started and one not in done.finished)
            free = cores - sum(one.replicas for one in pending.values())
            while time.monotonic() < deadline and (one := next(todo, None)) is not None:
                # One that needs more cores than there are runs by itself.
                if pending and one.replicas > free:
                    break
                free -= one.replicas
                started.add(one)
                pending[threads.submit(work, one)] = one
            if not pending:
                return
            for future in wait(pending, return_when=FIRST_COMPLETED).done:
                del pending[future]
                row = future.result()
                done.add(row)
                say(f"{sum(one in done.finished for one in runs)} of {len(runs)}: {told(row)}")


@contextmanager
def kept_processes(
    execute: Callable[[int, Any], Row | None], timeout: float
) -> Iterator[Callable[[Any], Row]]:
    """What does a run, on processes that are kept for the next one of as many replicas.

    To import torch is what costs. Each run is bounded, and one that fails or takes too long is a row too.

    Args:
        execute: from a rank and a run to the row, on rank 0.
        timeout: of one run, in seconds.
    """
    idle: defaultdict[int, list[LocalProcesses]] = defaultdict(list)
    lock = Lock()

    def work(one: Any) -> Row:
        with lock:
            pool = idle[one.replicas].pop() if idle[one.replicas] else LocalProcesses(one.replicas)
        try:
            row: Row = pool.run(execute, one, timeout=timeout)[0]
        except (ReplicaError, TimeoutError) as error:
            row = failure(one, error)
        with lock:
            idle[one.replicas].append(pool)
        return row

    with environment({"OMP_NUM_THREADS": "1"}):
        try:
            yield work
        finally:
            for pools in idle.values():
                for pool in pools:
                    pool.close()
