"""The joint regression: its least squares, what it makes of the losses, and how far it moves and spreads."""

from __future__ import annotations

import json
import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hdet.loop.levels import levels, orthogonal, permuted
from hdet.published.softmax import ControlState, SoftmaxController
from hdet.tuning.regression import AxisState, RegressionController, RegressionState, fit
from tests import reference

Design = Callable[..., list[tuple[float, ...]]]


# ---------------------------------------------------------------------- least squares


@st.composite
def problems(draw: st.DrawFn, saturated: bool = False) -> tuple[list[list[float]], list[float]]:
    """Columns of unlike scales, off centre, unbalanced; as many rows as unknowns, or more."""
    k = draw(st.integers(1, 5))
    n = k + 1 + (0 if saturated else draw(st.integers(1, 8)))
    rng = random.Random(draw(st.integers(0, 10**9)))
    columns = []
    for _ in range(k):
        scale, centre = 10 ** draw(st.floats(-3, 3)), draw(st.floats(-5, 5))
        column = [scale * (centre + rng.gauss(0, 1)) for _ in range(n)]
        if draw(st.booleans()):  # two levels, one of them rare
            column = [scale * (1.0 if r == 0 else -1.0) + 0.1 * x for r, x in enumerate(column)]
        columns.append(column)
    return columns, [3 + rng.gauss(0, 0.5) for _ in range(n)]


@given(problems())
def test_fit_equals_the_twin(problem: tuple[list[list[float]], list[float]]) -> None:
    columns, losses = problem
    twin, found = reference.least_squares(columns, losses), fit(columns, losses)
    if twin is None:  # nearly collinear: what counts as singular is the fit's own affair
        return
    assert found is not None
    for i in range(len(columns)):
        deviation = math.sqrt(twin.variances[i])
        assert found.slopes[i] == pytest.approx(twin.slopes[i], rel=1e-5, abs=1e-5 * deviation)
        assert found.variances[i] == pytest.approx(twin.variances[i], rel=1e-4)
    assert found.residual == pytest.approx(twin.residual, rel=1e-5, abs=1e-10)
    assert found.freedom == twin.freedom == len(losses) - len(columns) - 1


@given(problems(saturated=True))
def test_as_many_replicas_as_unknowns_are_fitted_without_a_residual(
    problem: tuple[list[list[float]], list[float]],
) -> None:
    columns, losses = problem
    twin, found = reference.least_squares(columns, losses), fit(columns, losses)
    if twin is None:
        return
    assert found is not None
    assert found.freedom == 0
    assert found.residual < 1e-8
    assert found.slopes == pytest.approx(twin.slopes, rel=1e-4, abs=1e-9)


@given(st.integers(3, 10), st.integers(0, 10**9), st.floats(-3, 3), st.floats(-3, 3), st.floats(-3, 3))
def test_collinear_columns_are_not_fitted(n: int, seed: int, a: float, b: float, c: float) -> None:
    rng = random.Random(seed)
    x, y, losses = ([rng.gauss(0, 1) for _ in range(n)] for _ in range(3))
    mixture = [a * p + b * q + c for p, q in zip(x, y, strict=True)]
    assert fit([x, y, mixture], losses) is None
    assert fit([x, x], losses) is None
    assert fit([x, [-2 * p + 1 for p in x]], losses) is None


@pytest.mark.parametrize("value", [0.0, 1.0, -2.5, 0.1, 0.7, 1e-9, 1e9 / 3])
@pytest.mark.parametrize("n", [2, 3, 5, 7, 8, 12])
def test_a_constant_column_is_not_fitted(value: float, n: int) -> None:
    losses = [math.sin(r) for r in range(n)]
    assert fit([[value] * n], losses) is None
    assert fit([[value] * n, [float(r) for r in range(n)]], losses) is None


def test_too_few_rows_or_no_columns_are_not_fitted() -> None:
    assert fit([], [1.0, 2.0]) is None
    assert fit([(0.0,)], [1.0]) is None
    assert fit([()], []) is None
    assert fit([(-1.0, 1.0), (1.0, 2.0)], [1.0, 2.0]) is None


@settings(max_examples=60)
@given(
    st.integers(1, 4), st.integers(0, 5), st.integers(1, 7), st.integers(0, 10**9), st.floats(0, 0.95),
    st.floats(0, 2), st.floats(0, 2), st.booleans(),
)  # fmt: skip
def test_rounds_are_pooled_as_the_twin_pools_them(
    k: int, freedom: int, rounds: int, seed: int, memory: float, significance: float, more: float, turns: bool
) -> None:
    """Also where there are no residuals, and where the slope turns so clearly that the past is forgotten."""
    rng = random.Random(seed)
    n = k + 1 + freedom
    full_step = significance + more + 0.1
    controller = RegressionController(memory=memory, significance=significance, full_step=full_step)
    s = reference.JointSettings(memory, significance, full_step)
    state = controller.start([0.5] * k)
    fits = []
    wanted: list[list[float]] = [[] for _ in range(k)]
    for turn in range(rounds):
        effect = -0.9 if turns and turn == rounds - 1 else 0.3
        width = 10 ** rng.uniform(-1, 1)
        offsets = [tuple(width * rng.gauss(0.2, 1) for _ in range(n)) for _ in range(k)]
        losses = [rng.gauss(0, 0.1) + sum(effect * column[r] for column in offsets) for r in range(n)]
        if rng.random() < 0.2:
            losses[rng.randrange(n)] = rng.choice([math.nan, 50.0])
        twin = reference.least_squares(offsets, reference.heard(losses, fits, s))
        if twin is None or not any(map(math.isfinite, losses[1:])):
            return
        fits.append(twin)
        before = [axis.spread for axis in state.axes]
        decision = controller.update(state, losses=losses, offsets=offsets)
        state = decision.state
        if sum(map(math.isfinite, losses)) < 2:
            return
        for h, (slope, error, move) in enumerate(reference.joint(fits, s)):
            estimate = decision.estimates[h]
            wanted[h].append(before[h] * move)
            assert estimate.slope == pytest.approx(slope, rel=1e-5, abs=1e-7)
            assert estimate.error == pytest.approx(error, rel=1e-5, nan_ok=True)
            assert estimate.move == pytest.approx(
                reference.leashed(wanted[h], fits, h, 1.0), rel=1e-5, abs=1e-9
            )


def wandered(seed: int, rounds: int, effect: float, *, size: int = 8) -> list[float]:
    """Where a value is after each round, of which the loss falls by ``effect`` a unit, in noise of 1."""
    rng = random.Random(seed)
    controller = RegressionController()
    state, value, path = controller.start([0.7]), 0.0, []
    for k in range(1, rounds + 1):
        levels = orthogonal(size, ["x"], seed=seed, round=k)[0]
        offsets = [tuple(state.axes[0].spread * z for z in levels)]
        losses = [rng.gauss(0, 1) - effect * (value + x) for x in offsets[0]]
        decision = controller.update(state, losses=losses, offsets=offsets)
        state = decision.state
        value += decision.estimates[0].move
        path.append(value)
    return path


@pytest.mark.parametrize("size", [4, pytest.param(8, marks=pytest.mark.slow)])
def test_what_has_no_effect_does_not_wander(size: int) -> None:
    """Sixty syncs of noise led 7.6 away, and further the longer they lasted."""
    ends = [wandered(seed, 60, 0.0, size=size)[-1] for seed in range(200)]
    assert math.sqrt(statistics.fmean(end * end for end in ends)) < 2.0
    beyond = [seed for seed in range(200) if max(map(abs, wandered(seed, 60, 0.0, size=size))) > 1.4 + 1e-9]
    assert len(beyond) < 0.12 * 200, "three errors are passed by chance now and then in sixty looks"


def test_what_has_an_effect_is_not_held_back() -> None:
    """By one of its first errors a round: too little for any one round, and enough for all of them."""
    ends = [wandered(seed, 60, 0.5)[-1] for seed in range(50)]
    assert min(ends) > 10


def test_a_leash_is_saved() -> None:
    controller = RegressionController()
    state = controller.start([0.5])
    for k in range(1, 6):
        offsets = [tuple(0.5 * z for z in orthogonal(8, ["x"], seed=0, round=k)[0])]
        losses = [math.sin(7 * k + r) for r in range(8)]
        state = controller.update(state, losses=losses, offsets=offsets).state
    assert state.axes[0].information_since > 0
    assert RegressionState.from_rows(state.to_rows()) == state


# ---------------------------------------------------------------------- what is estimated, and how well

HALF_WIDTH, NOISE = 0.5, 0.2
EFFECTS = {"x1": 0.7, "x2": -0.3}


def dealt(design: Design, names: Sequence[str], round: int, *, size: int = 8) -> list[tuple[float, ...]]:
    rows = design(size, names, seed=0, round=round)
    return [tuple(HALF_WIDTH * level for level in row) for row in rows]


def losses_of(
    offsets: Sequence[Sequence[float]], effects: Sequence[float], noise: list[float]
) -> list[float]:
    return [2 + e + sum(g * x[r] for g, x in zip(effects, offsets, strict=True)) for r, e in enumerate(noise)]


@pytest.mark.parametrize("design", [orthogonal, permuted])
def test_two_hyperparameters_are_recovered_without_bias_and_with_honest_errors(design: Design) -> None:
    rounds = 1500
    rng = random.Random(1)
    controller = RegressionController(reach=1.0)
    slopes: list[list[float]] = [[], []]
    errors: list[list[float]] = [[], []]
    for k in range(1, rounds + 1):
        offsets = dealt(design, list(EFFECTS), k)
        losses = losses_of(offsets, list(EFFECTS.values()), [rng.gauss(0, NOISE) for _ in range(8)])
        decision = controller.update(controller.start([HALF_WIDTH] * 2), losses=losses, offsets=offsets)
        for h, estimate in enumerate(decision.estimates):
            slopes[h].append(estimate.slope)
            errors[h].append(estimate.error)
    for h, truth in enumerate(EFFECTS.values()):
        spread = statistics.stdev(slopes[h])
        assert abs(statistics.fmean(slopes[h]) - truth) < 3.5 * spread / math.sqrt(rounds)
        reported = math.sqrt(statistics.fmean(e * e for e in errors[h]))
        assert reported == pytest.approx(spread, rel=0.15)
        assert statistics.fmean(errors[h]) == pytest.approx(spread, rel=0.15)


def test_errors_are_honest_after_rounds_were_pooled_at_unlike_spreads() -> None:
    rng = random.Random(2)
    controller = RegressionController()
    slopes, errors = [], []
    for _ in range(300):
        state = controller.start([HALF_WIDTH])
        for k in range(1, 11):
            width = rng.choice([0.2, 0.5, 1.0])
            offsets = [tuple(width * z for z in orthogonal(8, ["x"], seed=0, round=k)[0])]
            losses = losses_of(offsets, [0.4], [rng.gauss(0, NOISE) for _ in range(8)])
            decision = controller.update(state, losses=losses, offsets=offsets)
            state = decision.state
        slopes.append(decision.estimates[0].slope)
        errors.append(decision.estimates[0].error)
    spread = statistics.stdev(slopes)
    assert abs(statistics.fmean(slopes) - 0.4) < 3.5 * spread / math.sqrt(300)
    assert math.sqrt(statistics.fmean(e * e for e in errors)) == pytest.approx(spread, rel=0.15)
    assert spread < NOISE / (HALF_WIDTH * math.sqrt(8)) * 0.9, "pooled, it is known better than by one round"


@pytest.mark.parametrize("design", [orthogonal, permuted])
def test_the_order_of_registration_changes_nothing(design: Design) -> None:
    rng = random.Random(3)
    names = ["x1", "x2", "x3"]
    truth = {"x1": 0.7, "x2": -0.3, "x3": 0.1}
    controller = RegressionController()
    orders = [names, names[::-1], ["x2", "x3", "x1"]]
    states = [controller.start([HALF_WIDTH] * 3) for _ in orders]
    for k in range(1, 9):
        noise = [rng.gauss(0, NOISE) for _ in range(8)]
        found = []
        for i, order in enumerate(orders):
            offsets = dealt(design, order, k)
            losses = losses_of(offsets, [truth[name] for name in order], noise)
            decision = controller.update(states[i], losses=losses, offsets=offsets)
            states[i] = decision.state
            found.append(dict(zip(order, decision.estimates, strict=True)))
        for other in found[1:]:
            for name in names:
                assert other[name].slope == pytest.approx(found[0][name].slope, rel=1e-9)
                assert other[name].error == pytest.approx(found[0][name].error, rel=1e-9)
                assert other[name].move == pytest.approx(found[0][name].move, rel=1e-9)


def test_orthogonal_designs_cost_nothing_and_permutations_do() -> None:
    """Variances in units of the noise, at one half-width: σ²/(N·w²) is the least there can be."""
    best = 1 / (8 * HALF_WIDTH**2)
    ladder = fit([[HALF_WIDTH * z for z in levels(8)]], [0.0] * 8)
    assert ladder is not None
    together = []
    for k in range(1, 101):
        names = [f"h{i}" for i in range(1 + k % 7)]  # up to N − 1 of them
        straight = fit(dealt(orthogonal, names, k), [0.0] * 8)
        assert straight is not None
        assert straight.variances == pytest.approx([best] * len(names), rel=1e-12)
        shuffled = fit(dealt(permuted, ["x1", "x2"], k), [0.0] * 8)
        assert shuffled is not None
        assert min(shuffled.variances) > 2 * best
        assert min(shuffled.variances) >= ladder.variances[0] * (1 - 1e-12)
        together.append(shuffled.variances[0])
    assert statistics.fmean(together) > 1.05 * ladder.variances[0], "chance correlation costs some more"


def test_what_one_hyperparameter_did_is_not_credited_to_another() -> None:
    """x1 is strong, x2 does nothing. In a single round of permutations a vote for each is misled; the
    regression is not, nor is a vote on an orthogonal design."""
    votes, marginals = [], []
    for k in range(1, 201):
        offsets = dealt(permuted, ["x1", "x2"], k)
        losses = losses_of(offsets, [5.0, 0.0], [0.0] * 8)
        joint, alone = fit(offsets, losses), fit(offsets[1:], losses)
        assert alone is not None
        if joint is not None:  # 8! permutations: two may be the same, or reversed
            assert joint.slopes == pytest.approx([5.0, 0.0], abs=1e-9)
        marginals.append(alone.slopes[0])
        votes.append(vote(losses, offsets[1]))
        offsets = dealt(orthogonal, ["x1", "x2"], k)
        losses = losses_of(offsets, [5.0, 0.0], [0.0] * 8)
        alone = fit(offsets[1:], losses)
        assert alone is not None
        assert alone.slopes[0] == pytest.approx(0.0, abs=1e-9)
        assert vote(losses, offsets[1]) == pytest.approx(0.0, abs=1e-9)
    assert statistics.median(map(abs, marginals)) > 1.0, "a fifth of the strong one's slope, and more"
    assert statistics.median(map(abs, votes)) > 0.1 * HALF_WIDTH
    deviation = statistics.stdev(marginals)
    assert abs(statistics.fmean(marginals)) < 3.5 * deviation / math.sqrt(200), "on average it is right"


def vote(losses: Sequence[float], offsets: Sequence[float]) -> float:
    """Δ of Eq. 6, along the coordinate."""
    controller = SoftmaxController(temperature="auto", momentum=0.0)
    multipliers = [1 + x for x in offsets]
    return controller.update(ControlState(1.0), losses=losses, multipliers=multipliers).delta


def test_without_residuals_the_noise_shows_from_round_to_round() -> None:
    """Three hyperparameters on four replicas: nothing is left over, and still the errors are right."""
    rng = random.Random(5)
    effects = [0.5, -0.2, 0.0]
    controller = RegressionController(reach=1.0)
    covered, ratios = [], []
    for seed in range(150):
        state = controller.start([HALF_WIDTH] * 3)
        for k in range(1, 21):
            rows = orthogonal(4, ["a", "b", "c"], seed=seed, round=k)
            offsets = [tuple(HALF_WIDTH * z for z in row) for row in rows]
            losses = losses_of(offsets, effects, [rng.gauss(0, NOISE) for _ in range(4)])
            decision = controller.update(state, losses=losses, offsets=offsets)
            state = decision.state
            if k == 1:
                assert all(math.isnan(e.error) and e.move == 0 for e in decision.estimates)
                assert all(math.isfinite(e.slope) for e in decision.estimates)
                assert [axis.spread for axis in state.axes] == [HALF_WIDTH] * 3
        for estimate, truth in zip(decision.estimates, effects, strict=True):
            covered.append(abs(estimate.slope - truth) <= 2 * estimate.error)
            ratios.append((estimate.slope - truth) / estimate.error)
    assert 0.88 < statistics.fmean(covered) < 0.99
    assert abs(statistics.fmean(ratios)) < 0.2


# ---------------------------------------------------------------------- replicas without a loss


@pytest.mark.parametrize("lost", [math.nan, math.inf, -math.inf])
def test_a_replica_without_a_loss_speaks_against_its_values_and_is_named(lost: float) -> None:
    """To leave it out would be to forget the one thing that is known of its values."""
    column = (-0.5, 0.5, -0.5, 0.5, -0.5, 0.5, -0.5, 0.5)
    losses = [1.0, 1.01, 0.99, lost, 1.01, lost, 1.0, lost]
    controller = RegressionController()
    decision = controller.update(controller.start([0.5]), losses=losses, offsets=[column])
    assert decision.capped == (3, 5, 7)
    assert decision.why == ""
    assert decision.estimates[0].slope > 0
    assert decision.estimates[0].move < 0, "away from where replicas were lost"
    assert decision.state.axes[0].spread == pytest.approx(0.3), "which was too far out"


@pytest.mark.parametrize("worse", [3.0, 40.0, 1e30])
@pytest.mark.parametrize("many", [2, 3, 4])
def test_nothing_moves_to_where_most_replicas_blow_up(many: int, worse: float) -> None:
    rng = random.Random(3)
    column = (-0.5, 0.5, -0.5, 0.5, -0.5, 0.5, -0.5, 0.5)
    controller = RegressionController()
    state = controller.start([0.5])
    for _ in range(5):  # the noise is known, and small
        quiet = [1 + rng.gauss(0, 0.01) for _ in column]
        state = controller.update(state, losses=quiet, offsets=[column]).state
    bad = [r for r, x in enumerate(column) if x > 0][:many]
    losses = [worse if r in bad else 1 + rng.gauss(0, 0.01) for r in range(8)]
    decision = controller.update(state, losses=losses, offsets=[column])
    assert decision.estimates[0].move < 0
    assert set(decision.capped) <= set(bad)


@pytest.mark.parametrize("left", [1, 0])
def test_too_few_replicas_move_nothing_say_why_and_come_closer(left: int) -> None:
    offsets = [(-0.5, 0.5, -0.5, 0.5, -0.5, 0.5, -0.5, 0.5), (-0.5, 0.5, 0.5, -0.5, -0.5, 0.5, 0.5, -0.5)]
    controller = RegressionController()
    state = controller.start([0.5, 0.5])
    for _ in range(3):  # something is known already, and must not be lost
        losses = [1.0 + 0.5 * x + 0.01 * r for r, x in enumerate(offsets[0])]
        state = controller.update(state, losses=losses, offsets=offsets).state
    losses = [float(r) if r < left else math.nan for r in range(8)]
    decision = controller.update(state, losses=losses, offsets=offsets)
    for before, after in zip(state.axes, decision.state.axes, strict=True):
        assert after == replace(before, spread=pytest.approx(0.6 * before.spread))
    assert [e.move for e in decision.estimates] == [0.0, 0.0]
    assert all(math.isnan(e.slope) and math.isnan(e.error) for e in decision.estimates)
    assert decision.capped == tuple(range(left, 8))
    assert f"{left} replica" in decision.why


def test_where_nothing_is_explored_there_is_nothing_to_say() -> None:
    controller = RegressionController()
    decision = controller.update(controller.start([0.0]), losses=[1.0, 2.0], offsets=[(0.0, 0.0)])
    assert decision.why == ""
    assert decision.estimates[0].move == 0.0


def test_one_hyperparameter_at_its_bound_does_not_hide_the_others() -> None:
    """All replicas of the first stand at one value: it is left as it is, the second one is judged."""
    offsets = [(0.0,) * 4, (-0.5, 0.5, -0.5, 0.5)]
    controller = RegressionController()
    decision = controller.update(controller.start([0.5, 0.5]), losses=[1.0, 2.0, 1.1, 2.1], offsets=offsets)
    assert decision.estimates[0].move == 0.0
    assert decision.state.axes[0] == AxisState(0.5, 0.125, 2.0)
    assert decision.estimates[1].slope == pytest.approx(1.0)
    assert decision.estimates[1].move < 0


@example([1e308, 1e308, -1e308, 1.0], 1, 0)
@given(st.lists(st.floats(), min_size=2, max_size=8), st.integers(1, 3), st.integers(0, 99))
def test_nothing_breaks_it(losses: list[float], k: int, seed: int) -> None:
    rng = random.Random(seed)
    controller = RegressionController()
    state = controller.start([0.5] * k)
    offsets = [tuple(rng.choice([-0.5, 0.0, 0.5]) for _ in losses) for _ in range(k)]
    for _ in range(2):
        decision = controller.update(state, losses=losses, offsets=offsets)
        state = decision.state
        assert all(math.isfinite(e.move) and abs(e.move) <= 2.0 for e in decision.estimates)
        assert all(0.125 <= axis.spread <= 2.0 for axis in state.axes)
        assert {r for r, loss in enumerate(losses) if not math.isfinite(loss)} <= set(decision.capped)


# ---------------------------------------------------------------------- adaptive spread


def seen(controller: RegressionController, state: RegressionState, certainty: float) -> Any:
    """One round at the present spread whose slope is exactly so many standard errors from 0."""
    width = state.axes[0].spread
    column = tuple(width * z for z in (-1, -1, -1, -1, 1, 1, 1, 1))
    ripple = (1, -1, 1, -1, 1, -1, 1, -1)  # orthogonal to the column: all of the residual, noise² = 8/6
    slope = certainty / (width * math.sqrt(6))
    losses = [slope * x + e for x, e in zip(column, ripple, strict=True)]
    decision = controller.update(state, losses=losses, offsets=[column])
    estimate = decision.estimates[0]
    if controller.memory == 0:
        assert estimate.slope / estimate.error == pytest.approx(certainty, rel=1e-6, abs=1e-9)
    return decision


def spreads(controller: RegressionController, state: RegressionState, certainties: Any) -> list[float]:
    found = [state.axes[0].spread]
    for certainty in certainties:
        state = seen(controller, state, certainty).state
        found.append(state.axes[0].spread)
    return found


MEMORYLESS = RegressionController(memory=0.0)


def test_the_spread_widens_until_something_is_seen_and_no_further_than_it_may() -> None:
    for start, limit, widest in ((0.5, math.inf, 2.0), (0.5, 0.9, 0.9), (0.5, 0.3, 0.5)):
        path = spreads(MEMORYLESS, MEMORYLESS.start([start], [limit]), [0.9, -0.9] * 10)
        assert path[0] == start
        assert path[-1] == pytest.approx(widest)
        assert all(a <= b <= widest for a, b in pairwise(path))
        assert all(a < b for a, b in pairwise(path) if a < widest / 1.3)


def test_the_spread_stays_while_the_slope_has_one_sign() -> None:
    assert spreads(MEMORYLESS, MEMORYLESS.start([0.5]), [1.1, 5.0, 1.5, 2.0]) == [0.5] * 5
    assert spreads(MEMORYLESS, MEMORYLESS.start([0.5]), [-1.1, -5.0, -1.5]) == [0.5] * 4


def test_moves_go_down_the_slope_as_far_as_it_is_known() -> None:
    for certainty, share in ((0.99, 0.0), (1.01, 0.505), (1.5, 0.75), (2.0, 1.0), (50.0, 1.0)):
        for sign in (-1, 1):
            decision = seen(MEMORYLESS, MEMORYLESS.start([0.5]), sign * certainty)
            assert decision.estimates[0].move == pytest.approx(-sign * share * 0.5, rel=1e-6)


def test_a_reversal_narrows_the_spread() -> None:
    path = spreads(MEMORYLESS, MEMORYLESS.start([0.5]), [3.0, -3.0, -3.0, 3.0])
    assert path[2] < path[1]
    assert path[3] == path[2]
    assert path[4] < path[3]
    # An uncertain round in between does not make one forget where it came from.
    path = spreads(MEMORYLESS, MEMORYLESS.start([0.5]), [3.0, 0.1, -3.0])
    assert path[3] < path[2]


def test_after_a_reversal_the_spread_stays_within_what_it_was_there() -> None:
    path = spreads(MEMORYLESS, MEMORYLESS.start([0.5]), [3.0, -3.0, *[0.1] * 20])
    assert path[1] == 0.5
    assert path[2] == pytest.approx(0.3)
    assert max(path[2:]) == 0.5


def test_one_loss_out_of_all_proportion_does_not_drown_the_others() -> None:
    """It moves nothing the wrong way, and the right move comes as soon as it is gone."""
    column = (-0.5, 0.5, -0.5, 0.5, -0.5, 0.5, -0.5, 0.5)
    losses = [1.5, 0.5, 1.51, 0.49, 1.49, 0.51, 1.5, 0.5]
    controller = RegressionController()
    known = controller.update(controller.start([0.5]), losses=losses, offsets=[column]).state
    for height in (1e2, 1e4, 1e30, 1e300):
        decision = controller.update(known, losses=[*losses[:-1], height], offsets=[column])
        assert decision.capped == (7,)
        assert decision.estimates[0].move >= 0
        again = controller.update(decision.state, losses=losses, offsets=[column])
        assert again.capped == ()
        assert again.estimates[0].move > 0


def test_a_round_that_contradicts_beyond_doubt_is_believed_at_once() -> None:
    """Once a value has passed its best the rounds before it are no evidence any more."""
    controller = RegressionController(memory=0.95)
    state = controller.start([0.5])
    column = (-0.5, 0.5, -0.5, 0.5)
    for _ in range(10):
        state = controller.update(state, losses=[2.0, 1.0, 2.01, 1.01], offsets=[column]).state
    decision = controller.update(state, losses=[1.0, 1.2, 1.01, 1.21], offsets=[column])
    assert decision.estimates[0].move < 0


@given(st.lists(st.floats(-4, 4), min_size=1, max_size=40), st.floats(1, 8))
def test_the_spread_keeps_its_limits(certainties: list[float], reach: float) -> None:
    controller = RegressionController(memory=0.0, reach=reach)
    path = spreads(controller, controller.start([0.5]), certainties)
    slack = 1 + 1e-12
    assert all(0.5 / reach <= width * slack and width <= 0.5 * reach * slack for width in path)
    bound, direction = 0.5 * reach * slack, 0
    for certainty, before, after in zip(certainties, path, path[1:], strict=False):
        if abs(certainty) >= 1:
            if certainty * direction < 0:
                bound = min(bound, before)  # never wider than where it turned
                assert after < before or after == pytest.approx(0.5 / reach)
            direction = 1 if certainty > 0 else -1
        assert after <= bound * slack


@given(st.lists(st.floats(-9, 9), min_size=1, max_size=20))
def test_a_reach_of_one_keeps_the_spread(certainties: list[float]) -> None:
    controller = RegressionController(memory=0.0, reach=1.0)
    assert set(spreads(controller, controller.start([0.3]), certainties)) == {0.3}


# ---------------------------------------------------------------------- noise


def test_pure_noise_passes_the_gate_as_often_as_it_must_and_carries_nobody_away() -> None:
    """P(|t| ≥ 1) is a third; P(|t| ≥ 3) hardly ever. What passes walks without a direction, on a leash."""
    for controller, least, most in (
        (RegressionController(), 0.15, 0.4),
        (RegressionController(significance=3.0, full_step=4.0), 0.0, 0.02),
    ):
        rng = random.Random(10)
        moved, ends = [], []
        for seed in range(30):
            state, position = controller.start([HALF_WIDTH]), 0.0
            for k in range(1, 61):
                (row,) = orthogonal(8, ["x"], seed=seed, round=k)
                offsets = [tuple(state.axes[0].spread * z for z in row)]
                losses = [rng.gauss(2, NOISE) for _ in range(8)]
                decision = controller.update(state, losses=losses, offsets=offsets)
                state = decision.state
                moved.append(decision.estimates[0].move != 0)
                position += decision.estimates[0].move
            ends.append(position)
        assert least <= statistics.fmean(moved) <= most
        assert abs(statistics.fmean(ends)) < 3.5 * statistics.stdev(ends) / math.sqrt(30)
        widest = HALF_WIDTH * controller.reach
        assert statistics.stdev(ends) < 0.5 * widest * math.sqrt(60), "a random walk, not a march"


# ---------------------------------------------------------------------- state and arguments


@given(st.integers(0, 12), st.integers(1, 4), st.integers(0, 10**6))
def test_the_state_goes_through_a_checkpoint(rounds: int, k: int, seed: int) -> None:
    """As rows, as JSON, and the run goes on as if nothing had happened."""
    rng = random.Random(seed)
    controller = RegressionController()
    names = [f"h{i}" for i in range(k)]
    state = controller.start([0.5] * k, [0.9] * k)
    for turn in range(rounds + 1):
        if turn == rounds:
            saved = json.loads(json.dumps(state.to_rows(), allow_nan=False))
            again = RegressionState.from_rows(saved)
            assert again == state
            assert again.to_rows() == state.to_rows()
        offsets = dealt(orthogonal, names, turn)
        losses = [rng.gauss(0, 1) if rng.random() > 0.1 else math.nan for _ in range(8)]
        one = controller.update(state, losses=losses, offsets=offsets)
        if turn == rounds:
            two = controller.update(again, losses=losses, offsets=offsets)
            assert repr(one) == repr(two)
        state = one.state


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"memory": -0.1}, r"memory must be at least 0 and below 1, got -0\.1"),
        ({"memory": 1.0}, r"memory .*got 1\.0"),
        ({"memory": math.nan}, "memory .*got nan"),
        ({"memory": "0.5"}, "memory .*got '0.5'"),
        ({"memory": None}, "memory .*got None"),
        ({"significance": -1}, "significance must be at least 0, got -1"),
        ({"significance": math.inf}, "significance .*got inf"),
        ({"significance": True}, "significance .*got True"),
        ({"significance": "1"}, "significance .*got '1'"),
        ({"full_step": 0.5}, r"full_step must be at least 1, got 0\.5"),
        ({"significance": 3.0}, r"full_step must be at least 3, got 2\.0"),
        ({"significance": 0.0, "full_step": 0.0}, r"full_step must be above 0, got 0\.0"),
        ({"full_step": math.inf}, "full_step .*got inf"),
        ({"reach": 0.9}, r"reach must be at least 1, got 0\.9"),
        ({"reach": math.inf}, "reach .*got inf"),
        ({"reach": math.nan}, "reach .*got nan"),
        ({"reach": [2]}, r"reach .*got \[2\]"),
    ],
)
def test_bad_input(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"RegressionController: {words}"):
        RegressionController(**options)


def test_the_ends_of_what_is_allowed() -> None:
    RegressionController(memory=0, significance=0, full_step=1e-9, reach=1)
    RegressionController(memory=0.999, significance=2, full_step=2, reach=100)


# ---------------------------------------------------------------------- interactions


@pytest.mark.parametrize("size", [4, 8])
def test_an_interaction_of_two_is_not_credited_to_a_third(size: int) -> None:
    """In one round it is, with either sign: over rounds it cancels."""
    slopes = []
    for turn in range(400):
        a, b, c = orthogonal(size, ["a", "b", "c"], seed=0, round=turn)
        found = fit([a, b, c], [x * y for x, y in zip(a, b, strict=True)])
        assert found is not None
        slopes.append(found.slopes[2])
    assert abs(statistics.fmean(slopes)) < 4 * statistics.pstdev(slopes) / math.sqrt(400)
    assert statistics.pstdev(slopes) > 0, "the third is not free of it in every round"
