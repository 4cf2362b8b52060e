"""The latest that is as good as the best: what is worse is never kept, and drift leads nowhere."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hdet.autolr.choice import Candidate, Choice, Kind, mean_of, standard_error

BASE = (3.0, 5.0)

# Whole numbers: their sums, differences and multiples of two are exact, so that ties stay ties.
runs = st.integers(1, 5).flatmap(
    lambda batches: st.lists(
        st.tuples(*[st.integers(-8, 8).map(float)] * batches),
        min_size=1,
        max_size=12,
    )
)


def means(losses: Sequence[Sequence[float]]) -> list[Candidate]:
    return [Candidate(step, "mean", tuple(row)) for step, row in enumerate(losses)]


def with_an_end(losses: Sequence[Sequence[float]]) -> list[Candidate]:
    *others, last = means(losses)
    return [*others, Candidate(last.step, "end", last.losses)]


def after(candidates: Sequence[Candidate], choice: Choice | None = None) -> Choice:
    choice = choice or Choice()
    for candidate in candidates:
        choice, _ = choice.offered(candidate)
    return choice


def steps_of(choice: Choice) -> tuple[int, int, int, int]:
    assert choice.lowest is not None
    assert choice.kept is not None
    return choice.lowest.step, choice.kept.step, choice.improved_at, choice.behind


def worse_by(errors: float, step: int = 1, kind: Kind = "mean") -> Candidate:
    """Than BASE, by so many standard errors of the difference."""
    return Candidate(step, kind, (BASE[0] + errors - 1, BASE[1] + errors + 1))


def first() -> Choice:
    return after([Candidate(0, "mean", BASE)])


# ---------------------------------------------------------------------- what is kept


@given(runs)
def test_the_latest_within_its_tolerance_of_the_lowest_is_kept(losses: list[tuple[float, ...]]) -> None:
    candidates = with_an_end(losses)
    assume(len({round(math.fsum(c.losses), 9) for c in candidates}) == len(candidates))  # no ties
    choice = after(candidates)
    lowest = min(candidates, key=lambda c: math.fsum(c.losses))
    assert choice.lowest == lowest
    gained = candidates[0].cost - lowest.cost
    as_good = [c for c in candidates[lowest.step :] if c.cost - lowest.cost <= 0.002 * gained]
    assert choice.kept == as_good[-1]


@given(runs)
def test_keeping_is_said(losses: list[tuple[float, ...]]) -> None:
    choice = Choice()
    for candidate in means(losses):
        choice, keep = choice.offered(candidate)
        assert keep == (choice.kept is candidate)


@pytest.mark.parametrize("kind", ["mean", "iterate", "end"])
@pytest.mark.parametrize(
    ("given_back", "keeps"), [(0.0, True), (0.0019, True), (0.0021, False), (-0.1, True)]
)
def test_next_to_nothing_of_what_was_gained_may_be_given_back(
    kind: Kind, given_back: float, keeps: bool
) -> None:
    """However much the batches disagree, and whether or not it is the end of the run."""
    began, best = Candidate(0, "start", (2.0, 2.0, 2.0)), Candidate(1, "mean", (1.0, 1.0, 1.0))
    losses = (1.0 + given_back + 0.5, 1.0 + given_back - 0.5, 1.0 + given_back)
    choice, keep = after([began, best]).offered(Candidate(2, kind, losses))
    assert keep is keeps
    assert choice.behind == 0, "it is not clearly worse"


def test_weights_that_are_worse_than_the_start_are_never_kept() -> None:
    """Two small batches that disagree make any standard error large."""
    candidates = [Candidate(0, "start", (0.703, 0.703)), Candidate(10, "mean", (0.72, 0.70))]
    choice = after([*candidates, Candidate(20, "end", (1.2, 0.566))])
    assert choice.kept == candidates[0]


def test_drift_cannot_carry_it_away() -> None:
    above = first().kept
    assert above is not None
    began = Candidate(0, "start", tuple(loss + 100.0 for loss in above.losses))
    choice = after([worse_by(0.07 * step, step) for step in range(1, 100)], after([above], after([began])))
    assert steps_of(choice) == (0, 2, 0, 85)


@pytest.mark.parametrize(
    ("scores", "kept"),
    [
        ((0.75, 1.0, 1.0, 1.0), 2),  # one error, and 6 % of the highest
        ((0.95, 1.0, 1.0, 1.0), 3),  # one error
        ((0.98, 0.98, 1.0, 1.0), 2),  # more than one error
        ((1.0, 1.0, 1.0, 1.0), 3),  # as high
    ],
)
def test_by_a_metric_the_latest_within_its_error_of_the_highest_is_kept(
    scores: tuple[float, ...], kept: int
) -> None:
    """Whatever the losses are; so that one sample in a hundred does not choose, and two batches do not say
    that anything is as good."""
    rows = [(0.1, 0.2, 0.1, 0.2), (0.7, 0.8, 0.9, 0.8), (1.0, 1.0, 1.0, 1.0), scores]
    choice = after([Candidate(k, "mean", (float(k),) * 4, scores=row) for k, row in enumerate(rows)])
    assert choice.kept is not None
    assert choice.kept.step == kept
    assert Choice.from_dict(asdict(choice)) == choice
    merged = choice.of_fewer(2, 1, batches=2)
    assert merged is not None
    assert merged.kept is not None
    assert merged.kept.scores == pytest.approx(
        [(a + b) / 2 for a, b in zip(rows[kept], rows[kept][2:], strict=False)]
    )


def test_one_sample_chooses_nothing() -> None:
    """The latest is kept, and nothing counts as learnt or as lost."""
    candidates = [Candidate(k, "mean", (loss,), decides=False) for k, loss in enumerate((1.0, 0.1, 5.0))]
    choice = after(candidates)
    assert choice.kept == candidates[-1]
    assert not choice.learnt
    assert not after(candidates[:2]).learnt
    assert choice.behind == 0
    assert after([Candidate(3, "mean", (math.nan,), decides=False)], choice).kept == candidates[-1]


def test_one_batch_has_no_error_and_the_lowest_wins() -> None:
    choice = after(means([(1.0,), (1.1,), (0.9,), (0.9,), (0.95,)]))
    assert steps_of(choice) == (2, 3, 2, 1)


def test_behind_counts_what_is_clearly_worse_in_a_row() -> None:
    choice = after([worse_by(3.0, step) for step in (1, 2, 3)], first())
    assert choice.behind == 3
    assert after([worse_by(0.5, 4)], choice).behind == 0


def test_learnt_is_what_noise_does_not_explain() -> None:
    began = Candidate(0, "start", (2.0, 2.0, 2.0, 2.0))
    assert not Choice().learnt
    assert not after([began]).learnt
    assert not after([began, Candidate(1, "mean", (1.9, 2.1, 1.8, 2.0))]).learnt
    assert after([began, Candidate(1, "mean", (1.8, 1.9, 1.8, 1.85))]).learnt


# ---------------------------------------------------------------------- invariance


@given(runs, st.integers(-100, 100), st.integers(-20, 20))
def test_a_constant_and_a_factor_change_nothing(
    losses: list[tuple[float, ...]], shift: int, power: int
) -> None:
    changed = [[(loss + shift) * 2.0**power for loss in row] for row in losses]
    assert steps_of(after(with_an_end(changed))) == steps_of(after(with_an_end(losses)))


@given(runs, st.randoms(use_true_random=False))
def test_the_order_of_the_batches_does_not_matter(losses: list[tuple[float, ...]], random: object) -> None:
    order = list(range(len(losses[0])))
    random.shuffle(order)  # type: ignore[attr-defined]
    turned = [[row[k] for k in order] for row in losses]
    before, now = after(means(losses)), after(means(turned))
    assert before.lowest is not None
    assert now.lowest is not None
    assert now.lowest.step == before.lowest.step


# ---------------------------------------------------------------------- improvement


def test_small_improvements_add_up() -> None:
    # Against the last improvement, each is 0.6 and then 1.2 standard errors better.
    noise = [0, 1, 1, 0, 0, 1, 1]
    candidates = means([(-0.6 * k + s, -0.6 * k - s) for k, s in enumerate(noise)])
    choice, improved = Choice(), []
    for candidate in candidates:
        choice, _ = choice.offered(candidate)
        improved.append(choice.improved_at)
    assert improved == [0, 0, 2, 2, 4, 4, 6]


def test_a_run_that_gets_better_improves_to_the_end() -> None:
    choice = after(means([(4.0 - k, 5.0 - 1.1 * k, 6.0 - 0.9 * k) for k in range(20)]))
    assert steps_of(choice) == (19, 19, 19, 0)


@given(runs)
def test_the_improvements_lie_one_after_the_other(losses: list[tuple[float, ...]]) -> None:
    choice, improved = Choice(), []
    for candidate in means(losses):
        choice, _ = choice.offered(candidate)
        if choice.improved is candidate:
            improved.append(candidate)
    assert all(b.cost < a.cost for a, b in pairwise(improved))
    assert improved[-1].step == choice.improved_at


def test_nothing_has_improved_before_anything_was_seen() -> None:
    assert Choice().improved_at == 0
    assert Choice().kept is None


# ---------------------------------------------------------------------- what is not finite

BROKEN = [(math.nan, 1.0), (1.0, math.inf), (-math.inf, 1.0), (math.inf, -math.inf), (math.nan, math.nan)]


@pytest.mark.parametrize("losses", BROKEN)
def test_what_is_not_finite_is_never_kept(losses: tuple[float, ...]) -> None:
    broken = Candidate(1, "end", losses)
    assert broken.cost == math.inf
    before = first()
    choice, keep = before.offered(broken)
    assert not keep
    assert (choice.lowest, choice.kept, choice.improved) == (before.lowest, before.kept, before.improved)
    assert choice.behind == 1


@pytest.mark.parametrize("losses", BROKEN)
def test_the_first_finite_one_after_others_is_kept(losses: tuple[float, ...]) -> None:
    choice, keep = Choice().offered(Candidate(1, "mean", losses))
    assert not keep
    assert choice.kept is None
    choice, keep = choice.offered(Candidate(2, "mean", BASE))
    assert keep
    assert choice.kept is choice.lowest is choice.improved is not None


def test_the_first_finite_one_is_behind_nothing() -> None:
    assert after([Candidate(1, "mean", (math.nan, 1.0)), Candidate(2, "mean", BASE)]).behind == 0


def test_an_explosion_has_an_error_although_its_square_is_not_finite() -> None:
    assert standard_error((0.0, 1e200)) == pytest.approx(0.5e200)
    choice, keep = first().offered(Candidate(1, "mean", (1e200, 2e200)))
    assert not keep
    assert choice.behind == 1


def test_losses_whose_sum_is_not_finite_are_worse_not_an_error() -> None:
    assert not first().offered(Candidate(1, "mean", (1.7e308, 1.7e308)))[1]


# ---------------------------------------------------------------------- mean and error


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=9))
def test_mean_and_error_are_the_textbook_ones(values: list[float]) -> None:
    assert mean_of(values) == pytest.approx(statistics.fmean(values), abs=1e-9)
    expected = statistics.stdev(values) / math.sqrt(len(values))
    assert standard_error(values) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_mean_and_error_of_one_and_of_none() -> None:
    assert (mean_of([2.0]), standard_error([2.0])) == (2.0, 0.0)
    assert math.isnan(mean_of([]))
    assert Candidate(0, "mean", ()).cost == math.inf


def test_candidates_measured_on_unlike_batches_are_not_compared() -> None:
    with pytest.raises(ValueError, match="zip"):
        first().offered(Candidate(1, "mean", (1.0, 2.0, 3.0)))
