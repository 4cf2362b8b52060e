"""The sentences that a report begins with."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from hdet.autolr.best import Incumbent
from hdet.autolr.rule import DECAYS
from hdet.report.verdict import facts_of, number, sentence
from tests.browser.histories import nothing_finite, opening, rollback, sync, whole
from tests.unit.training import Training


def test_a_whole_run_in_sentences() -> None:
    assert sentence(facts_of(whole())) == " ".join(
        [
            "Found a learning rate of 0.0084, the best probably between 0.001 and 0.05, weight decay 0.2.",
            "The held-out loss went from 2.6 to 0.494; its lowest was 0.484, at step 750.",
            "finish_() returned the window average at step 700: estimated loss 0.51 ± 0.012.",
            "It rolled a window back once (step 100).",
            "Ended at step 800 of 2,000, because the held-out loss had stopped falling.",
            "Probing, averaging and waiting for one another took 12 % of the time.",
        ]
    )


def test_all_setbacks_are_told_in_words() -> None:
    lines = [opening(), *(sync(i) for i in range(30))]
    for i, text in (
        (10, "from the beginning, x"),
        (20, "from the beginning, x"),
        (25, "back to those weights, x"),
    ):
        lines[i]["events"] = [f"nothing better since step 3: {text}"]
    lines[15] = rollback(14)
    assert (
        "It rolled a window back once (step 150), went back to the best weights once (step 250) and "
        "restarted from the beginning twice (steps 100, 200)."
    ) in sentence(facts_of(lines))
    assert "No rollback, no restart." in sentence(facts_of([sync(0)]))


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize(("steps", "restart"), [(40, None), (120, None), (200, None), (115, 7), (200, 7)])
def test_the_rate_is_that_of_auto_best(
    steps: int, restart: int | None, finished: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = Training(history=tmp_path / "run.jsonl")
    told = property(lambda self: len(training.records) == restart and not self._restarts)
    monkeypatch.setattr(Incumbent, "behind", told)
    monkeypatch.setattr(Incumbent, "may_restart", lambda *_: True)
    training.run(steps)
    if finished:
        training.auto.finish_()
    best = training.auto.best
    facts = facts_of([json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()])
    assert facts.rate == best.rate
    at = next((r for r in training.records if r.step == best.step), None)
    if at is not None and at.horizon[0].why != DECAYS:
        assert best.rate == at.hyperparameters[0].base_before, "not the last one tried"
    assert len(facts.restarts) == (restart is not None)


def test_the_rate_is_that_of_the_window_whose_weights_are_kept() -> None:
    """Not the last one tried: later windows were worse."""
    lines = [opening(), *(sync(i) for i in range(5))]
    for line, loss, rate in zip(lines[1:], (3, 2, 1, 4, 5), (1e-3, 2e-3, 3e-3, 4e-3, 5e-3), strict=True):
        line["horizon"][0] |= {"loss_mean": float(loss)}
        line["hyperparameters"][0] |= {"base_before": rate}
    assert facts_of(lines).rate == 3e-3
    decays = sync(5)
    decays["horizon"][0] |= {"loss_mean": 0.5, "why": "the schedule decays"}
    decays["hyperparameters"][0] |= {"base_before": 1e-6}
    assert facts_of([*lines, decays]).rate == 5e-3, "before the decay"


def test_searching_decaying_and_ended_are_told_apart() -> None:
    lines = [opening(), *(sync(i) for i in range(20))]
    assert sentence(facts_of(lines)).startswith("Searching: step 200 of 2,000, the learning rate is")
    decays = sync(20)
    decays["horizon"][0]["why"] = "the schedule decays"
    assert sentence(facts_of([*lines, decays])).startswith("Decaying: step 210 of 2,000")
    assert sentence(facts_of([*lines, decays, {"kind": "end", "step": 210}])).startswith(
        "Found a learning rate"
    )
    assert not re.search("Found|Ended", sentence(facts_of(lines)))


def test_a_rate_on_a_schedule_is_told_by_the_schedule() -> None:
    """At its end OneCycle's own rate is next to nothing: what was found is the factor on it."""
    line = sync(0, horizon=[], plain={"lr/0": 0.98 * sync(0)["hyperparameters"][0]["base_after"]})
    told = sentence(facts_of([line, {"kind": "end", "step": 10}]))
    assert told.startswith("The learning rate ended at 1.02 times the given schedule's, weight decay")


def test_a_training_loss_is_called_one() -> None:
    alone = sync(0, horizon=[], held_out=[], held_out_mean=None)
    assert "The training loss went from" in sentence(facts_of([alone]))
    assert "The held-out loss went from" in sentence(facts_of([sync(0, horizon=[])]))


def test_what_is_not_known_is_not_said() -> None:
    assert sentence(facts_of([])) == sentence(facts_of([opening()])) == "Nothing has been measured yet."
    timeless = [{**sync(i), "seconds": None} for i in range(20)]
    assert "of the time" not in sentence(facts_of(timeless))
    assert "No loss was finite" in sentence(facts_of(nothing_finite()[1:6]))


def test_sessions_in_one_file_add_up() -> None:
    session = [opening(), sync(0), sync(1)]
    assert facts_of(session * 2).cost == facts_of(session).cost
    assert not facts_of([*session, {"kind": "end", "step": 20}, *session]).ended


def test_numbers_are_those_of_the_terminal() -> None:
    for value in (0.0138568, 0.00067261, 0.00042, 0.5, 12.0):
        assert number(value, 2) == f"{value:.2g}"
