"""A run that stops before its last step is told when its process ends, and only where that is news."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from hdet.engine.unfinished import Course
from tests import ROOT
from tests.unit.training import Training

SCRIPT = """
import torch, hdet
def run(steps, total=8, detach=False):
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    ensemble = hdet.Ensemble(optimizer, sync_every=2, total_steps=total)
    for _ in range(steps):
        optimizer.step()
        ensemble.step(1.0)
    if detach:
        ensemble.detach()
"""


def ends(*lines: str) -> str:
    """What a process says that ends with these lines, the runs that they made long gone."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT + "\n".join(lines)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**environment, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
    )
    return done.stderr


def test_a_run_that_stopped_early_is_told_at_the_end_of_the_process() -> None:
    said = ends("run(8); run(3)").splitlines()
    assert len(said) == 1
    assert said[0].startswith("Ensemble: 3 of 8 steps were counted: the schedule has not come to its end")


def test_where_it_is_no_news_nothing_is_told() -> None:
    assert ends("run(3); run(8); run(0); run(3, total=None)") == "", "of the one that stepped last"
    assert "were counted" not in ends("run(3); raise KeyError"), "a traceback says it"


def test_what_is_said_of_a_course() -> None:
    course = Course("Here")
    assert course.said() == ""
    before = Course.last
    try:
        course.speaks = False
        course.at(3, 8)
        assert course.said() == "", "another rank speaks"
        course.speaks = True
        course.at(3, 8)
        assert course.said().startswith("Here: 3 of 8 steps")
        course.speaks = True
        course.at(8, 8)
        assert course.said() == ""
        course.speaks = True
        course.at(4, 8)
        course.close()
        assert course.said() == ""
    finally:
        Course.last = before


def test_weights_handed_over_before_the_end_are_told_at_once(caplog: pytest.LogCaptureFixture) -> None:
    run = Training().run(60)
    run.auto.finish_()
    said = [(r.levelno, r.getMessage()) for r in caplog.records if "steps were counted" in r.getMessage()]
    assert len(said) == 1
    assert said[0][0] == logging.WARNING
    assert said[0][1].startswith("AutoLR: 60 of 200 steps were counted")
