"""One pool of real gloo processes for the whole session; every run on it is bounded."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from hdet.replicas.launch import LocalProcesses

os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def ranks() -> Iterator[LocalProcesses]:
    with LocalProcesses(4) as pool:
        yield pool
