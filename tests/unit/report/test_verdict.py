"""The sentence that a report begins with."""

from __future__ import annotations

from hdet.report.verdict import facts_of, sentence
from tests.browser.histories import nothing_finite, opening, rollback, sync, whole


def test_a_whole_run_in_a_sentence() -> None:
    assert sentence(facts_of(whole())) == (
        "Found a learning rate of 0.0084, weight decay 0.2; the loss went from 2.6 to 0.494; kept the mean "
        "of step 700, estimated loss 0.51 ± 0.012; 1 rollback, recovered; ended at step 800 of 2,000 because "
        "the held-out loss had stopped falling; syncs took 12 % of the time."
    )


def test_how_sure_the_rate_is_is_said() -> None:
    lines = whole()
    handed = next(line for line in lines if line.get("kind") == "handed")
    handed["weights"]["rates"] = [0.0014, 0.0504]
    told = sentence(facts_of(lines))
    assert told.startswith(
        "Found a learning rate of 0.0084 (the best is probably between 0.001 and 0.05), weight"
    )
    handed["weights"]["rates"] = [None, None]
    assert sentence(facts_of(lines)).startswith("Found a learning rate of 0.0084, weight")


def test_a_rate_on_a_schedule_is_told_by_the_schedule() -> None:
    """At its end OneCycle's own rate is next to nothing: what was found is the factor on it."""
    told = sentence(
        facts_of([sync(0, horizon=[], plain={"lr/0": 0.98 * sync(0)["hyperparameters"][0]["base_after"]})])
    )
    assert told.startswith("Found a learning rate of 1.02 times the schedule's, weight decay")


def test_a_training_loss_is_called_one() -> None:
    alone = sync(0, horizon=[], held_out=[], held_out_mean=None)
    assert "; the training loss went from" in sentence(facts_of([alone]))
    assert "; the loss went from" in sentence(facts_of([sync(0, horizon=[])]))


def test_what_is_not_known_is_not_said() -> None:
    assert sentence(facts_of([])) == sentence(facts_of([opening()])) == "Nothing has been measured yet."
    timeless = [{**sync(i), "seconds": None} for i in range(20)]
    assert sentence(facts_of(timeless)).endswith("last seen at step 200.")
    assert "no loss was finite" in sentence(facts_of(nothing_finite()[1:6]))


def test_a_rollback_counts_as_recovered_once_the_loss_is_back() -> None:
    assert facts_of([sync(8), rollback(9)]).recovered == 0
    facts = facts_of([sync(8), rollback(9), *map(sync, range(10, 14)), rollback(14)])
    assert (facts.rollbacks, facts.recovered) == (2, 1)
    assert "2 rollbacks, 1 recovered" in sentence(facts)


def test_sessions_in_one_file_add_up() -> None:
    session = [opening(), sync(0), sync(1)]
    assert facts_of(session * 2).cost == facts_of(session).cost
    assert not facts_of([*session, {"kind": "end", "step": 20}, *session]).ended
