"""When training goes back to the best weights, or to the beginning."""

from __future__ import annotations

import logging
from copy import deepcopy

import pytest
import torch

from tests.unit.training import Overfitting

STEPS = 1500


def test_with_time_left_a_slower_search_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "hdet"):
        run = Overfitting(total_steps=STEPS)
        start = [p.detach().clone() for p in run.model.parameters()]
        while not run.restarts and run.auto.steps < STEPS:
            run.run(run.auto.steps + 1)
        assert all(map(torch.equal, run.model.parameters(), start)), "the weights it began with"
        assert not any(run.optimizer.state.values()), "and no state"
        anew = run.auto.steps
        run.run(STEPS)
    assert "from the beginning, below a third of the learning rate" in caplog.text
    peak = max(r.hyperparameters[0].base_after for r in run.records if r.step < anew)
    assert max(r.hyperparameters[0].base_after for r in run.records if r.step > anew) < peak / 2
    once = Overfitting(total_steps=STEPS, patience=None).run(STEPS)
    run.auto.finish_()
    once.auto.finish_()
    assert run.truly() < once.truly()


def test_it_begins_anew_twice_at_most() -> None:
    run = Overfitting().run(8000)
    assert run.auto.finished
    assert len(run.restarts) == 2


def test_not_without_time() -> None:
    assert not Overfitting(total_steps=130).run(130).restarts


def test_a_run_that_is_resumed_after_it_began_anew_is_the_same() -> None:
    whole = Overfitting(total_steps=STEPS).run(1200)
    broken = Overfitting(total_steps=STEPS).run(whole.restarts[0].step + 45)
    state = deepcopy((broken.model.state_dict(), broken.optimizer.state_dict(), broken.auto.state_dict()))
    again = Overfitting(total_steps=STEPS)
    again.model.load_state_dict(state[0])
    again.optimizer.load_state_dict(state[1])
    again.auto.load_state_dict(state[2])
    again.run(1200)
    assert all(map(torch.equal, again.model.parameters(), whole.model.parameters()))
    assert again.records[-1].step == whole.records[-1].step
    assert len(again.restarts) == len(whole.restarts) - 1
