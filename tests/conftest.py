"""One pool of real gloo processes for the whole session, every run on it bounded; and one seed for a test."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

from hdet.replicas.launch import LocalProcesses

os.environ.setdefault("OMP_NUM_THREADS", "1")
# The same examples on every machine, however slow it is. Hypothesis takes constants from all modules of the
# project that are loaded: what fails in the whole run alone is found again by collecting it all (-k NAME).
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")
#: Hypothesis makes an example that fails smaller for up to five minutes; a shorter limit would hide it.
SHRINKING_SECONDS = 420


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if getattr(getattr(item, "obj", None), "is_hypothesis_test", False):
            item.add_marker(pytest.mark.timeout(SHRINKING_SECONDS))


@pytest.fixture(scope="session")
def ranks() -> Iterator[LocalProcesses]:
    with LocalProcesses(4) as pool:
        yield pool


@pytest.fixture
def same_seed() -> None:
    """Probes take their random state from the seed of the moment."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def same_precision() -> Iterator[None]:
    """Benchmarks let products of matrices be less exact; the runs that are recorded would end elsewhere."""
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(precision)


@pytest.fixture(autouse=True)
def same_log_level() -> Iterator[None]:
    """Benchmarks silence the package in the process that they run in; those that fixtures of whole modules
    run have done so before this begins."""
    yield
    logging.getLogger("hdet").setLevel(logging.NOTSET)
