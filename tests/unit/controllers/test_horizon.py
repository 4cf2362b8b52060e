"""The horizon controller as a pure function: its documented rule, and what bounds it."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, asdict, fields, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hdet.controllers import HorizonController, HorizonDecision, HorizonState, Window
from tests import reference

#: Every number of the rule, spelled out: what is tested here does not depend on the defaults.
SETTINGS = {
    "tolerance": 3.0,
    "growth": 1.5,
    "start_speed": 2.0,
    "speed": 2.0,
    "top_speed": 16.0,
    "memory": 0.5,
    "significance": 1.0,
    "relapse": 0.05,
    "standstill": 0.003,
}
#: After the scaling windows, and with an improvement to compare with.
STEADY = HorizonState(1e-3, windows=9, first_loss=4.0)


def window(
    gap: float = 0.02,
    progress: float = 0.1,
    *,
    step: int = 100,
    next_step: int = 120,
    total_steps: int | None = 2000,
    displacement: float = 0.02,
    apart: float = 18.0,
    batches: int = 2,
    level: float = 2.0,
    rise: float = 0.0,
) -> Window:
    """One in which every batch says the same."""
    mean = level - progress
    return Window(
        step,
        next_step,
        total_steps,
        displacement,
        apart,
        [level] * batches,
        [mean] * batches,
        [mean + gap] * batches,
        rise,
    )


def controller_with(**options: float) -> HorizonController:
    return HorizonController(**{**SETTINGS, **options})


def log_change(decision: HorizonDecision, before: HorizonState = STEADY) -> float:
    return math.log(decision.state.value / before.value)


# ---------------------------------------------------------------------- the rule


def settings() -> st.SearchStrategy[dict[str, float]]:
    return st.fixed_dictionaries(
        {
            "tolerance": st.floats(0.1, 10),
            "growth": st.floats(0.1, 3),
            "start_speed": st.floats(0.5, 10),
            "speed": st.floats(0.5, 10),
            "top_speed": st.floats(1, 50),
            "memory": st.floats(0, 0.95),
            "significance": st.floats(0, 3),
            "relapse": st.floats(0, 0.2),
            "standstill": st.floats(0, 0.02),
        }
    )


@st.composite
def runs(draw: st.DrawFn) -> list[Window]:
    """A run of windows: nothing moves at first, perhaps, then losses that fall, stand still, or explode."""
    total = draw(st.one_of(st.none(), st.integers(400, 5000)))
    batches = draw(st.integers(1, 5))
    blind = draw(st.lists(st.sampled_from([0.0, 5e-7, math.nan, 40.0]), max_size=8))
    step, level, seen = 0, draw(st.floats(0.5, 10)), []
    for k in range(len(blind) + draw(st.integers(1, 12))):
        length = max(10, step // 5)
        step += length
        displacement = blind[k] if k < len(blind) else 10 ** draw(st.floats(-4, -0.5))
        scale = 10 ** draw(st.floats(-5, -0.5))
        progress = scale * draw(st.floats(-0.5, 1))
        gap = scale * draw(st.floats(-0.2, 2))
        noise = [scale * draw(st.floats(-1, 1)) for _ in range(2 * batches)]
        previous = [level + 0.1 * i for i in range(batches)]
        mean = [p - progress + noise[i] for i, p in enumerate(previous)]
        end = [m + gap + noise[batches + i] for i, m in enumerate(mean)]
        if draw(st.integers(0, 19)) == 0:
            end[0] = math.inf
        rise = draw(st.sampled_from([0.0, 0.05, -0.2]))
        seen.append(
            Window(step, step + max(10, step // 5), total, displacement, length, previous, mean, end, rise)
        )
        level -= progress
    return [w for w in seen if w.total_steps is None or w.step <= w.total_steps]


@given(runs(), settings())
def test_update_is_the_documented_rule(seen: list[Window], options: dict[str, float]) -> None:
    looked = [reference.Looked(*(getattr(w, field.name) for field in fields(Window))) for w in seen]
    expected = reference.horizon(0.1, looked, reference.HorizonSettings(**options))
    controller, state = HorizonController(**options), HorizonState(0.1)
    for w, (factor, action) in zip(seen, expected, strict=True):
        decision = controller.update(state, w)
        assert decision.action == action
        assert decision.state.value == pytest.approx(factor, rel=1e-9)
        state = decision.state


def test_these_are_all_numbers_of_the_rule() -> None:
    assert asdict(HorizonController()).keys() == SETTINGS.keys()


def test_the_equation() -> None:
    """Δ log η = growth · log(t′/t) · clip((c − lag)/c, −1, 1), by hand."""
    decision = controller_with().update(STEADY, window(gap=0.5, progress=0.1))
    v = 0.02 * 2000 / 18
    c = 3.0 * (2.0 / math.sqrt(100 / 2000)) / v
    assert (decision.speed, decision.lag) == (pytest.approx(v), pytest.approx(5.0))
    assert decision.tolerated == pytest.approx(c)
    assert log_change(decision) == pytest.approx(1.5 * math.log(1.2) * (c - 5) / c)


def test_slow_weights_may_be_noisy_and_fast_ones_may_not() -> None:
    controller = controller_with()
    slow, fast = (controller.update(STEADY, window(0.5, 0.1, displacement=d)) for d in (0.01, 0.2))
    assert slow.tolerated == pytest.approx(20 * fast.tolerated)
    assert (slow.action, fast.action) == ("up", "down")


def test_as_much_lag_as_is_tolerated_moves_nothing() -> None:
    """The fixed point: a learning rate at which lag = c stays."""
    seen = window()
    c = controller_with().update(STEADY, seen).tolerated
    decision = controller_with().update(STEADY, window(gap=c * 0.1, progress=0.1))
    assert log_change(decision) == pytest.approx(0.0, abs=1e-12)


@given(st.floats(-1, 3), st.floats(-0.09, 1), st.floats(0, 2), st.integers(101, 200))
def test_one_window_moves_at_most_growth(gap: float, progress: float, displacement: float, then: int) -> None:
    seen = window(gap, progress, next_step=then, displacement=displacement)
    decision = controller_with().update(STEADY, seen)
    assert decision.action != "back"
    assert abs(log_change(decision)) <= 1.5 * math.log(then / 100) + 1e-12


def test_the_learning_rate_grows_no_faster_than_a_power_of_time() -> None:
    """However favourable all windows are; and where they are, it grows exactly so."""
    controller, state = controller_with(), STEADY
    step, start = 40, 40
    while step < 4000:
        then = step + max(10, step // 5)
        seen = window(-0.01, 0.1, step=step, next_step=then, total_steps=100_000, displacement=1e-4)
        state = controller.update(state, seen).state
        step = then
        assert math.log(state.value / STEADY.value) == pytest.approx(1.5 * math.log(step / start))


def test_what_the_schedule_rises_by_itself_is_part_of_the_growth() -> None:
    controller = controller_with()
    limit = 1.5 * math.log(1.2)
    for rise in (0.1, limit, 2.0):
        decision = controller.update(STEADY, window(-0.01, 0.1, rise=rise))
        assert log_change(decision) == pytest.approx(max(0.0, limit - rise))
    falling = controller.update(STEADY, window(-0.01, 0.1, rise=-1.0))
    assert log_change(falling) == pytest.approx(limit), (
        "a schedule that falls gives no licence to grow faster"
    )


def test_nothing_is_written_to() -> None:
    controller, state = controller_with(), STEADY
    seen = window()
    copies = asdict(controller), asdict(state), asdict(seen)
    assert controller.update(state, seen) == controller.update(state, seen)
    assert (asdict(controller), asdict(state), asdict(seen)) == copies
    for thing, name in ((controller, "growth"), (state, "value"), (seen, "step")):
        with pytest.raises(FrozenInstanceError):
            setattr(thing, name, 1.0)


# ---------------------------------------------------------------------- evidence


def noisy(progress: list[float]) -> Window:
    mean = [2.0 - x for x in progress]
    return replace(window(), previous=[2.0] * len(mean), mean=mean, end=[m + 0.3 for m in mean])


def test_noise_in_few_batches_moves_nothing() -> None:
    """Progress of 0.01 ± 0.06 on four batches: more than c·progress, and nobody can tell."""
    seen = noisy([0.15, -0.13, 0.14, -0.12])
    held = controller_with().update(STEADY, seen)
    assert (held.action, held.why) == ("hold", "not significant")
    assert held.state.value == STEADY.value
    assert held.progress == pytest.approx(0.01), "but it is remembered"
    assert controller_with(significance=0).update(STEADY, seen).action == "down"


def test_the_same_difference_on_quiet_batches_moves() -> None:
    assert controller_with().update(STEADY, noisy([0.0101, 0.0099, 0.0102, 0.0098])).action == "down"


def test_two_batches_make_no_standard_error() -> None:
    assert controller_with().update(STEADY, noisy([0.15, -0.13])).action == "down"


def test_gap_and_progress_are_pooled_with_the_windows_before() -> None:
    controller, state = controller_with(memory=0.75), STEADY
    gap = progress = None
    for g, p in ((0.02, 0.1), (0.04, 0.05), (0.01, 0.08)):
        decision = controller.update(state, window(g, p))
        gap = g if gap is None else 0.75 * gap + 0.25 * g
        progress = p if progress is None else 0.75 * progress + 0.25 * p
        assert (decision.gap, decision.progress) == (pytest.approx(gap), pytest.approx(progress))
        assert decision.lag == pytest.approx(gap / progress)
        state = decision.state
    alone = controller_with(memory=0).update(state, window(0.04, 0.05))
    assert alone.lag == pytest.approx(0.8)


# ---------------------------------------------------------------------- bounds


def test_beyond_top_speed_nothing_grows() -> None:
    controller = controller_with(top_speed=4.0)
    at = {
        v: controller.update(STEADY, window(-1, 0.1, displacement=v * 18 / 2000))
        for v in (1.0, 3.5, 4.0, 9.0)
    }
    assert log_change(at[1.0]) == pytest.approx(1.5 * math.log(1.2))
    assert log_change(at[3.5]) == pytest.approx(math.log(4 / 3.5)), "up to it, not beyond"
    assert at[4.0].action == at[9.0].action == "hold"
    assert controller.update(STEADY, window(3.0, 0.1, displacement=9.0 * 18 / 2000)).action == "down"


@pytest.mark.parametrize("progress", [0.0, -0.001, 0.004])
def test_without_progress_nothing_grows(progress: float) -> None:
    """2.0 was gained so far; 0.3 % of that is the least that counts."""
    still = controller_with().update(STEADY, window(-0.01, progress))
    assert (still.action, still.why) == ("hold", "no progress")
    assert controller_with().update(STEADY, window(-0.01, 0.007)).action == "up"
    assert controller_with().update(STEADY, window(0.5, progress)).action == "down", "noise still counts"


@pytest.mark.parametrize("kind", ["rose", "mean inf", "end nan"])
def test_a_relapse_goes_back_with_a_third(kind: str) -> None:
    seen = window(0.0, -0.5) if kind == "rose" else window()
    if kind == "mean inf":
        seen = replace(seen, mean=[1.9, math.inf])
    elif kind == "end nan":
        seen = replace(seen, end=[math.nan, 1.9])
    state = replace(STEADY, gap=0.3, progress=0.2)
    for count in (1, 2, 3):
        decision = controller_with().update(state, seen)
        assert decision.action == "back"
        assert decision.state.value == pytest.approx(state.value / 3)
        assert (decision.state.backs, decision.state.total_backs) == (count, count)
        assert decision.state.gap is decision.state.progress is None, "what was pooled was another rate's"
        state = decision.state
    well = controller_with().update(state, window())
    assert (well.state.backs, well.state.total_backs) == (0, 3)


def test_what_is_a_relapse() -> None:
    """More than 5 % of what was gained (2.0), more than the noise of the start, and of the probe."""
    controller = controller_with()
    assert controller.update(STEADY, window(0.0, -0.09)).action != "back"
    assert controller.update(STEADY, window(0.0, -0.11)).action == "back"
    after_noise = replace(STEADY, last_gap=0.1)
    assert controller.update(after_noise, window(0.0, -0.19)).action != "back"
    assert controller.update(after_noise, window(0.0, -0.21)).action == "back"
    assert controller.update(STEADY, noisy([0.5, -1.0, 0.4, -0.9])).action != "back", "three standard errors"
    assert controller.update(STEADY, noisy([-0.25, -0.26, -0.24, -0.25])).action == "back"


# ---------------------------------------------------------------------- the first windows


def test_the_first_window_brings_the_weights_to_speed() -> None:
    seen = Window(10, 20, 1000, displacement=2e-4, apart=5.5)
    decision = controller_with().update(HorizonState(1e-5), seen)
    speed = 2e-4 * 1000 / 5.5
    assert (decision.action, decision.state.windows) == ("scale", 1)
    assert decision.state.value == pytest.approx(1e-5 * 2.0 / speed)


@pytest.mark.parametrize(
    ("displacement", "gap", "factor"),
    [
        (0.02, 0.0, 2 / (0.02 * 2000 / 18)),
        (1e-4, 0.0, 3.0),
        (0.9, 0.0, 1 / 3),
        (1e-4, 0.2, 1.0),
        (0.9, 0.2, 1 / 3),
    ],
)
def test_scaling_windows(displacement: float, gap: float, factor: float) -> None:
    """Up to three times either way; not up where noise outweighs progress."""
    for windows in (1, 2):
        state = replace(STEADY, windows=windows)
        decision = controller_with().update(state, window(gap, 0.1, displacement=displacement))
        assert decision.action == "scale"
        assert decision.state.value == pytest.approx(factor * state.value)
        assert decision.state.gap is None, "no noise is judged yet"
    later = controller_with().update(replace(STEADY, windows=3), window(gap, 0.1, displacement=displacement))
    assert later.action != "scale"


def test_weights_that_hardly_move_are_given_a_hundred_times_more() -> None:
    controller, state = controller_with(), HorizonState(1e-5)
    for count in range(1, 7):
        decision = controller.update(state, Window(10 * count, 10 * count + 10, 1000, 1e-7, 10))
        assert (decision.action, decision.why, decision.state.windows) == ("scale", "hardly moved", 0)
        assert decision.state.value == pytest.approx(1e-5 * 100**count)
        state = decision.state
    held = controller.update(state, Window(70, 80, 1000, 0.0, 10))
    assert (held.action, held.why) == ("hold", "does not move"), "but not without end"
    assert held.state.value == pytest.approx(1e-5), "a gradient that comes late must not meet a huge value"
    again = controller.update(held.state, Window(80, 90, 1000, 0.0, 10))
    assert (again.action, again.state) == ("hold", held.state)


def test_a_back_is_forgotten_once_the_weights_hardly_move() -> None:
    controller = controller_with()
    far = controller.update(HorizonState(1e-5), Window(10, 20, 1000, 1e9, 5.5)).state
    near = controller.update(far, Window(20, 30, 1000, 1e-9, 5.5)).state
    assert (far.backs, near.backs, near.total_backs) == (1, 0, 1)


def test_a_falling_schedule_allows_no_more_growth_than_a_level_one() -> None:
    state = HorizonState(1e-3, windows=9, first_loss=4.0)
    losses = {"previous": [2.0], "mean": [1.9], "end": [1.9]}
    level, falling = (
        HorizonController().update(state, Window(100, 120, 2000, 0.01, 18, **losses, rise=rise))  # type: ignore[arg-type]
        for rise in (0.0, -3.0)
    )
    assert level.state.value == falling.state.value > state.value


@pytest.mark.parametrize("displacement", [1.5, 1e30, math.inf, math.nan])
def test_weights_thrown_far_by_the_first_window_come_back(displacement: float) -> None:
    decision = controller_with().update(HorizonState(1e-5), Window(10, 20, 1000, displacement, 5.5))
    assert (decision.action, decision.state.windows) == ("back", 0)
    assert decision.state.value == pytest.approx(1e-7)
    assert (decision.state.backs, decision.state.total_backs) == (1, 1)


# ---------------------------------------------------------------------- no end in sight, bad input


def test_without_an_end_the_run_is_always_young() -> None:
    """It decides as in a run of which t is 15 %, at any t."""
    controller = controller_with()
    for step in (100, 10_000):
        open_ended = window(0.5, 0.1, step=step, next_step=step + 20, total_steps=None)
        known = replace(open_ended, total_steps=round(step / 0.15))
        a, b = controller.update(STEADY, open_ended), controller.update(STEADY, known)
        assert a.tolerated == pytest.approx(b.tolerated, rel=1e-3)
        assert a.state.value == pytest.approx(b.state.value, rel=1e-3)


anything = st.one_of(st.floats(-1e300, 1e300), st.sampled_from([math.inf, -math.inf, math.nan]))


@given(
    st.lists(st.tuples(st.floats(-1e300, 1e300), anything, anything), min_size=1, max_size=5),
    st.one_of(st.just(math.nan), st.floats(0, math.inf)),
    st.integers(0, 12),
)
@example([(1.0, math.inf, 1.0), (1.0, 1.0, math.inf)], 0.1, 5)
@example([(1.0, 1e200, 1e200), (1.0, 3e200, 1e200), (1.0, 1e200, 1e200)], 0.1, 5)
def test_nothing_breaks_it(
    losses: list[tuple[float, float, float]], displacement: float, windows: int
) -> None:
    previous, mean, end = map(list, zip(*losses, strict=True))
    seen = Window(100, 120, 2000, displacement, 18.0, previous, mean, end)
    state = replace(STEADY, windows=windows, first_loss=None if windows < 2 else 4.0)
    decision = controller_with().update(state, seen)
    assert math.isfinite(decision.state.value)
    assert decision.state.value > 0
    if windows > 0 and not all(map(math.isfinite, (displacement, *mean, *end))):
        assert decision.action == "back"


@pytest.mark.parametrize("mean", [[5.0, 20.0], [1e6, 5e6], [1e6] * 9 + [1e9], [1e200, 1.1e200, 0.9e200]])
def test_an_explosion_is_no_noise(mean: list[float]) -> None:
    """Two losses that exploded lie further apart than three of their standard errors; 1e200 has no square."""
    seen = replace(window(), previous=[2.0] * len(mean), mean=mean, end=mean)
    for windows in (1, 2, 9):
        assert controller_with().update(replace(STEADY, windows=windows), seen).action == "back"


@pytest.mark.parametrize("name", ["tolerance", "growth", "start_speed", "speed", "top_speed"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, "1", True, None])
def test_bad_sizes(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"HorizonController: {name} must be a finite number > 0, got"):
        HorizonController(**{name: value})


@pytest.mark.parametrize("name", ["significance", "relapse", "standstill"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, "1", False])
def test_bad_shares(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"HorizonController: {name} must be a finite number >= 0, got"):
        HorizonController(**{name: value})


@pytest.mark.parametrize("value", [-0.1, 1.0, math.nan, None])
def test_bad_memory(value: Any) -> None:
    with pytest.raises(ValueError, match=r"HorizonController: memory must be in \[0, 1\), got"):
        HorizonController(memory=value)
