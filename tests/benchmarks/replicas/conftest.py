"""The task of the benchmark of replicas, made small."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from benchmarks.replicas import command as replicas
from benchmarks.replicas import runs as replicas_runs


@pytest.fixture(scope="module")
def small() -> Iterator[None]:
    """The runs' own task, evaluated on less; in this process."""
    whole = replicas_runs._workload("cpu")
    less = replace(whole, held_out=whole.held_out[:1])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replicas_runs, "_workload", lambda device: less)
        patch.setattr(replicas, "workers", lambda *_: ThreadPoolExecutor(1))
        yield
