"""The horizon controller as a pure function: its documented rule, and what is true of it."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from hdet.autolr.prior import usual_rate
from hdet.autolr.rule import DECAYS, HorizonController, HorizonDecision, HorizonState, Window

#: Every number of the rule, spelled out: what is tested here does not depend on the defaults. And a range.
NUMBERS = {
    "tolerance": (4.0, 0.1, 10),
    "growth": (1.5, 0.1, 3),
    "pull": (0.8, 0, 2),
    "start_speed": (2.0, 0.5, 10),
    "memory": (0.5, 0, 0.95),
    "thrown": (2.0, 1.1, 5),
    "lost": (0.1, 0, 0.5),
    "slower": (3.0, 1.1, 10),
    "least": (30.0, 1.1, 100),
}
CONTROLLER = HorizonController(**{name: number for name, (number, *_) in NUMBERS.items()})
#: What a window by default says of the weights' speed.
SPEED = 0.02 * 2000 / 18
#: At the usual rate and pace, with 2.0 gained where a window by default begins; and with nothing gained.
STEADY = HorizonState(1e-3, usual=1e-3, windows=9, first_loss=4.0, pace=SPEED / 1e-3)
GAINED_NOTHING = replace(STEADY, first_loss=2.0)


def window(
    gap: float = 0.02,
    progress: float = 0.1,
    *,
    step: int = 100,
    next_step: int = 120,
    total_steps: int | None = 2000,
    displacement: float = 0.02,
    rise: float = 0.0,
) -> Window:
    """One in which both batches say the same."""
    mean = [2.0 - progress] * 2
    end = [m + gap for m in mean]
    return Window(step, next_step, total_steps, displacement, 18.0, [2.0] * 2, mean, end, rise=rise)


def noisy(progress: Sequence[float], gap: Sequence[float] | None = None) -> Window:
    """Every batch says something of its own."""
    mean = [2.0 - x for x in progress]
    end = [m + g for m, g in zip(mean, gap or [0.3] * len(mean), strict=True)]
    return replace(window(), previous=[2.0] * len(mean), mean=mean, end=end)


#: What is not finite: a mean, an end, the weights.
BROKEN = [
    replace(window(), mean=[1.9, math.inf]),
    replace(window(), end=[math.nan, 1.9]),
    window(displacement=math.inf),
    window(displacement=math.nan),
]


def log_change(decision: HorizonDecision) -> float:
    return math.log(decision.state.value / STEADY.value)


def train(state: HorizonState, seen: Window, until: int) -> list[HorizonState]:
    """The same window again and again as time goes on, with weights that travel in proportion to the rate."""
    states, step = [state], 100
    while step < until:
        displacement = seen.displacement * states[-1].value / state.value
        now = replace(seen, step=step, next_step=step + step // 10, displacement=displacement)
        states.append(CONTROLLER.update(states[-1], replace(now, total_steps=10**6)).state)
        step = now.next_step
    return states


# ---------------------------------------------------------------------- a slow twin

What = Literal["update", "descend", "retreat", "restart"]


class Step(NamedTuple):
    """What is asked of the controller; a retreat and a restart read nothing of the window."""

    what: What
    window: Window
    slower: bool = True


settings = st.fixed_dictionaries({name: st.floats(low, high) for name, (_, low, high) in NUMBERS.items()})
some = st.none() | st.floats(1e-3, 10)
bounds = st.just(math.inf) | st.floats(1e-3, 10)
starts = st.builds(HorizonState, st.just(0.1), usual=some, ceiling=bounds)


def on_grid(loss: float) -> float:
    """Losses whose differences are not rounded: batches that say the same have no error at all."""
    return round(loss * 2**30) / 2**30


@st.composite
def runs(draw: st.DrawFn, batch_counts: Sequence[int] = (1, 2, 3, 4, 5)) -> list[Step]:
    """A search, perhaps with retreats and restarts, and perhaps its decay, to the very end or not. Nothing
    moves at first, perhaps; then losses fall, stand still, or explode."""
    batches, total = draw(st.sampled_from(batch_counts)), draw(st.none() | st.integers(400, 5000))
    blind = draw(st.lists(st.sampled_from([0.0, 5e-7, math.nan, 40.0]), max_size=8))
    pace, count = draw(st.floats(-4, -1)), len(blind) + draw(st.integers(1, 16))
    decays_from = draw(st.integers(count // 2, 2 * count))
    step, level, best, run = 0, draw(st.floats(0.5, 10)), [math.inf], []
    for k in range(count):
        length = max(10, step // 5)
        step += length
        thrown = draw(st.sampled_from([1.0] * 6 + [5.0, 100.0, math.inf]))
        displacement = blind[k] if k < len(blind) else 10 ** (pace + draw(st.floats(-0.5, 0.5))) * thrown
        scale = 10 ** draw(st.floats(-5, -0.5))
        progress, gap = scale * draw(st.floats(-1, 1)), scale * draw(st.floats(-1, 2))
        width = scale * draw(st.sampled_from([0.0, 0.1, 1.0]))
        noise = [width * draw(st.floats(-1, 1)) for _ in range(2 * batches)]
        previous = [on_grid(level + 0.1 * i) for i in range(batches)]
        mean = [p - on_grid(progress - x) for p, x in zip(previous, noise[:batches], strict=True)]
        there = draw(st.sampled_from([(), mean[: draw(st.integers(1, batches))]]))
        end = [m + on_grid(gap + x) for m, x in zip(there or mean, noise[batches:], strict=False)]
        if draw(st.integers(0, 19)) == 0:
            end[0] = math.inf
        best = min(best, previous, key=statistics.fmean)
        losses = (previous, mean, end, there, draw(st.sampled_from([(), best])))
        then = step + max(10, step // 5)
        seen = Window(step, then, total, displacement, length, *losses)
        seen = replace(
            seen,
            rise=draw(st.sampled_from([0.0, 0.05, 0.5, -0.2])),
            explained=draw(st.sampled_from([0.0, 0.0, 2.0**-6])),
            unit=draw(st.sampled_from([1.0, 0.01, 7.0])),
            before=draw(st.sampled_from([0, 300])),
            decides=draw(st.integers(0, 9)) > 0,
            rounding=draw(st.sampled_from([0.0, 0.0, 2.0**-10, 2.0**-7])),
        )
        seldom, slower = draw(st.integers(0, 9)), draw(st.booleans())
        if k >= decays_from:
            unprobed = replace(seen, previous=(), mean=(), end=(), mean_there=(), best=())
            run.append(Step("descend", unprobed if seldom == 0 else seen))
        else:
            run.append(Step("update", seen))
            if seldom < 2:
                run.append(Step("retreat" if seldom == 0 else "restart", seen, slower))
        level -= progress
    if draw(st.booleans()):
        total = run[-1].window.step
        run = [s._replace(window=replace(s.window, total_steps=total)) for s in run]
    return run


def play(
    controller: HorizonController, state: HorizonState, run: list[Step]
) -> list[tuple[str, str, HorizonState]]:
    """What the controller does, why, and the state after it, at each step of a run."""
    done = []
    for what, seen, slower in run:
        action: str = what
        why = ""
        if what == "retreat":
            state = controller.retreat(state, slower=slower)
        elif what == "restart":
            state = controller.restart(state, 0.05, state.value, slower=slower)
        else:
            decision = (controller.update if what == "update" else controller.descend)(state, seen)
            action, why, state = decision.action, decision.why, decision.state
        done.append((action, why, state))
    return done


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


def clip(x: float, limit: float) -> float:
    return min(max(x, -limit), limit)


@dataclass
class SlowTwin:
    """The docstrings, line by line. It remembers what was seen in lists, and bounds as learning rates: the
    factor times what the schedule has risen by."""

    s: dict[str, float]
    value: float
    usual: float | None = None
    ceiling: float = math.inf
    worked: float = 0.0
    schedule: float = 1.0
    first_loss: float | None = None
    noise: float = 0.0  # of the iterate that the window began with
    paces: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    gains: list[float] = field(default_factory=list)
    scaled: bool = False
    raised: int = 0
    backs: int = 0
    total_backs: int = 0

    def factors(self) -> dict[str, float | None]:
        rates = {name: getattr(self, name) for name in ("usual", "ceiling", "worked")}
        return {name: None if rate is None else rate / self.schedule for name, rate in rates.items()}

    def slow_down(self) -> None:
        before = self.value * self.schedule
        self.value = (
            max(before / self.s["slower"], min(before, self.worked / self.s["least"])) / self.schedule
        )

    def go_back(self) -> str:
        self.slow_down()
        self.ceiling = min(self.ceiling, self.value * self.schedule)
        self.gaps, self.gains = [], []
        self.backs, self.total_backs = self.backs + 1, self.total_backs + 1
        return "back"

    def retreat(self, slower: bool) -> None:
        self.gaps, self.gains, self.noise = [], [], 0.0
        if slower:
            self.slow_down()
            self.ceiling = min(self.value * self.schedule, self.ceiling)

    def restart(self, slower: bool) -> None:
        ceiling, usual = self.value / (self.s["slower"] if slower else 1.0), self.factors()["usual"]
        usual = ceiling if usual is None else min(usual, ceiling)
        SlowTwin.__init__(self, self.s, 0.05, usual, ceiling)

    def usual_at(self, w: Window) -> float:
        of_a_unit = w.displacement / w.steps_between / self.value / w.unit
        usual = math.inf if of_a_unit in (0, math.inf) or of_a_unit != of_a_unit else usual_rate(of_a_unit)
        return min(usual / w.unit * self.schedule, math.inf if self.usual is None else self.usual)

    def first(self, w: Window) -> tuple[str, str]:
        """Next to no learning rate: only how far it carries is known."""
        if math.isnan(w.displacement) or w.displacement > 1:
            self.value /= 100
            self.backs, self.total_backs = self.backs + 1, self.total_backs + 1
            return "back", "the weights moved further than their own norm"
        if w.displacement <= 1e-6:
            self.raised += 1
            if self.raised <= 6:
                self.value, self.backs = self.value * 100, 0
                return "scale", "hardly moved"
            if self.raised == 7:
                self.value /= 100**6
            return "hold", "does not move"
        usual = self.usual_at(w)
        fast = self.value * self.s["start_speed"] / self.speed(w)
        value, self.backs = min(fast, usual, self.ceiling), 0
        if w.displacement <= 8 * w.rounding and value > 2 * self.value:
            self.value = min(value, 100 * self.value)
            return "scale", "rounded away"
        self.value, self.usual, self.scaled = value, usual, True
        return "scale", ""

    @staticmethod
    def share(w: Window) -> float:
        return 0.15 if w.total_steps is None else w.step / w.total_steps

    def speed(self, w: Window) -> float:
        return w.displacement / w.steps_between * (w.step / self.share(w))

    def blew_up(self, w: Window, decays: bool) -> bool:
        v = self.speed(w)
        if not all(map(math.isfinite, (v, *w.mean, *w.end))):
            return True
        if not w.decides:
            return False
        rises = [m - p for m, p in zip(w.mean, w.previous, strict=True)]
        rise, error, noise = statistics.fmean(rises), error_of(rises), max(self.noise, 0.0)
        gained = 0.0 if self.first_loss is None else self.first_loss - statistics.fmean(w.previous)
        if not (exceeds(rise - noise, 3 * error) or exceeds(min(rises) - noise, max(gained, 0.0))):
            return False
        if self.paces:
            rate = self.value * self.schedule
            thrown = exceeds(v, self.s["thrown"] * pooled(self.paces, self.s["memory"]) * rate)
        else:
            thrown = exceeds(w.displacement, 1.0)
        much = exceeds(gained, 3 * error) and exceeds(rise - noise - 3 * error, self.s["lost"] * gained)
        return thrown or (much and self.backs == 0 and not decays)

    def descend(self, w: Window) -> tuple[str, str]:
        if not self.scaled:
            return self.first(w)
        if w.mean:
            self.schedule *= max(math.exp(w.rise), 1.0)
            if w.step != w.total_steps and self.blew_up(w, decays=True):
                return self.go_back(), "the loss rose along the window"
            gaps = [e - m for e, m in zip(w.end, w.mean_there or w.mean, strict=True)]
            self.noise = statistics.fmean(gaps)
            self.backs = 0
        return "hold", DECAYS

    def update(self, w: Window) -> tuple[str, str]:
        if not self.scaled:
            return self.first(w)
        s, v, time = self.s, self.speed(w), math.log(w.next_step / w.step)
        rise = max(w.rise, 0.0)
        self.schedule *= math.exp(rise)
        if self.first_loss is None:
            self.first_loss = statistics.fmean(w.previous)
        if self.blew_up(w, decays=False):
            return self.go_back(), "the loss rose along the window"
        if w.rounding:
            self.usual = self.usual_at(w)
        gains = [b + w.explained - m for b, m in zip(w.best or w.previous, w.mean, strict=True)]
        gaps = [e - m for e, m in zip(w.end, w.mean_there or w.mean, strict=True)]
        self.noise, self.backs = statistics.fmean(gaps), 0
        self.gaps.append(self.noise)
        self.gains.append(statistics.fmean(gains))
        self.paces.append(v / self.value / self.schedule)
        gap, progress, error = (
            pooled(self.gaps, s["memory"]),
            pooled(self.gains, s["memory"]),
            error_of(gains),
        )
        progresses = w.decides and exceeds(progress, error)
        if progresses:
            self.worked = max(self.worked, self.value * self.schedule)
        c = s["tolerance"] / (v * math.sqrt(self.share(w)))
        counted = max(progress, error)
        lag = gap / counted if counted > 0 else math.inf if gap > 0 else 0.0
        evidence, why = clip((c - lag) / c, 1.0), ""
        excess = [g - c * p for g, p in zip(gaps, gains, strict=False)]
        if len(gaps) == len(gains):
            difference, doubt = statistics.fmean(excess), error_of(excess)
        else:
            difference, doubt = statistics.fmean(gaps) - c * statistics.fmean(gains), c * error
        lowest = min(statistics.fmean(losses) for losses in (w.mean, w.best or w.previous))
        if not w.decides:
            evidence, why = 0.0, "one sample"
        elif not exceeds(self.first_loss - lowest, 3 * error):
            evidence, why = 0.0, "nothing learnt"
        elif len(gains) >= 3 and exceeds(doubt, abs(difference)):
            evidence, why = 0.0, "not significant"
        elif not progresses and exceeds(c, lag):
            evidence, why = 0.0, "no progress"
        usual = self.factors()["usual"]
        assert usual is not None
        change = time * clip(s["growth"] * evidence + s["pull"] * math.log(usual / self.value), s["growth"])
        then = self.value * math.exp(change if change < 0 else max(change - rise, 0.0))
        self.ceiling *= (w.before + w.next_step) / (w.before + w.step)
        if then > self.value:
            then = max(self.value, min(then, self.ceiling / self.schedule))
        if then < self.value:
            then = max(then, min(self.value, self.worked / self.schedule / s["least"]))
        if abs(then - self.value) <= 1e-12 * self.value:  # at a bound, where only rounding is left
            return "hold", why
        before, self.value = self.value, then
        return ("up" if then > before else "down"), why


@given(runs(), settings, starts)
def test_the_controller_does_what_its_documentation_says(
    run: list[Step], options: dict[str, float], start: HorizonState
) -> None:
    twin = SlowTwin(options, start.value, start.usual, start.ceiling)
    done = play(HorizonController(**options), start, run)
    for (what, seen, slower), (action, why, state) in zip(run, done, strict=True):
        if what == "update" or what == "descend":
            assert (action, why) == (twin.update if what == "update" else twin.descend)(seen)
        else:
            (twin.retreat if what == "retreat" else twin.restart)(slower)
        assert state.value == pytest.approx(twin.value, rel=1e-9)
        for name, factor in twin.factors().items():
            assert getattr(state, name) == (None if factor is None else pytest.approx(factor, rel=1e-9))
        assert (state.backs, state.total_backs) == (twin.backs, twin.total_backs)


def test_the_equation() -> None:
    """Δ log η = log(t′/t) · clip(growth·(c − lag)/c + pull·log(η₀/η), −growth, growth), by hand."""
    decision = CONTROLLER.update(replace(STEADY, usual=5e-4), window(gap=0.5, progress=0.1))
    c = 4.0 / (SPEED * math.sqrt(100 / 2000))
    assert [decision.speed, decision.lag, decision.tolerated] == pytest.approx([SPEED, 5.0, c])
    per_time = 1.5 * (c - 5) / c + 0.8 * math.log(0.5)
    assert log_change(decision) == pytest.approx(math.log(1.2) * per_time)


# ---------------------------------------------------------------------- what a loss is worth


def told_otherwise(w: Window, scale: float, constant: float) -> Window:
    names = ("previous", "mean", "end", "mean_there", "best")
    losses = {name: [scale * x + constant for x in getattr(w, name)] for name in names}
    return replace(w, explained=scale * w.explained, **losses)  # type: ignore[arg-type]


@given(runs(batch_counts=(1, 2, 4)), starts, st.integers(-20, 20), st.integers(-4000, 4000))
def test_neither_a_constant_nor_a_unit_of_the_loss_moves_a_decision(
    run: list[Step], start: HorizonState, power: int, by: int
) -> None:
    """Cross-entropy in nats or bits, a likelihood with or without its constant: one and the same run."""
    scale, constant = 2.0**power, 2.0**power * by
    other = [s._replace(window=told_otherwise(s.window, scale, constant)) for s in run]
    for (action, why, state), (action_too, why_too, state_too) in zip(
        play(CONTROLLER, start, run), play(CONTROLLER, start, other), strict=True
    ):
        assert (action_too, why_too, state_too.value) == (action, why, state.value)
        assert state_too == replace(
            state,
            first_loss=None if state.first_loss is None else scale * state.first_loss + constant,
            gap=None if state.gap is None else scale * state.gap,
            progress=None if state.progress is None else scale * state.progress,
            last_gap=state_too.last_gap,
        )
        assert state_too.last_gap == pytest.approx(scale * state.last_gap, rel=0, abs=0, nan_ok=True)


huge = st.floats(-1e300, 1e300)
rates = st.floats(1e-20, 1e20)
anything = huge | st.sampled_from([math.inf, -math.inf, math.nan])


@given(
    st.lists(st.tuples(huge, anything, anything), min_size=1, max_size=5),
    st.floats(min_value=0),
    st.builds(
        HorizonState,
        rates,
        usual=rates,
        windows=st.integers(0, 3),
        last_gap=huge,
        pace=st.none() | st.floats(0, 1e300),
        ceiling=st.just(math.inf) | rates,
        **dict.fromkeys(("first_loss", "gap", "progress"), st.none() | huge),
    ),
    st.sampled_from([(1, 2, 1), (100, 110, 10**12), (10**12, 10**13, None)]),
)
@example([(1.0, math.inf, 1.0), (1.0, 1.0, math.inf)], 0.1, STEADY, (100, 120, 2000))
@example([(1.0, 1e200, 1e200), (1.0, 3e200, 1e200), (1.0, 1e200, 1e200)], 0.1, STEADY, (100, 120, 2000))
def test_nothing_breaks_it(
    losses: list[tuple[float, float, float]],
    displacement: float,
    state: HorizonState,
    time: tuple[int, int, int | None],
) -> None:
    previous, mean, end = map(list, zip(*losses, strict=True))
    seen = Window(*time, displacement, 18.0, previous, mean, end)
    for decision in (CONTROLLER.update(state, seen), CONTROLLER.descend(state, seen)):
        after = decision.state
        assert 0 < after.value < math.inf
        assert after.usual is not None
        assert 0 < after.usual < math.inf
        assert after.ceiling > 0
    if state.windows > 0 and not all(map(math.isfinite, (seen.speed, *mean, *end))):
        assert CONTROLLER.update(state, seen).action == "back"


# ---------------------------------------------------------------------- its numbers


def test_these_are_all_numbers_of_the_rule() -> None:
    assert [each.name for each in fields(HorizonController)] == list(NUMBERS)
    assert len(NUMBERS) <= 10


BAD = {0: "tolerance growth start_speed", 1: "thrown slower least", -0.1: "pull lost memory"}


@pytest.mark.parametrize(("name", "least"), [(name, x) for x, names in BAD.items() for name in names.split()])
def test_a_bad_number_is_refused_by_its_name(name: str, least: float) -> None:
    bad: list[Any] = [least, -2.0, math.nan, math.inf, "3", True, None]
    for value in bad + [1.0] * (name == "memory"):
        with pytest.raises(ValueError, match=rf"^HorizonController: {name} must be .*, got {value!r}$"):
            HorizonController(**{name: value})
    HorizonController(**{name: least + 0.1})


# ---------------------------------------------------------------------- evidence, and what is usual


@pytest.mark.parametrize("usual", [1e-5, 1e-4, 1e-2, 1e-1])
@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (window(0.0, 0.0), "no progress"),
        (window(0.0, -0.01), "no progress"),
        (noisy([0.009, -0.001]), "no progress"),
        (noisy([0.15, -0.13, 0.14, -0.12]), "not significant"),
        (replace(window(), decides=False), "one sample"),
        (window(5.0, -0.01), "nothing learnt"),
        (noisy([0.05, -0.03, 0.04]), "nothing learnt"),
    ],
)
def test_without_evidence_the_rate_goes_to_the_usual_one(usual: float, seen: Window, why: str) -> None:
    """From above and from below, never past it and never faster than t^growth."""
    start = replace(GAINED_NOTHING if why == "nothing learnt" else STEADY, usual=usual)
    seen = replace(seen, displacement=1e-9)
    assert CONTROLLER.update(start, seen).why == why
    distances = [math.log(state.value / usual) for state in train(start, seen, until=1_000_000)]
    assert abs(distances[-1]) < 0.01
    for before, after in itertools.pairwise(distances):
        assert 0 <= after / before < 1
        assert abs(after - before) <= 1.5 * math.log(1.1) + 1e-9


@pytest.mark.parametrize("start", [1e-4, 1e-3, 1e-1])
def test_all_the_evidence_there_can_be_ends_a_bounded_way_above_the_usual(start: float) -> None:
    most = 1e-3 * math.exp(1.5 / 0.8)
    states = train(replace(STEADY, value=start, worked=0.0), window(-1.0, displacement=1e-9), until=10**6)
    assert all(state.value <= max(most, start) * (1 + 1e-9) for state in states)
    assert states[-1].value == pytest.approx(most, rel=0.01)
    assert states[-1].usual == 1e-3


# ---------------------------------------------------------------------- the way back


@pytest.mark.parametrize("bad", BROKEN)
def test_what_is_not_finite_goes_back_every_time(bad: Window) -> None:
    state = replace(GAINED_NOTHING, gap=0.3, progress=0.2)
    for count in (1, 2, 3):
        for decide in (CONTROLLER.update, CONTROLLER.descend):
            decision = decide(state, bad)
            assert decision.action == "back"
            assert decision.state.value == pytest.approx(state.value / 3)
            assert decision.state.ceiling == decision.state.value
            assert decision.state.usual == state.usual
            assert (decision.state.backs, decision.state.total_backs) == (count, count)
            assert decision.state.gap is decision.state.progress is None, "what was pooled was another rate's"
        state = decision.state
    well = CONTROLLER.update(state, window()).state
    assert (well.backs, well.total_backs) == (0, 3)


def test_a_rise_that_shrinks_with_the_rate_never_goes_back_while_nothing_was_gained() -> None:
    """The probe's data are of another kind, say: a smaller rate would not help."""
    state, step = HorizonState(1e-5), 10
    level, actions = 2.0, []
    for _ in range(60):
        then, rise = step + max(10, step // 10), 30.0 * state.value
        mean = [level + rise, level + 1.1 * rise, level + 0.9 * rise]
        seen = Window(step, then, 2000, 1e3 * state.value, 10.0, [level] * 3, mean, mean)
        decision = CONTROLLER.update(state, seen)
        state, step, level = decision.state, then, statistics.fmean(mean)
        actions.append(decision.action)
    assert "back" not in actions
    assert level > 2.1


@given(st.floats(0.01, 1.9), st.floats(0.05, 20), st.floats(-2, 2))
def test_a_rise_goes_back_where_the_weights_were_thrown(rise: float, times: float, schedule: float) -> None:
    """Further than twice what the rate explains, and the schedule where it has risen. The same rise without
    a throw does not go back while nothing was gained; nor does a throw without a rise."""
    explained = max(math.exp(schedule), 1.0)
    assume(abs(times - 2 * explained) > 1e-6 and abs(times - 4 * explained) > 1e-6)
    seen = window(0.0, -rise, displacement=0.02 * times, rise=schedule)
    for decide in (CONTROLLER.update, CONTROLLER.descend):
        assert (decide(GAINED_NOTHING, seen).action == "back") == (times > 2 * explained)
        excused = replace(GAINED_NOTHING, last_gap=rise + 0.01)
        assert decide(excused, seen).action != "back", "the window began with as much noise"
        twice = replace(GAINED_NOTHING, value=2 * STEADY.value)  # twice the rate carries twice as far
        assert (decide(twice, seen).action == "back") == (times > 4 * explained)
        assert decide(STEADY, replace(seen, mean=[1.9] * 2, end=[1.9] * 2)).action != "back"


def test_losing_a_tenth_of_what_was_clearly_gained_goes_back_once_and_not_twice_in_a_row() -> None:
    """More than 10 % of the 2.0 gained, beyond the noise of the start and that of the probe."""
    assert CONTROLLER.update(STEADY, window(0.0, -0.19)).action != "back"
    back = CONTROLLER.update(STEADY, window(0.0, -0.21))
    assert back.action == "back"
    slower = window(0.0, -0.21, displacement=0.02 / 3)
    again = CONTROLLER.update(back.state, slower)
    assert again.action != "back", "the data are used up"
    assert CONTROLLER.update(again.state, slower).action == "back"
    after_noise = replace(STEADY, last_gap=0.1)
    assert CONTROLLER.update(after_noise, window(0.0, -0.29)).action != "back"
    assert CONTROLLER.update(after_noise, window(0.0, -0.31)).action == "back"
    assert CONTROLLER.update(STEADY, noisy([-0.45, -0.75])).action != "back", "0.6, with an error of 0.15"
    assert CONTROLLER.update(STEADY, noisy([-0.55, -0.85])).action == "back", "three of them and 0.25"
    unclear = replace(STEADY, first_loss=2.5)  # 0.5 gained, with an error of 0.2
    assert CONTROLLER.update(unclear, noisy([-0.8, -1.2])).action != "back"
    assert CONTROLLER.update(STEADY, noisy([-0.8, -1.2])).action == "back"


@pytest.mark.parametrize("mean", [[5.0, 20.0], [1e6, 5e6], [1e6] * 9 + [1e9], [1e200, 1.1e200, 0.9e200]])
def test_an_explosion_is_no_noise(mean: list[float]) -> None:
    """Two losses that exploded lie further apart than three of their standard errors; 1e200 has no square."""
    seen = replace(window(displacement=0.2), previous=[2.0] * len(mean), mean=mean, end=mean)
    for state in (STEADY, GAINED_NOTHING, replace(STEADY, first_loss=1.0)):
        assert CONTROLLER.update(state, seen).action == "back"


def test_a_wrong_way_back_costs_a_bounded_share() -> None:
    """With progress and no noise in every window after it, all is made good at three times t."""
    worked = CONTROLLER.update(STEADY, window(0.0, next_step=101)).state
    back = CONTROLLER.update(worked, replace(window(), mean=[math.nan] * 2)).state
    for after in (back, CONTROLLER.retreat(worked)):
        assert after.value == pytest.approx(worked.value / 3)
        states = train(after, window(0.0, displacement=1e-9), until=310)
        assert states[-1].value >= worked.value


def test_several_wrong_ways_back_are_made_good_too() -> None:
    """What is usual stays what it was, so the rate is drawn back to it once the bound has faded."""
    worked = CONTROLLER.update(replace(STEADY, usual=STEADY.value), window(0.0, next_step=101)).state
    state = worked
    for _ in range(3):
        state = CONTROLLER.retreat(state)
    assert state.value == pytest.approx(worked.value / 27)
    states = train(state, window(0.0, displacement=1e-9), until=1_000_000)
    assert states[-1].value >= worked.value


@given(st.floats(-1, 2), st.sampled_from([2.0**-7, 2.0**-10]), st.sampled_from([300, 3000]))
def test_a_pace_that_rounding_hides_is_measured_again(pace: float, rounding: float, total: int) -> None:
    """Weights lose what of a step is below their rounding. The usual rate comes out as in full precision, or
    as near as they move at that rate; and no rate before is higher."""

    def found(lost: float) -> list[HorizonState]:
        states, step = [HorizonState(1e-5)], 0
        while step < total / 2:
            length, moves = max(10, step // 5), 10**pace * states[-1].value
            moved = (
                length * moves * moves / (moves + lost)
            )  # all of a large step, next to none of a small one
            seen = Window(step + length, step + 2 * length, total, moved, length, [1.0], [1.0], [1.0])
            seen = replace(seen, decides=False, rounding=lost)
            states.append(CONTROLLER.update(states[-1], seen).state)
            step += length
        return states

    exact, rounded = found(0.0), found(rounding)
    usual = exact[-1].usual
    assert usual is not None
    moves = 10**pace * usual
    bound = usual * ((moves + rounding) / moves) ** 2
    assert rounded[-1].usual == pytest.approx(usual, rel=0.5) or usual <= rounded[-1].usual <= bound
    assert max(state.value for state in rounded) <= 2 * bound


def test_what_throws_the_first_window_leaves_no_bound() -> None:
    """A NaN there, after a restart say, tells nothing of the rate: the next window measures the pace."""
    for thrown in (math.nan, 40.0):
        before = CONTROLLER.restart(replace(STEADY, usual=0.3), 1e-5, 0.6)
        after = CONTROLLER.update(before, Window(10, 20, 2000, thrown, 5.5)).state
        assert after.value == pytest.approx(1e-7)
        assert (after.usual, after.ceiling) == (before.usual, before.ceiling)


# ---------------------------------------------------------------------- bounds


@pytest.mark.parametrize("bad", [*BROKEN, window(50.0), window(50.0, 0.0)])
def test_the_rate_never_falls_below_a_thirtieth_of_one_that_made_progress(bad: Window) -> None:
    worked = CONTROLLER.update(replace(STEADY, usual=1e-9), window()).state
    states = train(worked, bad, until=1_000_000)
    assert min(state.value for state in states) == pytest.approx(1e-3 / 30)
    assert CONTROLLER.retreat(states[-1]).value == pytest.approx(1e-3 / 30)


@given(runs(), settings, starts)
def test_the_bounds_hold_after_every_window(
    run: list[Step], options: dict[str, float], start: HorizonState
) -> None:
    before = start
    for step, (action, _, state) in zip(run, play(HorizonController(**options), start, run), strict=True):
        assert state.value >= state.worked / options["least"] * (1 - 1e-9)
        if action == "up":
            assert state.value <= state.ceiling * (1 + 1e-9)
        if action in ("up", "down", "hold") and before.windows > 0:
            time = math.log(step.window.next_step / step.window.step)
            assert abs(math.log(state.value / before.value)) <= options["growth"] * time + 1e-9
        before = state


@given(st.floats(0, 3))
def test_what_the_schedule_rises_by_itself_is_part_of_the_growth(rise: float) -> None:
    """A smaller factor is then the same learning rate, of all that the state knows of. A schedule that falls
    gives no licence to grow faster."""
    bounds = {"usual": 1e-1, "ceiling": 3e-2, "worked": 1e-3}
    full = replace(STEADY, **bounds)
    risen = full.risen(rise)
    assert {name: getattr(risen, name) * math.exp(rise) for name in bounds} == pytest.approx(bounds)
    assert full.pace is not None
    assert risen.pace == pytest.approx(full.pace * math.exp(rise))
    assert replace(risen, **{name: getattr(full, name) for name in (*bounds, "pace")}) == full
    assert full.risen(-rise) == full
    assert HorizonState(1e-3).risen(rise) == HorizonState(1e-3)
    limit, free = 1.5 * math.log(1.2), replace(STEADY, usual=1.0)
    decision = CONTROLLER.update(free, window(-0.01, rise=rise))
    assert log_change(decision) == pytest.approx(max(0.0, limit - rise))
    assert decision.state.usual == pytest.approx(math.exp(-rise))
    assert log_change(CONTROLLER.update(free, window(-0.01, rise=-rise))) == pytest.approx(limit)


# ---------------------------------------------------------------------- the decay, a retreat, a restart


@given(st.floats(-3, 3), st.floats(-3, 3), st.floats(0.1, 10), st.integers(100, 2000))
def test_the_decay_moves_nothing_but_rolls_back_explosions(
    gap: float, progress: float, times: float, step: int
) -> None:
    """However much is lost: only thrown weights are an explosion, and the last step never goes back."""
    assume(abs(times - 2) > 1e-6 and abs(progress) > 1e-9)
    state = replace(STEADY, gap=0.3, progress=0.2, ceiling=0.5, total_backs=2)
    decision = CONTROLLER.descend(state, window(gap, progress, step=step, displacement=0.02 * times))
    if progress < 0 and times > 2 and step < 2000:
        assert (decision.action, decision.state.total_backs) == ("back", 3)
        assert decision.state.value == decision.state.ceiling == pytest.approx(STEADY.value / 3)
    else:
        assert (decision.action, decision.why) == ("hold", "the schedule decays")
        assert decision.state == replace(state, last_gap=decision.gap)
    assert [decision.gap, decision.progress] == pytest.approx([gap, progress])


@pytest.mark.parametrize("bad", [*BROKEN, window(0.0, -0.5, displacement=5.0)])
def test_the_last_step_never_goes_back(bad: Window) -> None:
    """There is none after it to make good what would be undone; what is handed over is chosen elsewhere."""
    last = CONTROLLER.descend(STEADY, replace(bad, total_steps=100))
    assert (last.action, last.state.value) == ("hold", STEADY.value)
    for total in (None, 101):
        assert CONTROLLER.descend(STEADY, replace(bad, total_steps=total)).action == "back"
