"""Eq. 4–8 as a pure function."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hdet.published.softmax import ControlState, SoftmaxController, geometric_decay, literal_decay
from tests.fakes import multipliers

# (max − min)/σ stays below 600, beyond which the naive formula of the test overflows.
distinct = st.lists(st.floats(-10, 10), min_size=2, max_size=9, unique=True)


@given(distinct, st.floats(0.05, 2), st.floats(0, 0.99), st.floats(-1, 1))
def test_update_is_the_paper(losses: list[float], sigma: float, beta: float, v: float) -> None:
    rho = multipliers(len(losses), 0.2)
    controller = SoftmaxController(temperature=sigma, momentum=beta, step_size=0.5, decay=0.1)
    decision = controller.update(ControlState(3.0, v), losses=losses, multipliers=rho)
    mean = sum(losses) / len(losses)
    e = [math.exp((mean - x) / sigma) for x in losses]
    w = [x / sum(e) for x in e]
    delta = sum(a * 3 * b for a, b in zip(w, rho, strict=True)) - 3
    velocity = beta * v + (1 - beta) * delta
    assert decision.weights == pytest.approx(w, rel=1e-9, abs=1e-12)
    assert decision.delta == pytest.approx(delta, abs=1e-9)
    assert decision.state.velocity == pytest.approx(velocity, abs=1e-9)
    asked = 3 * 0.9 + 0.5 * velocity
    floor = 3 * 0.9 * 0.8
    assert decision.state.value == pytest.approx(max(asked, floor), abs=1e-9)
    assert (decision.clamped_from is not None) == (decision.state.value > asked + 1e-9) or math.isclose(
        asked, floor, abs_tol=1e-9
    )


def test_better_replicas_pull() -> None:
    controller = SoftmaxController()
    rho = multipliers(4, 1 / 9)
    up = controller.update(ControlState(1.0), losses=[4, 3, 2, 1], multipliers=rho)
    down = controller.update(ControlState(1.0), losses=[1, 2, 3, 4], multipliers=rho)
    assert up.state.value > 1 > down.state.value
    assert up.delta == pytest.approx(1 / 9)
    assert down.delta == pytest.approx(-1 / 9)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=6), st.booleans())
def test_nothing_breaks_it(losses: list[float], auto: bool) -> None:
    controller = SoftmaxController(temperature="auto" if auto else 0.002)
    rho = multipliers(len(losses), 1 / 9)
    decision = controller.update(ControlState(1.0, 0.01), losses=losses, multipliers=rho)
    assert math.isfinite(decision.state.value)
    assert decision.state.value > 0
    assert math.isfinite(decision.state.velocity)
    voters = [r for r, x in enumerate(losses) if math.isfinite(x)]
    assert decision.left_out == tuple(r for r in range(len(losses)) if r not in voters)
    assert all(decision.weights[r] == 0 for r in decision.left_out)
    if voters:
        assert sum(decision.weights) == pytest.approx(1)
    if len({losses[r] for r in voters}) < 2:
        assert decision.state == ControlState(1.0, 0.01), "no evidence, no move"


def test_value_stays_positive_however_long_it_falls() -> None:
    """Without the clamp Eq. 7's velocity, made when the value was large, carries it through zero."""
    controller = SoftmaxController(momentum=0.9, step_size=0.5)
    rho = multipliers(8, 1 / 9)
    state = ControlState(1.0)
    clamped = 0
    for _ in range(2000):
        decision = controller.update(state, losses=range(8), multipliers=rho)
        assert decision.state.value > 0
        clamped += decision.clamped_from is not None
        state = decision.state
    assert clamped > 0


def test_a_left_out_replica_is_not_evidence() -> None:
    """The fastest replica is missing and the others tie but for a hair: the mean is over those that vote."""
    controller = SoftmaxController(temperature=1.0)
    rho = multipliers(3, 0.3)
    decision = controller.update(ControlState(1.0), losses=[1.0, 1.0 + 1e-12, math.nan], multipliers=rho)
    assert abs(decision.delta) < 1e-9


def test_auto_temperature_is_free_of_the_losses_scale() -> None:
    controller = SoftmaxController(temperature="auto")
    rho = multipliers(3, 0.3)
    small = controller.update(ControlState(1.0), losses=[1e-6, 2e-6, 4e-6], multipliers=rho)
    large = controller.update(ControlState(1.0), losses=[1e3, 2e3, 4e3], multipliers=rho)
    assert small.weights == pytest.approx(large.weights)


def test_decay_rules() -> None:
    """Over K syncs the mended rule goes from OneCycle's peak to its floor; the printed one goes up, or ends
    at f_final/f_div of the peak where that is below 1."""
    factors: dict[str, float] = {"div_factor": 25.0, "final_div_factor": 1e4}
    k = 37
    assert (1 - geometric_decay(**factors, syncs=k)) ** k == pytest.approx(1 / 25 / 1e4)
    assert literal_decay(**factors, syncs=k) < 0
    assert (1 - literal_decay(**factors, syncs=k)) ** k == pytest.approx(400.0)
    assert (1 - literal_decay(div_factor=25.0, final_div_factor=5.0, syncs=k)) ** k == pytest.approx(1 / 5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": 0}, "loss_scale"),
        ({"temperature": -0.1}, "-0.1"),
        ({"temperature": "cold"}, "'cold'"),
        ({"temperature": math.nan}, "nan"),
        ({"momentum": 1.0}, "momentum_of_lr"),
        ({"momentum": -0.1}, "-0.1"),
        ({"step_size": 0.0}, "lr_of_lr"),
        ({"step_size": math.inf}, "inf"),
    ],
)
def test_bad_input(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SoftmaxController(**options)
