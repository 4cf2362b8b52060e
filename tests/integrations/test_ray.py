"""Ray Train on two CPU workers: the example runs, and goes on from its checkpoint as the unbroken run."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

ray = pytest.importorskip("ray", reason="Ray is not installed")
pytest.importorskip("ray.train.torch", reason="Ray Train is not installed")

EXAMPLE = ROOT / "examples" / "ray_train.py"
pytestmark = [
    pytest.mark.timeout(500),  # a cluster starts, and two workers import torch, twice
    *(
        pytest.mark.filterwarnings(f"ignore::{kind}Warning")
        for kind in ("Resource", "Deprecation", "Future", "User")
    ),
]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    yield
    ray.shutdown()


def test_it_goes_on_from_its_checkpoint(cluster: None, tmp_path: Path) -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 80
    fit: Any = runpy.run_path(str(EXAMPLE), run_name="ray_train_example")["fit"]
    unbroken = fit(str(tmp_path / "unbroken"))
    half = next(kept for kept, told in unbroken.best_checkpoints if told["step"] == 72)
    resumed = fit(str(tmp_path / "resumed"), half)
    assert resumed.metrics == unbroken.metrics
    assert unbroken.metrics["step"] == 144
    assert unbroken.metrics["lr"] == 0.0
    assert unbroken.metrics["loss"] < 0.05
