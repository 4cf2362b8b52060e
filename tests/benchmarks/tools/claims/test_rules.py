"""Every rule by which a claim is judged reaches each of its verdicts, on made-up results."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.tools.claims import judges
from benchmarks.tools.claims.rules import Difference, Verdict, asserted, refuted, runs_of, untested
from benchmarks.tools.claims.table import CLAIMS
from tests.benchmarks.tools.claims import cases_own, cases_paper, cases_studies
from tests.made_up import COLD, FULL, HIGH, LOW, NO_AUTO, a_table, regret

HOLDS, PARTLY, NOT_HERE, UNTESTED = Verdict
CASES = cases_paper.CASES | cases_own.CASES | cases_studies.CASES


@pytest.mark.parametrize("judge", CASES, ids=lambda judge: judge.__name__)
def test_a_rule_reaches_its_verdicts(judge: Any) -> None:
    for results, verdict in CASES[judge]:
        named = results if isinstance(results, dict) else {str(k): one for k, one in enumerate(results)}
        assert judge(named)[1] is verdict


def test_every_rule_is_tried_both_ways_and_judges_a_claim() -> None:
    rules = {getattr(room, name) for room in judges.ROOMS for name in room.__all__}
    assert rules == CASES.keys()
    assert rules <= {claim.judge for claim in CLAIMS}
    for rule, cases in CASES.items():
        assert {HOLDS, NOT_HERE} <= {verdict for _, verdict in cases}, rule
        assert rule.__doc__, "the docstring is the rule"


def test_claims_without_a_number_have_their_verdict() -> None:
    assert [judge("why")({}) for judge in (asserted, refuted, untested)] == [
        ("why", HOLDS),
        ("why", NOT_HERE),
        ("why", UNTESTED),
    ]


def test_a_difference_is_told_by_its_whole_interval() -> None:
    for values, below, above in [
        ([-1.0, -1.1, -0.9], True, False),
        ([1.0, 1.1, 0.9], False, True),
        ([-1.0, 1.0, -0.5], False, False),
        ([-1.0], None, None),
        ([float("inf"), 0.0], False, True),
        ([float("inf"), -float("inf")], None, None),
    ]:
        found = Difference.of(values)
        assert found is not None
        assert (found.below, found.above) == (below, above)


def test_differences_are_taken_seed_by_seed() -> None:
    """Seeds of the made-up table differ far more than its lines, and yet a small difference is seen."""
    text, verdict = judges.paper.auto_lr_contributes({"": a_table(paper_train={FULL: -0.001})})
    assert verdict is HOLDS
    assert "−0.0010" in text


def test_what_was_measured_is_said() -> None:
    crashed = a_table(crash_crashes={HIGH: 3, FULL: 1, NO_AUTO: 2, COLD: 4})
    text, _ = judges.paper.stable_where_plain_crashes({"": crashed})
    assert text == "feed at 0.1: plain 3, full 1 of 4 (w/o auto-LR 2, w/o warm init 4)"
    text, _ = judges.rates.ahead_of_peers({"": regret(behind=2)})
    assert text == "2 cores of Cpu: ahead in 7 of 9 comparisons"
    text, _ = judges.paper.averaging_generalises({"": a_table(), " ": a_table("charlm")})
    assert text == "held-out loss: feed +0.0000; charlm +0.0000"


def test_a_difference_that_is_not_told_is_bounded() -> None:
    studies = cases_studies.reassigned(("never reassigned", 0.01, 0.02), ("never reassigned", 0.01, 0.005))
    text, _ = judges.studies.reassignment_is_critical({"": studies})
    assert text == (
        "feed at 0.0009: no difference larger than 3.04 %; feed at 0.0009: +1.00 (+0.50 to +1.51) %"
    )


def test_a_baseline_of_the_table_is_a_run_of_the_sweep() -> None:
    result = a_table(paper_train={LOW: 0.5})
    assert [run["train"] for run in runs_of(result, "paper", LOW).values()] == [1.5, 1.6, 1.7, 1.8]
    assert [run["train"] for run in runs_of(result, "paper", HIGH).values()] == [1.0, 1.1, 1.2, 1.3]
