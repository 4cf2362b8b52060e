import pytest

from benchmarks.zoo import transfer
from benchmarks.zoo.data import MissingDataError


@pytest.fixture(autouse=True)
def little_pretraining(monkeypatch):
    monkeypatch.setattr(transfer, "PRETRAINING_STEPS", 2)


@pytest.fixture
def built():
    """Builds a task, or skips the test where its data are not here."""

    def build(task, seed, device="cpu"):
        try:
            return task.build(seed, device)
        except MissingDataError as error:
            pytest.skip(str(error))

    return build
