"""The horizon controller as a pure function: its documented rule, and what bounds it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import FrozenInstanceError, asdict, replace
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from hdet.autolr.rule import HorizonController, HorizonDecision, HorizonState, Window

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
}
#: After the scaling windows, and with an improvement to compare with.
STEADY = HorizonState(1e-3, windows=9, first_loss=4.0)
#: What a window by default says of their speed, and the pace of weights that have always been as fast.
SPEED = 0.02 * 2000 / 18
PACED = replace(STEADY, pace=SPEED / STEADY.value)


def window(
    gap: float = 0.02,
    progress: float = 0.1,
    *,
    step: int = 100,
    next_step: int = 120,
    total_steps: int | None = 2000,
    displacement: float = 0.02,
    steps_between: float = 18.0,
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
        steps_between,
        [level] * batches,
        [mean] * batches,
        [mean + gap] * batches,
        rise=rise,
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
        }
    )


What = Literal["update", "descend", "retreat"]
#: What is asked of the controller, one after the other; a retreat reads nothing of its window.
Run = list[tuple[What, Window]]


def as_a_run(draw: st.DrawFn, windows: list[Window]) -> Run:
    """A search that retreats now and then, and, perhaps, its descent, to the very end or not, in which some
    windows were not probed."""
    if windows and draw(st.booleans()):
        windows = [replace(w, total_steps=windows[-1].step) for w in windows]
    windows = [w for w in windows if w.total_steps is None or w.step <= w.total_steps]
    descent = draw(st.integers(len(windows) // 2, 2 * len(windows)))
    run: Run = []
    for k, w in enumerate(windows):
        seldom = draw(st.integers(0, 9)) == 0
        if k >= descent:
            run.append(("descend", without_losses(w) if seldom else w))
            continue
        run.append(("update", w))
        if seldom:
            run.append(("retreat", w))
    return run


def without_losses(w: Window) -> Window:
    return replace(w, previous=(), mean=(), end=(), mean_there=(), best=())


def on_grid(losses: Sequence[float]) -> list[float]:
    """Losses whose differences are not rounded: batches that say the same have no error at all."""
    return [round(x * 2**30) / 2**30 for x in losses]


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """A run of windows: nothing moves at first, perhaps, then losses that fall, stand still, or explode."""
    total = draw(st.one_of(st.none(), st.integers(400, 5000)))
    batches = draw(st.integers(1, 5))
    blind = draw(st.lists(st.sampled_from([0.0, 5e-7, math.nan, 40.0]), max_size=8))
    pace = draw(st.floats(-4, -1))
    step, level, seen = 0, draw(st.floats(0.5, 10)), []
    best: list[float] = []
    for k in range(len(blind) + draw(st.integers(1, 16))):
        length = max(10, step // 5)
        step += length
        displacement = blind[k] if k < len(blind) else 10 ** (pace + draw(st.floats(-0.5, 0.5)))
        scale = 10 ** draw(st.floats(-5, -0.5))
        progress = scale * draw(st.floats(-0.5, 1))
        gap = scale * draw(st.floats(-1, 2))
        width = scale * draw(st.sampled_from([0.0, 0.1, 1.0]))
        noise = [width * draw(st.floats(-1, 1)) for _ in range(2 * batches)]
        previous = on_grid([level + 0.1 * i for i in range(batches)])
        gain = on_grid([progress - noise[i] for i in range(batches)])
        mean = [p - g for p, g in zip(previous, gain, strict=True)]
        there = draw(st.sampled_from([(), mean[: draw(st.integers(1, batches))]]))
        apart = on_grid([gap + noise[batches + i] for i in range(batches)])
        end = [m + apart[i] for i, m in enumerate(there or mean)]
        if draw(st.integers(0, 19)) == 0:
            end[0] = math.inf
        best = min(best or previous, previous, key=statistics.fmean)
        seen.append(
            Window(
                step,
                step + max(10, step // 5),
                total,
                displacement,
                length,
                previous,
                mean,
                end,
                mean_there=there,
                best=draw(st.sampled_from([(), best])),
                rise=draw(st.sampled_from([0.0, 0.05, -0.2])),
            )
        )
        level -= progress
    return as_a_run(draw, seen)


class Told(NamedTuple):
    """What the twin says of one step of a run."""

    action: str
    value: float
    ceiling: float | None
    backs: int
    total_backs: int


def error_of(values: Sequence[float]) -> float:
    """The standard error of a mean; of a single value none is known."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def pooled(values: Sequence[float], memory: float) -> float:
    """All of them at once: each counts ``memory`` times what the one after it does."""
    newest_first = list(reversed(values))
    recent = sum((1 - memory) * memory**age * x for age, x in enumerate(newest_first[:-1]))
    return recent + memory ** (len(values) - 1) * values[0]


def exceeds(a: float, b: float) -> bool:
    """a > b; where rounding alone would decide there is nothing to compare with."""
    if not a == b == 0:
        assume(abs(a - b) > max(1e-9 * max(abs(a), abs(b)), 1e-13))
    return a > b


def exploded(w: Window, noises: Sequence[float], first: float, start_noise: float) -> bool:
    """Whether e lies further above where the search began than half of what it had gained lies below."""
    noise = statistics.fmean(noises)
    had_gained = max(first - statistics.fmean(w.best or w.previous), 0.0)
    sudden = start_noise != 0 and exceeds(noise, 3 * abs(start_noise))
    clear = exceeds(noise, 3 * error_of(noises)) or exceeds(min(noises), had_gained)
    return sudden and clear and exceeds(statistics.fmean(w.mean) + noise - first, 0.5 * had_gained)


def slow_twin(value: float, run: Run, s: dict[str, float], cap: float = math.inf) -> list[Told]:
    """The controller's docstring, line by line; what it remembers are the numbers themselves, in lists."""
    told: list[Told] = []
    paces: list[float] = []  # speed by value, of every window that did not lead back
    gaps: list[float] = []  # of the windows judged since the last rollback
    gains: list[float] = []
    first = ceiling = None
    start_noise, count, raised, backs, total_backs = 0.0, 0, 0, 0, 0
    for what, w in run:
        action = "hold"
        if what == "retreat":
            value, ceiling = value / 3, value
            gaps, gains, start_noise = [], [], 0.0
            told.append(Told("retreat", value, ceiling, backs, total_backs))
            continue
        share = 0.15 if w.total_steps is None else w.step / w.total_steps
        v = w.displacement / w.steps_between * (w.step / share)
        if what == "update" and count == 0:  # next to no learning rate: only how far it carries is known
            if math.isnan(w.displacement) or w.displacement > 1:
                ceiling = value if ceiling is None else min(ceiling, value)
                value, action, backs, total_backs = value / 100, "back", backs + 1, total_backs + 1
            elif w.displacement <= 1e-6:
                raised += 1
                if raised <= 6:
                    value, action, backs = value * 100, "scale", 0
                elif raised == 7:
                    value /= 100**6
            else:
                value, action, count, backs = min(value * s["start_speed"] / v, cap), "scale", 1, 0
            told.append(Told(action, value, ceiling, backs, total_backs))
            continue

        if what == "descend" and not w.mean:  # not probed: nothing is known, and nothing changes
            told.append(Told("hold", value, ceiling, backs, total_backs))
            continue
        count += what == "update"
        rises = [m - p for m, p in zip(w.mean, w.previous, strict=True)]
        progresses = [b - m for b, m in zip(w.best or w.previous, w.mean, strict=True)]
        noises = [e - m for e, m in zip(w.end, w.mean_there or w.mean, strict=True)]
        if not all(map(math.isfinite, (v, *w.mean, *w.end))):
            leads_back = True
        else:
            allowed = max(start_noise, 0.0)
            unexplained = statistics.fmean(rises) - allowed - 3 * error_of(rises)
            improvement = 0.0 if first is None else max(first - statistics.fmean(w.previous), 0.0)
            if exceeds(min(rises), improvement + allowed):
                leads_back = True  # all is lost, whatever the noise of the probe
            elif first is not None and exploded(w, noises, first, start_noise):
                leads_back = True  # at its end, all of a sudden
            elif not exceeds(unexplained, 0.0):
                leads_back = False
            elif first is None:  # the search has not begun: there is nothing to take a share of
                leads_back = backs < 3
            else:
                rate = value * max(math.exp(w.rise), 1.0)
                thrown = bool(paces) and exceeds(v, 2 * pooled(paces, s["memory"]) * rate)
                much = (s["relapse"] if what == "update" else 0.5) * improvement
                leads_back = thrown or (exceeds(unexplained, much) and backs == 0)
        if what == "descend" and w.step == w.total_steps:
            leads_back = False
        if leads_back:
            ceiling = value if ceiling is None else min(ceiling, value)
            value, gaps, gains, backs, total_backs = value / 3, [], [], backs + 1, total_backs + 1
            told.append(Told("back", value, ceiling, backs, total_backs))
            continue
        backs, start_noise = 0, statistics.fmean(noises)
        if what == "descend":
            told.append(Told("hold", value, ceiling, backs, total_backs))
            continue
        paces.append(v / value)
        if count <= 3:  # bring the weights to speed
            change = min(max(math.log(s["start_speed"] / v), -math.log(3)), math.log(3))
            if exceeds(statistics.fmean(noises), statistics.fmean(progresses)):
                change = min(change, 0.0)
            value = min(value * math.exp(change), cap)
            told.append(Told("scale", value, ceiling, backs, total_backs))
            continue

        first = statistics.fmean(w.previous) if first is None else first
        gaps.append(statistics.fmean(noises))
        gains.append(statistics.fmean(progresses))
        gap, progress = pooled(gaps, s["memory"]), pooled(gains, s["memory"])
        gained = max(first - statistics.fmean(w.mean), 0.0)
        progress_error = error_of(progresses)
        least = max(s["significance"] * progress_error, 0.001 * gained)
        shows = exceeds(progress, least)
        # Too little of anything to be judged: nothing gained since the search began, and no noise either.
        blind = (
            progress_error > 0
            and not exceeds(gained, 3 * progress_error)
            and not exceeds(gap, s["significance"] * error_of(noises))
        )
        v_star = s["speed"] / math.sqrt(share)
        c = s["tolerance"] * v_star / v
        counted = max(progress, least)
        lag = gap / counted if counted > 0 else math.inf if gap > 0 else 0.0
        most = s["growth"] * math.log(w.next_step / w.step)
        if share > 0.15 and not w.rise > 0 and exceeds(-0.2, lag):
            most = 2 * most
        change = most * min(max((c - max(lag, 0.0)) / c, -1.0), 1.0)
        if len(progresses) >= 3 and not blind:
            if len(noises) == len(progresses):
                excess = [g - c * p for g, p in zip(noises, progresses, strict=True)]
                difference, doubt = statistics.fmean(excess), error_of(excess)
            else:
                difference = statistics.fmean(noises) - c * statistics.fmean(progresses)
                doubt = c * progress_error
            if exceeds(s["significance"] * doubt, abs(difference)):
                change = 0.0
        if change > 0:
            may_grow = exceeds(progress, -least) if blind else shows
            if progress_error == 0:  # then nothing excuses that this very window stood still
                may_grow = may_grow and exceeds(gains[-1], 0.001 * gained)
            if may_grow:
                bounds = [change, most - max(w.rise, 0.0), math.log(s["top_speed"] / v)]
                if ceiling is not None:
                    if shows:
                        ceiling *= math.sqrt(w.next_step / w.step)
                    bounds.append(math.log(ceiling / 2 / value))
                change = max(0.0, min(bounds))
            else:
                change = 0.0
        then = min(value * math.exp(change), cap)
        if abs(then - value) > 1e-12 * value:  # or else it stands at its ceiling, and only rounding is left
            action, value = "up" if then > value else "down", then
        told.append(Told(action, value, ceiling, backs, total_backs))
    return told


def play(controller: HorizonController, state: HorizonState, run: Run) -> list[tuple[str, HorizonState]]:
    """What the controller does, and the state after it, at each step of a run."""
    done = []
    for what, w in run:
        if what == "retreat":
            action, state = "retreat", controller.retreat(state)
        else:
            decision = (controller.update if what == "update" else controller.descend)(state, w)
            action, state = decision.action, decision.state
        done.append((action, state))
    return done


@given(runs(), settings(), st.sampled_from([math.inf, 0.5, 3.0]))
def test_update_is_the_documented_rule(run: Run, options: dict[str, float], cap: float) -> None:
    """And so are the descent and the retreat."""
    expected = slow_twin(0.1, run, options, cap)
    done = play(HorizonController(**options), HorizonState(0.1, cap=cap), run)
    for (action, state), twin in zip(done, expected, strict=True):
        assert action == twin.action
        assert state.value == pytest.approx(twin.value, rel=1e-9)
        assert state.ceiling == (None if twin.ceiling is None else pytest.approx(twin.ceiling, rel=1e-9))
        assert (state.backs, state.total_backs) == (twin.backs, twin.total_backs)


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


@given(
    st.floats(-1, 3),
    st.floats(-0.09, 1),
    st.floats(0, 2),
    st.integers(101, 200),
    st.one_of(st.none(), st.integers(101, 5000)),
)
def test_one_window_moves_at_most_growth(
    gap: float, progress: float, displacement: float, then: int, total: int | None
) -> None:
    """Twice as much, and only upwards, where a run that is no longer young does nothing but drift."""
    seen = window(gap, progress, next_step=then, total_steps=total, displacement=displacement)
    decision = controller_with().update(STEADY, seen)
    assert decision.action != "back"
    limit = 1.5 * math.log(then / 100)
    drifts = gap < 0 < progress and total is not None and 100 / total > 0.15
    assert -limit - 1e-12 <= log_change(decision) <= (2 if drifts else 1) * limit + 1e-12


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


def noisy(progress: Sequence[float], gap: Sequence[float] | None = None) -> Window:
    """Every batch says something of its own."""
    mean = [2.0 - x for x in progress]
    end = [m + g for m, g in zip(mean, gap or [0.3] * len(mean), strict=True)]
    return replace(window(), previous=[2.0] * len(mean), mean=mean, end=end)


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
    """0.01 ± 0.14 either way, and noise of 12.5 times that error, where 12.1 is tolerated."""
    two, three = [0.15, -0.13], [0.01 + 0.14 * math.sqrt(3), 0.01, 0.01 - 0.14 * math.sqrt(3)]
    assert controller_with().update(STEADY, noisy(two, gap=[1.75] * 2)).action == "down"
    held = controller_with().update(STEADY, noisy(three, gap=[1.75] * 3))
    assert (held.action, held.why) == ("hold", "not significant")


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


@pytest.mark.parametrize("progress", [[0.0, 0.0], [-0.001, -0.001], [0.009, -0.001], [1e-6, 1e-6]])
def test_without_progress_nothing_grows(progress: list[float]) -> None:
    """0.004 ± 0.005 is none, nor is less than a thousandth of the 2.0 gained, however sure; more than both
    counts. A lag is measured by that least progress, so that only noise well above it shrinks."""
    least = 0.005 if progress[0] == 0.009 else 0.001 * (2.0 + progress[0])
    still = controller_with().update(STEADY, noisy(progress, gap=[0.001, 0.001]))
    assert (still.action, still.why) == ("hold", "no progress")
    assert still.state.value == STEADY.value
    assert still.lag == pytest.approx(0.001 / least)
    quiet = controller_with().update(STEADY, noisy(progress, gap=[-0.01, -0.01]))
    assert (quiet.action, quiet.why) == ("hold", "no progress")
    assert controller_with().update(STEADY, noisy([0.007, 0.001], gap=[0.001, 0.001])).action == "up"
    assert controller_with().update(STEADY, noisy([0.0021, 0.0021], gap=[0.001, 0.001])).action == "up"
    assert controller_with().update(STEADY, noisy(progress, gap=[0.5, 0.5])).action == "down", (
        "noise still counts"
    )


@given(st.floats(-0.002, 0.01), st.floats(0.02, 1.0), st.booleans())
def test_a_standstill_is_not_made_up_for_by_the_windows_before(
    progress: float, before: float, sure: bool
) -> None:
    """Where the batches agree to the last digit: what is pooled then only remembers. Where they do not, a
    window alone is too little to tell, and what is pooled counts."""
    assume(abs(progress - 0.001 * (2.0 + progress)) > 1e-9)
    aside = 0.0 if sure else 0.001
    seen = noisy([progress + aside, progress - aside], gap=[-0.01, -0.01])
    decision = controller_with().update(replace(STEADY, gap=0.0, progress=before), seen)
    assert decision.progress == pytest.approx((before + progress) / 2)
    if sure and progress < 0.001 * (2.0 + progress):
        assert (decision.action, decision.why) == ("hold", "no progress")
    else:
        assert decision.action == "up"


@pytest.mark.parametrize("kind", ["rose", "mean inf", "end nan"])
def test_a_relapse_goes_back_with_a_third(kind: str) -> None:
    seen = window(0.0, -2.5) if kind == "rose" else window()
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
        assert decision.state.ceiling == state.value, "it does not grow back to where it was"
        state = decision.state
    well = controller_with().update(state, window())
    assert (well.state.backs, well.state.total_backs) == (0, 3)


def test_what_rises_again_at_a_third_of_the_rate_is_no_explosion() -> None:
    """The data are used up, say; but thrown weights lead back as often as they are thrown."""
    controller, rose = controller_with(), window(0.0, -0.5)
    back = controller.update(PACED, rose)
    assert back.action == "back"
    slower = replace(rose, displacement=rose.displacement / 3)
    assert controller.update(back.state, slower).action != "back"
    assert controller.update(back.state, rose).action == "back", "as far, at a third of the rate"


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
    gained_nothing = replace(STEADY, first_loss=None)
    assert controller.update(gained_nothing, window(0.0, -0.001)).action == "back", "nothing to share in"
    assert controller.update(gained_nothing, window(0.0, 0.001)).action != "back"


# ---------------------------------------------------------------------- the first windows


def test_the_first_window_brings_the_weights_to_speed() -> None:
    seen = Window(10, 20, 1000, displacement=2e-4, steps_between=5.5)
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
    assert decision.state.ceiling == 1e-5


# ---------------------------------------------------------------------- what a loss is worth


@st.composite
def exact_runs(draw: st.DrawFn) -> Run:
    """Losses of few binary digits, of 1, 2 or 4 batches: their differences and means are not rounded."""
    batches = draw(st.sampled_from([1, 2, 4]))
    total = draw(st.one_of(st.none(), st.integers(100, 3000)))
    step, seen = 0, []
    level = [draw(st.integers(1000, 4000)) for _ in range(batches)]
    best = level
    for _ in range(draw(st.integers(4, 16))):
        length = max(10, step // 5)
        step += length
        wide = draw(st.sampled_from([0, 3, 100]))
        drift, gap = draw(st.integers(-30, 100)), draw(st.integers(-60, 200))
        mean = [p - drift + draw(st.integers(-wide, wide)) for p in level]
        there = draw(st.sampled_from([(), mean[:1]]))
        end = [m + gap + draw(st.integers(-wide, wide)) for m in there or mean]
        losses = {"previous": level, "mean": mean, "end": end, "mean_there": there}
        losses["best"] = draw(st.sampled_from([(), best]))
        displacement = draw(st.sampled_from([0.003, 0.01, 0.02, 0.08]))
        seen.append(
            Window(
                step,
                step + max(10, step // 5),
                total,
                displacement,
                length,
                **{name: [x / 1024 for x in of] for name, of in losses.items()},  # type: ignore[arg-type]
            )
        )
        level = mean
        best = min(best, mean, key=sum)
    return as_a_run(draw, seen)


def told_otherwise(w: Window, scale: float, constant: float) -> Window:
    names = ("previous", "mean", "end", "mean_there", "best")
    return replace(w, **{name: [scale * x + constant for x in getattr(w, name)] for name in names})


def remembered_otherwise(state: HorizonState, scale: float, constant: float) -> HorizonState:
    """The same state, had the losses been others: none but these fields know them."""
    return replace(
        state,
        first_loss=None if state.first_loss is None else scale * state.first_loss + constant,
        gap=None if state.gap is None else scale * state.gap,
        progress=None if state.progress is None else scale * state.progress,
        last_gap=scale * state.last_gap,
    )


@given(exact_runs(), st.integers(-20, 20), st.integers(-4000, 4000))
def test_neither_a_constant_nor_a_unit_of_the_loss_moves_a_decision(run: Run, power: int, by: int) -> None:
    """Cross-entropy in nats or bits, a likelihood with or without its constant: one and the same run."""
    scale = 2.0**power
    constant = scale * by
    other = [(what, told_otherwise(w, scale, constant)) for what, w in run]
    expected = play(controller_with(), HorizonState(0.1), run)
    for (action, state), (action_too, state_too) in zip(
        expected, play(controller_with(), HorizonState(0.1), other), strict=True
    ):
        assert action_too == action
        assert state_too.value == state.value
        assert state_too == remembered_otherwise(state, scale, constant)


@given(exact_runs(), st.integers(0, 10**9), st.integers(0, 10**9))
def test_the_loss_before_the_search_began_is_forgotten(run: Run, at_first: int, then: int) -> None:
    """Targets that are not centred: the first windows win thousands, and nothing after them is like that."""
    descends = [k for k, (what, _) in enumerate(run) if what != "update"]
    assume(not descends or descends[0] >= 3)
    two = [replace(w, best=(), previous=[x + 1 for x in w.mean], end=w.mean) for _, w in run[1:3]]
    two = [replace(w, mean_there=()) for w in two]

    def beginning(above: Sequence[tuple[int, int]]) -> Run:
        raised = []
        for w, (before, after) in zip(two, above, strict=True):
            mean = [x + after for x in w.mean]
            raised.append(replace(w, previous=[x + before for x in w.previous], mean=mean, end=mean))
        return [("update", w) for w in (run[0][1], *raised)]

    small = play(controller_with(), HorizonState(0.1), beginning([(0, 0), (0, 0)]) + run[3:])
    huge = play(
        controller_with(), HorizonState(0.1), beginning([(at_first + then, then), (then, 0)]) + run[3:]
    )
    assert huge == small
    assert small[2][1].first_loss is None


def test_a_relapse_is_a_share_of_what_the_judged_windows_gained() -> None:
    """A million was won before; 6 % of the half won since is a relapse all the same."""
    controller, state = controller_with(), HorizonState(1e-3, windows=1)
    for level, progress in ((1e6, 1e6 - 2.0), (2.0, 0.0), (2.0, 0.25), (1.75, 0.25)):
        state = controller.update(state, window(0.0, progress, level=level)).state
    assert (state.first_loss, state.total_backs) == (2.0, 0)
    assert controller.update(state, window(0.0, -0.02, level=1.5)).action != "back"
    assert controller.update(state, window(0.0, -0.03, level=1.5)).action == "back"


# ---------------------------------------------------------------------- the best so far


@given(st.floats(0.001, 1.5), st.floats(0.0, 1.0))
def test_recovery_from_a_spike_is_no_progress(spike: float, still_above: float) -> None:
    """Down from the spike, and still above what was known before it. That it is taken for progress where that
    is not known is promised only of more than a standstill, a thousandth of the 2.0 gained."""
    won_back = spike * (1 - still_above)
    seen = window(0.001 * spike, won_back, level=2.0 + spike)
    recovering = replace(seen, best=[2.0, 2.0])
    decision = controller_with().update(STEADY, recovering)
    assert decision.progress == pytest.approx(-spike * still_above)
    assert decision.action != "back", "it is above the best, but not above p"
    assert decision.state.value <= STEADY.value
    if still_above < 0.9 and won_back > 0.0021:
        assert controller_with().update(STEADY, seen).action == "up", "taken for progress where nobody knows"


@given(st.floats(0.01, 1.0), st.floats(0.0, 1.0))
def test_beyond_the_best_progress_is_what_lies_beyond_it(progress: float, spike: float) -> None:
    seen = replace(window(0.001, progress + spike, level=2.0 + spike), best=[2.0, 2.0])
    decision = controller_with().update(STEADY, seen)
    assert (decision.progress, decision.action) == (pytest.approx(progress), "up")
    assert decision.lag == pytest.approx(0.001 / progress)


def test_the_gap_is_measured_where_the_end_was() -> None:
    """On one batch of four, and that one is far above the others."""
    four = noisy([0.1, 0.1, 0.1, 0.1])
    apart = replace(four, end=[7.25], mean_there=[7.0])
    decision = controller_with().update(STEADY, apart)
    assert (decision.gap, decision.progress) == (pytest.approx(0.25), pytest.approx(0.1))
    assert decision.state.last_gap == pytest.approx(0.25)
    with pytest.raises(ValueError, match="zip"):
        controller_with().update(STEADY, replace(apart, mean_there=()))


@given(st.floats(-0.5, 0.5))
def test_where_fewer_batches_show_the_gap_the_error_is_that_of_progress(gap: float) -> None:
    progress = [0.15, -0.13, 0.14, -0.12]
    seen = replace(noisy(progress), end=[7.0 + gap], mean_there=[7.0])
    decision = controller_with().update(STEADY, seen)
    doubt = decision.tolerated * statistics.stdev(progress) / 2
    difference = abs(gap - decision.tolerated * 0.01)
    assume(abs(difference - doubt) > 1e-9)
    assert (decision.why == "not significant") == (difference < doubt)


# ---------------------------------------------------------------------- thrown, or a little worse


@given(st.floats(0.001, 0.099), st.floats(0.05, 20))
def test_a_small_rise_leads_back_where_weights_were_thrown(rise: float, times: float) -> None:
    """Less than 5 % of the 2.0 gained: at the usual pace the data are used up, say."""
    assume(abs(times - 2) > 1e-6)
    seen = window(0.0, -rise, displacement=0.02 * times)
    assert (controller_with().update(PACED, seen).action == "back") == (times > 2)
    assert controller_with().update(STEADY, seen).action != "back", "no pace is known yet"
    assert controller_with().update(PACED, replace(seen, mean=[1.9] * 2, end=[1.9] * 2)).action != "back", (
        "far, and down"
    )


@given(st.floats(0.001, 0.099), st.floats(0.01, 100))
def test_thrown_is_further_than_the_learning_rate_explains(rise: float, value: float) -> None:
    """Twice the learning rate carries twice as far, and that is the usual pace."""
    state = replace(PACED, value=value * PACED.value)
    as_far_as_that = window(0.0, -rise, displacement=0.02 * value)
    assert controller_with().update(state, as_far_as_that).action != "back"
    further = window(0.0, -rise, displacement=0.02 * value * 2.1)
    assert controller_with().update(state, further).action == "back"


@given(st.floats(0.001, 0.099), st.floats(0.05, 20), st.floats(-2, 2))
def test_a_schedule_that_rises_explains_that_much(rise: float, times: float, schedule: float) -> None:
    """One that falls takes nothing away: the window began with the learning rate that it fell from."""
    usual = max(math.exp(schedule), 1.0)
    assume(abs(times - 2 * usual) > 1e-6)
    seen = window(0.0, -rise, displacement=0.02 * times, rise=schedule)
    for decide in (controller_with().update, controller_with().descend):
        assert (decide(PACED, seen).action == "back") == (times > 2 * usual)


def test_the_pace_is_pooled_and_a_relapse_leaves_it() -> None:
    controller, state, pace = controller_with(memory=0.75), STEADY, None
    for displacement in (0.02, 0.03, 0.01):
        unit = displacement * 2000 / 18 / state.value
        pace = unit if pace is None else 0.75 * pace + 0.25 * unit
        state = controller.update(state, window(displacement=displacement)).state
        assert state.pace == pytest.approx(pace)
    back = controller.update(state, window(0.0, -1.0, displacement=0.9)).state
    assert (back.pace, back.total_backs) == (state.pace, 1), "what threw them is not what is usual"


@given(st.floats(1e-4, 0.9), st.floats(0.0, 0.3))
def test_noise_of_the_start_excuses_thrown_weights_too(rise: float, last_gap: float) -> None:
    assume(abs(rise - last_gap) > 1e-9)
    seen = window(0.0, -rise, displacement=0.5)
    decision = controller_with().update(replace(PACED, last_gap=last_gap), seen)
    assert (decision.action == "back") == (rise > last_gap)


# ---------------------------------------------------------------------- the ceiling


@given(st.floats(0.1, 100), st.integers(101, 300))
def test_below_a_ceiling_growth_stops_at_half_of_it(times: float, then: int) -> None:
    state = replace(STEADY, ceiling=times * STEADY.value)
    seen = window(-0.01, 0.1, next_step=then)
    decision = controller_with().update(state, seen)
    ceiling = times * STEADY.value * math.sqrt(then / 100)
    free = controller_with().update(STEADY, seen).state
    assert decision.state.ceiling == pytest.approx(ceiling)
    assert decision.state.value == pytest.approx(min(free.value, max(ceiling / 2, STEADY.value)))
    assert free.ceiling is None


def test_the_ceiling_rises_with_evidence_and_only_with_it() -> None:
    """Progress, window by window, carries the value along below it, like √t."""
    controller, step = controller_with(), 100
    state = replace(STEADY, ceiling=2 * STEADY.value)
    while step < 1600:
        seen = window(-0.01, 0.1, step=step, next_step=2 * step, total_steps=10**6, displacement=1e-5)
        state, step = controller.update(state, seen).state, 2 * step
        assert state.ceiling == pytest.approx(2 * STEADY.value * math.sqrt(step / 100))
        assert state.value == pytest.approx(state.ceiling / 2)


@pytest.mark.parametrize(
    "seen",
    [
        noisy([0.15, -0.13, 0.14, -0.12]),
        window(-0.01, -0.01),
        noisy([0.009, -0.001], gap=[0.001, 0.001]),
        window(5.0, 0.1),
        window(0.0, -1.0),
    ],
    ids=["not significant", "worse", "no progress", "down", "back"],
)
def test_windows_without_progress_do_not_lift_the_ceiling(seen: Window) -> None:
    state = replace(STEADY, ceiling=5 * STEADY.value)
    after = controller_with().update(state, seen).state
    assert after.ceiling == (STEADY.value if after.total_backs else state.ceiling)


@given(st.floats(1e-8, 10))
def test_at_its_ceiling_the_learning_rate_stands(ceiling: float) -> None:
    """Half of it, to the last bit but one: what a logarithm and its exponential round is no growth."""
    blind = noisy([0.0, 0.0, 0.0, -1e-6], gap=[0.0] * 4)
    for value in (math.nextafter(ceiling / 2, 0.0), ceiling / 2):
        state = replace(STEADY, value=value, ceiling=ceiling, first_loss=2.0)
        decision = controller_with(significance=2).update(state, blind)
        assert (decision.action, decision.state.value, decision.state.ceiling) == ("hold", value, ceiling)
    below = replace(STEADY, value=ceiling / 4, ceiling=ceiling, first_loss=2.0)
    assert controller_with(significance=2).update(below, blind).action == "up", "such a window lets it grow"


@given(st.floats(0.01, 10))
def test_of_two_explosions_the_lower_counts(times: float) -> None:
    state = replace(STEADY, ceiling=times * STEADY.value)
    for decide in (controller_with().update, controller_with().descend):
        after = decide(state, window(0.0, -3.0)).state
        assert after.ceiling == min(times, 1.0) * STEADY.value
        assert after.value == pytest.approx(STEADY.value / 3)


# ---------------------------------------------------------------------- the descent, the retreat


@given(st.floats(-3, 3), st.floats(-3, 3), st.integers(100, 2000), st.floats(0.0, 0.3))
def test_in_the_descent_only_explosions_lead_back(
    gap: float, progress: float, step: int, last_gap: float
) -> None:
    """Beyond half of the 2.0 gained; with thrown weights; or an end that is suddenly 1.0 above the 4.0 that
    the search began with. Nothing else moves the factor, or anything."""
    state = replace(PACED, last_gap=last_gap, gap=0.3, progress=0.2, ceiling=0.5, total_backs=2)
    assume(abs(-progress - last_gap - 1.0) > 1e-9)
    seen = window(gap, progress, step=step, next_step=step + 20)
    assume(abs(gap - progress - 3.0) > 1e-9 and abs(gap - 3 * last_gap) > 1e-9)
    exploded = gap - progress > 3.0 and gap > 3 * last_gap > 0
    decision = controller_with().descend(state, seen)
    if step < 2000 and (-progress - last_gap > 1.0 or exploded):
        assert decision.action == "back"
        assert decision.state.value == pytest.approx(STEADY.value / 3)
        assert (decision.state.total_backs, decision.state.ceiling) == (3, STEADY.value)
    else:
        assert (decision.action, decision.why) == ("hold", "the schedule decays")
        assert decision.state == replace(state, last_gap=pytest.approx(gap), backs=0)
    assert (decision.gap, decision.progress) == (pytest.approx(gap), pytest.approx(progress))


def test_the_descent_bears_more_than_the_search_but_no_throw() -> None:
    controller, overfits = controller_with(), window(0.0, -0.5)
    assert controller.update(PACED, overfits).action == "back"
    assert controller.descend(PACED, overfits).action == "hold"
    assert controller.descend(PACED, replace(overfits, displacement=0.05)).action == "back"


@pytest.mark.parametrize("kind", ["rose", "mean inf", "end nan", "thrown", "weights inf"])
@pytest.mark.parametrize("total", [None, 100, 101])
def test_the_last_step_never_leads_back(kind: str, total: int | None) -> None:
    """There is none after it to make good what would be undone; what is handed over is chosen elsewhere."""
    seen = {
        "rose": window(0.0, -5.0, total_steps=total),
        "mean inf": replace(window(total_steps=total), mean=[1.9, math.inf]),
        "end nan": replace(window(total_steps=total), end=[math.nan, 1.9]),
        "thrown": window(0.0, -0.5, displacement=5.0, total_steps=total),
        "weights inf": window(displacement=math.inf, total_steps=total),
    }[kind]
    decision = controller_with().descend(PACED, seen)
    assert decision.action == ("hold" if total == 100 else "back")
    assert decision.state.value == pytest.approx(STEADY.value / (1 if total == 100 else 3))
    assert controller_with().update(PACED, seen).action == "back", "a search goes on after its last window"


@pytest.mark.parametrize("displacement", [0.0, 2e-4, 1e9, math.nan])
@pytest.mark.parametrize("step", [10, 1000])
def test_a_descent_without_losses_holds_and_changes_nothing(displacement: float, step: int) -> None:
    """Before anything was measured, too; and what was measured before is not forgotten."""
    full = replace(PACED, gap=0.3, progress=0.2, last_gap=0.1, ceiling=0.5, backs=2, total_backs=3)
    for state in (HorizonState(1e-5), full):
        decision = controller_with().descend(state, Window(step, step + 10, 1000, displacement, 5.5))
        assert (decision.action, decision.why) == ("hold", "the schedule decays")
        assert decision.state == state


@given(runs(), settings())
def test_a_retreat_is_a_third_below_a_ceiling(run: Run, options: dict[str, float]) -> None:
    """What was pooled was another rate's, and the weights stand where the best stood, without noise."""
    controller = HorizonController(**options)
    for _, state in play(controller, HorizonState(0.1), run):
        after = controller.retreat(state)
        assert after.value == pytest.approx(state.value / 3)
        assert after == replace(
            state, value=after.value, ceiling=state.value, gap=None, progress=None, last_gap=0.0
        )


def test_after_a_retreat_growth_ends_below_what_it_was() -> None:
    controller = controller_with()
    state = controller.retreat(STEADY)
    for _ in range(60):
        state = controller.update(state, window(-0.01, 0.1, next_step=101)).state
        assert state.value <= STEADY.value / 2 * 1.01**30
    assert state.value == pytest.approx(STEADY.value / 2 * 1.01**30), "as much as the ceiling has risen by"


# ---------------------------------------------------------------------- drift


@given(st.floats(-1, 1), st.integers(101, 2000), st.integers(101, 130))
def test_an_old_run_that_drifts_grows_twice_as_fast(lag: float, total: int, then: int) -> None:
    """Twice in the logarithm; a young one is ahead of its mean whatever its learning rate."""
    assume(abs(lag + 0.2) > 1e-6)
    seen = window(0.1 * lag, 0.1, total_steps=total, next_step=then, displacement=1e-4 * 18)
    decision = controller_with().update(STEADY, seen)
    limit = 1.5 * math.log(then / 100)
    drifts = lag < -0.2 and 100 / total > 0.15
    room = min((decision.tolerated - lag) / decision.tolerated, 1.0)
    assert log_change(decision) == pytest.approx((2 if drifts else 1) * limit * room)
    assert decision.lag == pytest.approx(lag)


def test_without_an_end_no_run_is_old() -> None:
    seen = window(-0.09, 0.1, step=10_000, next_step=12_000, total_steps=None, displacement=1e-4)
    assert log_change(controller_with().update(STEADY, seen)) == pytest.approx(1.5 * math.log(1.2))


def test_twice_as_fast_within_the_same_bounds() -> None:
    """Top speed and the ceiling; and not at all while the schedule rises by itself."""
    limit, controller = 1.5 * math.log(1.2), controller_with()
    drifting = window(-0.05, 0.1, total_steps=400)
    assert log_change(controller.update(STEADY, drifting)) == pytest.approx(2 * limit)
    for rise in (1e-9, 0.5 * limit, limit, 1.5 * limit):
        rising = controller.update(STEADY, replace(drifting, rise=rise))
        assert log_change(rising) == pytest.approx(max(limit - rise, 0.0))
    assert log_change(controller.update(STEADY, replace(drifting, rise=-1.0))) == pytest.approx(2 * limit)
    below = controller.update(replace(STEADY, ceiling=2.5e-3), drifting)
    assert below.state.value == pytest.approx(1.25e-3 * math.sqrt(1.2))
    near_the_top = replace(drifting, displacement=14 * 18 / 400)
    assert log_change(controller.update(STEADY, near_the_top)) == pytest.approx(math.log(16 / 14))


# ---------------------------------------------------------------------- an end that exploded, a new beginning


GAINED = replace(STEADY, last_gap=0.1)


@pytest.mark.parametrize(
    ("end", "state", "leads_back"),
    [
        (5.2, GAINED, True),  # 2.0 were gained, and the end lies 1.2 above where they began
        (4.9, GAINED, False),  # 0.9: it may come back by itself
        (5.2, replace(GAINED, last_gap=2.0), False),  # ends have been like that
        (5.2, replace(GAINED, first_loss=None), False),  # the search has not begun
        (5.2, replace(GAINED, last_gap=0.0), False),  # nothing is known of the ends before
    ],
)
def test_an_end_that_lost_half_again_of_what_was_gained_leads_back(
    end: float, state: HorizonState, leads_back: bool
) -> None:
    """Although the window's mean is better than ever."""
    decision = controller_with().update(state, window(gap=end - 1.9, progress=0.1))
    assert (decision.action == "back") is leads_back
    if leads_back:
        assert decision.state.value == pytest.approx(state.value / 3)
        assert decision.state.ceiling == state.value


def test_an_end_whose_batches_disagree_has_not_exploded() -> None:
    seen = replace(window(gap=3.3), end=[1.9, 8.5])
    assert controller_with().update(GAINED, seen).action != "back"


def test_a_new_search_stays_below_a_third() -> None:
    controller = controller_with()
    state = controller.restart(1e-5, at_best=0.3)
    assert (state.value, state.windows, state.first_loss, state.ceiling) == (1e-5, 0, None, None)
    moved = controller.update(state, Window(10, 20, 1000, displacement=1.1e-6, steps_between=5.5)).state
    assert moved.value == pytest.approx(0.1)  # a speed of 2e-4 would have asked for more
    judged = replace(STEADY, value=moved.value, cap=moved.cap)
    held = controller.update(judged, window())
    assert (held.action, held.state.value) == ("hold", moved.value)
    assert controller.update(replace(STEADY, value=moved.value), window()).action == "up"


# ---------------------------------------------------------------------- where little can be told


@given(
    st.floats(-0.05, 0.05),
    st.one_of(st.just(0.0), st.floats(1e-6, 0.05)),
    st.floats(-0.03, 0.03),
    st.floats(0, 0.03),
    st.one_of(st.just(2.0), st.floats(-0.1, 0.2)),
    st.one_of(st.just(1.0), st.floats(0.1, 4.0)),
)
def test_what_shows_decides_whether_it_may_grow(
    progress: float,
    progress_error: float,
    gap: float,
    gap_error: float,
    gained_before: float,
    significance: float,
) -> None:
    """Of two batches the standard error is half their difference. What shows no progress may not grow; but
    where noise does not show either, and no more was gained since the search began than three errors explain,
    the learning rate is too small to be judged, and grows unless the loss clearly rises. A search that has
    gained more is given no such licence."""
    seen = noisy(
        [progress + progress_error, progress - progress_error], gap=[gap + gap_error, gap - gap_error]
    )
    gained = max(gained_before + progress, 0.0)
    least = max(significance * progress_error, 0.001 * gained)
    before = max(gained_before, 0.0)
    all_lost = -progress - progress_error - before
    relapse = -progress - 3 * progress_error - 0.05 * before
    noise = gap - significance * gap_error
    close = (abs(progress) - least, noise, gained - 3 * progress_error, all_lost, relapse)
    assume(all(abs(x) > 1e-9 for x in close))
    state = replace(STEADY, first_loss=2.0 + gained_before)
    decision = controller_with(significance=significance).update(state, seen)
    assert (decision.action == "back") == (all_lost > 0 or relapse > 0)
    if decision.action == "back":
        return
    blind = progress_error > 0 and gained < 3 * progress_error and noise < 0
    if progress > (-least if blind else least):
        assert (decision.action == "up") == (decision.lag < decision.tolerated)
    else:
        assert decision.action in ("hold", "down")


#: Since the search began no more was gained than the probe's noise explains.
GAINED_NOTHING = replace(STEADY, first_loss=2.01)


def test_neither_noise_nor_progress_shows() -> None:
    """In a search that has gained nothing yet; the 2.0 of another are proof that it can be judged."""
    nothing = noisy([0.009, -0.001], gap=[0.02, -0.01])
    assert controller_with().update(GAINED_NOTHING, nothing).action == "up"
    judged = controller_with().update(STEADY, nothing)
    assert (judged.action, judged.why) == ("hold", "no progress")
    shows = noisy([0.009, -0.001], gap=[0.006, 0.004])
    held = controller_with().update(GAINED_NOTHING, shows)
    assert (held.action, held.why) == ("hold", "no progress")
    either = noisy([0.006, -0.004], gap=[0.02, -0.01])
    assert controller_with().update(GAINED_NOTHING, either).action == "up"
    held = controller_with(significance=0.25).update(GAINED_NOTHING, either)
    assert (held.action, held.why) == ("hold", "no progress"), "then a third of its error shows"
    worse = noisy([-0.009, -0.001], gap=[0.02, -0.01])
    held = controller_with().update(GAINED_NOTHING, worse)
    assert (held.action, held.why) == ("hold", "no progress")


def test_where_nothing_can_be_judged_nothing_need_be_significant() -> None:
    """0.004 ± 0.006 on three batches: the same numbers in a search that has gained something move nothing."""
    nothing = noisy([0.014, 0.004, -0.006], gap=[0.02, -0.01, 0.0])
    assert controller_with().update(GAINED_NOTHING, nothing).action == "up"
    judged = controller_with().update(STEADY, nothing)
    assert (judged.action, judged.why) == ("hold", "not significant")


@pytest.mark.parametrize("first_loss", [1.5, 2.0])
def test_batches_that_agree_are_not_blind(first_loss: float) -> None:
    """Losses that do not change at all have no error, and a larger learning rate is no way out: neither where
    nothing was gained, nor where something was lost since the search began, whatever is pooled."""
    state = replace(STEADY, first_loss=first_loss, gap=0.0, progress=0.1)
    for count in (1, 2, 3):
        dead = controller_with().update(state, noisy([0.0] * count, gap=[0.0] * count))
        assert (dead.action, dead.why) == ("hold", "no progress")
    unsure = controller_with().update(state, noisy([0.0] * 3, gap=[0.02, -0.01, 0.0]))
    assert (unsure.action, unsure.why) == ("hold", "not significant")


def test_what_cannot_be_judged_is_no_evidence_against_a_ceiling() -> None:
    """It grows up to half of it, and the ceiling stays; with progress that shows it rises."""
    state = replace(GAINED_NOTHING, ceiling=2.2 * STEADY.value)
    after = controller_with().update(state, noisy([0.009, -0.001], gap=[0.02, -0.01])).state
    assert (after.ceiling, after.value) == (state.ceiling, pytest.approx(1.1 * STEADY.value))
    shows = controller_with().update(state, noisy([0.009, 0.001], gap=[0.02, -0.01])).state
    assert shows.ceiling == pytest.approx(state.ceiling * math.sqrt(1.2))


@given(st.floats(0.0, 0.09), st.floats(0.001, 0.1))
def test_progress_within_its_error_counts_as_its_error(progress: float, gap: float) -> None:
    """A lag by a progress of next to nothing would be huge by chance. Where errors do not count it is still
    measured by a thousandth of what was gained at least."""
    seen = noisy([progress + 0.1, progress - 0.1], gap=[gap, gap])
    assert controller_with().update(STEADY, seen).lag == pytest.approx(gap / 0.1)
    without = controller_with(significance=0).update(STEADY, seen)
    assert without.lag == pytest.approx(gap / max(progress, 0.001 * (2.0 + progress)))


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


@pytest.mark.parametrize("mean", [[5.0, 20.0], [1e6, 5e6], [1e6] * 9 + [1e9]])
@pytest.mark.parametrize("windows", [1, 2, 3])
def test_an_explosion_before_the_search_began_is_no_noise_either(mean: list[float], windows: int) -> None:
    """As above, with a state that such windows really have."""
    seen = replace(window(), previous=[2.0] * len(mean), mean=mean, end=mean)
    state = HorizonState(1e-3, windows=windows, pace=0.1 * SPEED / 1e-3)
    assert controller_with().update(state, seen).action == "back"


@pytest.mark.parametrize("name", ["tolerance", "growth", "start_speed", "speed", "top_speed"])
@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, "1", True, None])
def test_bad_sizes(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"HorizonController: {name} must be a finite number > 0, got"):
        HorizonController(**{name: value})


@pytest.mark.parametrize("name", ["significance", "relapse"])
@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf, "1", False])
def test_bad_shares(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"HorizonController: {name} must be a finite number >= 0, got"):
        HorizonController(**{name: value})


@pytest.mark.parametrize("value", [-0.1, 1.0, math.nan, None])
def test_bad_memory(value: Any) -> None:
    with pytest.raises(ValueError, match=r"HorizonController: memory must be in \[0, 1\), got"):
        HorizonController(memory=value)
