"""The search on gradients of one's own: what the slope does to a horizon's decision."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest

from hdet.bench.fan_out.counterfactual import ComparedWindow, CounterfactualController, heeded
from hdet.controllers import HorizonController, HorizonState, Window

STATE = HorizonState(1e-3, windows=9, first_loss=4.0)


def window(t: float = math.nan, *, step: int = 100, gap: float = 0.02, mean: float = 1.9) -> ComparedWindow:
    """Progress of 0.1 and little noise: by itself a horizon goes up, with a large gap down."""
    return ComparedWindow(
        step=step,
        next_step=step + step // 5,
        total_steps=2000,
        displacement=0.02,
        apart=18,
        previous=[2.0] * 4,
        mean=[mean] * 4,
        end=[mean + gap] * 4,
        t=t,
    )


def change(t: float, **others: float) -> float:
    decided = CounterfactualController().decided(STATE, window(t, **others))  # type: ignore[arg-type]
    return math.log(decided.state.value / STATE.value)


def twin(proposed: float, t: float, limit: float) -> float:
    """The rule once more, from its words: a move in the direction of the slope, if that can be told."""
    if t != t:
        return proposed
    direction = 0 if abs(t) <= 1 else -1 if t > 0 else 1
    if direction < 0:
        return direction * limit * min(abs(t), 2.0) / 2.0
    return direction * max(proposed, 0.0)


@pytest.mark.parametrize("t", [math.nan, -math.inf, -3.0, -1.0, -0.3, 0.0, 0.9, 1.5, 2.0, 50.0, math.inf])
@pytest.mark.parametrize("proposed", [-0.2, 0.0, 0.1])
def test_the_rule_is_that_of_its_words(t: float, proposed: float) -> None:
    assert heeded(proposed, t, 0.27) == pytest.approx(twin(proposed, t, 0.27))


def test_where_nothing_was_compared_it_is_the_horizon() -> None:
    for gap in (0.02, 5.0):
        plain = Window(**{part.name: getattr(window(gap=gap), part.name) for part in fields(Window)})
        expected = HorizonController().update(STATE, plain)
        assert CounterfactualController().decided(STATE, window(gap=gap)) == expected
        assert CounterfactualController().decided(STATE, plain) == expected


def test_a_slope_bends_it() -> None:
    limit = 1.5 * math.log(1.2)
    assert 0 < change(-5.0) == pytest.approx(change(math.nan))
    assert change(0.5) == change(-0.5) == 0
    assert change(5.0) == pytest.approx(-limit)
    assert change(-5.0, gap=5.0) == 0, "noise alone does not lower what did better than lower ones"


def test_no_slope_holds_up_the_first_windows_or_the_way_back() -> None:
    rule = CounterfactualController()
    scaling = HorizonState(1e-3, windows=1)
    assert rule.decided(scaling, window(9.0)).action == "scale"
    lost = window(-9.0, mean=math.nan)
    assert rule.decided(STATE, lost).action == "back"
