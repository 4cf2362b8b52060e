"""One pool of real gloo processes for the whole session; every run on it is bounded."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from hdet.replicas.launch import LocalProcesses

os.environ.setdefault("OMP_NUM_THREADS", "1")
# The same examples on every machine, however slow it is.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(scope="session")
def ranks() -> Iterator[LocalProcesses]:
    with LocalProcesses(4) as pool:
        yield pool
