"""Many short runs at a time: the processes that do them, and who is given the next.

A plan is asked anew after every result, since what has been found decides what is worth running. Each result
is on disk before the next run starts (:mod:`benchmarks.rows`), so that all of it can be stopped.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from typing import TypeVar

import torch

from benchmarks.rows import KeptRows, Row, environment

__all__ = ["Say", "complete", "complete_as_given", "shared_gpu", "workers"]

Say = Callable[[str], None]
_Run = TypeVar("_Run", bound=Hashable)
_MPS = "nvidia-cuda-mps-control"


def complete(
    planned: Callable[[], Sequence[_Run]],
    done: KeptRows[_Run],
    pool: Executor,
    work: Callable[[_Run], Row],
    *,
    at_once: int,
    deadline: float,
    say: Say,
    told: Callable[[Row], str],
) -> None:
    """Have the pool do whatever the plan still lacks, in the plan's order, until ``deadline``.

    ``planned`` is asked anew after every result; ``told`` puts a row into words.
    """
    started: set[_Run] = set()
    pending: set[Future[Row]] = set()
    while True:
        runs = planned()
        todo = [one for one in runs if one not in started and one not in done.finished]
        if time.monotonic() < deadline:
            for one in todo[: at_once - len(pending)]:
                started.add(one)
                pending.add(pool.submit(work, one))
        if not pending:
            return
        ready, pending = wait(pending, return_when=FIRST_COMPLETED)
        for future in ready:
            row = future.result()
            done.add(row)
            finished = sum(one in done.finished for one in runs)
            say(f"{finished} of {len(runs)}: {told(row)}")


def complete_as_given(
    given: argparse.Namespace,
    planned: Callable[[], Sequence[_Run]],
    done: KeptRows[_Run],
    work: Callable[[_Run], Row],
    told: Callable[[Row], str],
) -> None:
    """The same on the device, in the processes and within the minutes that a command was given."""
    with workers(given.device, given.processes, print) as pool:
        complete(
            planned,
            done,
            pool,
            work,
            at_once=given.processes,
            deadline=time.monotonic() + 60 * given.minutes,
            say=lambda text: print(text, flush=True),
            told=told,
        )


def _nothing(device: str) -> None:
    """What a process needs is built by its first run."""


@contextmanager
def workers(
    device: str, processes: int, say: Say, prepare: Callable[[str], None] = _nothing
) -> Iterator[Executor]:
    """Processes of one thread each; on a GPU they share it at the same time, if they can.

    ``prepare`` is called with the device once in every process.
    """
    with ExitStack() as stack:
        stack.enter_context(environment({"OMP_NUM_THREADS": "1"}))
        if torch.device(device).type == "cuda":
            stack.enter_context(shared_gpu(say))
        pool = ProcessPoolExecutor(
            processes, multiprocessing.get_context("spawn"), initializer=prepare, initargs=(device,)
        )
        try:
            yield pool
        finally:
            pool.shutdown(cancel_futures=True)


@contextmanager
def shared_gpu(say: Say) -> Iterator[bool]:
    """Kernels of different processes overlap under NVIDIA's multi-process service; else they take turns.

    Yields whether the service runs.
    """
    kept = tempfile.TemporaryDirectory(prefix="hdet-mps-", ignore_cleanup_errors=True)
    with kept as folder, ExitStack() as stack:
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        with environment(places):
            trouble = _command([_MPS, "-d"])
            if not trouble:
                stack.callback(_command, [_MPS], "quit\n", environment={**os.environ})
                # The service may start and yet let nobody in: a process must have been there.
                trouble = _command([sys.executable, "-c", "import torch; torch.zeros(1, device='cuda')"])
        if trouble:
            stack.close()
            say(f"without the multi-process service: {trouble}")
        else:
            stack.enter_context(environment(places))
            say("with the multi-process service")
        yield not trouble


def _command(command: Sequence[str], given: str = "", environment: Mapping[str, str] | None = None) -> str:
    """Run it; empty if all went well, else what did not."""
    # A file, not a pipe: a daemon that holds on to a pipe would keep us waiting.
    with tempfile.TemporaryFile() as said:
        try:
            code = subprocess.run(
                command, input=given.encode(), stdout=said, stderr=said, timeout=90, env=environment
            ).returncode
        except (OSError, subprocess.SubprocessError) as error:
            return str(error)
        said.seek(0)
        last = said.read().decode(errors="replace").strip().splitlines()[-1:]
    return (last or [f"{command[0]} returned {code}"])[0] if code else ""
