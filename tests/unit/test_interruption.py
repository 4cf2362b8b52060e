"""Told to stop, a run leaves in order."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

import hdet
from tests.unit.doors import Made


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_process_leaves_where_it_checks(number: int) -> None:
    made, saved = Made("AutoLR"), []
    before = signal.getsignal(number)

    def train() -> None:
        with hdet.Interruptible(made.door, save=lambda: saved.append(made.door.steps)) as run:
            for step in range(100_000):
                made.train(1)
                if step == 4:
                    os.kill(os.getpid(), number)
                    assert not saved, "nothing happens within the handler"
                run.check()

    with pytest.raises(SystemExit) as left:
        train()
    assert left.value.code == 128 + number
    assert saved == [made.door.steps]
    assert made.door.steps >= 5
    assert signal.getsignal(number) is before


def test_the_same_signal_again_acts_at_once() -> None:
    made = Made("AutoLR")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in the background

    def train() -> None:
        with hdet.Interruptible(made.door):
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                made.train(1)

    try:
        with pytest.raises(KeyboardInterrupt):
            train()
    finally:
        signal.signal(signal.SIGINT, before)
    assert made.door.steps == 1


def test_a_signal_that_nobody_asked_about_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with hdet.Interruptible(Made("AutoLR").door):
        os.kill(os.getpid(), signal.SIGTERM)
    assert "signal 15 came in the last steps: the run is over" in caplog.text


def test_what_has_no_replicas_is_refused() -> None:
    other: Any = Made("Guard").door
    with pytest.raises(TypeError, match=r"auto must be an AutoLR, .*got Guard"):
        hdet.Interruptible(other)
