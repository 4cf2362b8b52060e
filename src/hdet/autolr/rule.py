"""The rule: where the learning rate usually is best, and what a window's noise and progress say against it.

A window of training leaves three points behind: the mean of the window before, p; its own mean, m; and its
last iterate, e. On batches not trained on,

    progress = L(p) − L(m)      what the averaged path gained in one window,
    gap      = L(e) − L(m)      noise that averaging has removed, and the final decay will,
    lag      = gap / progress   how many windows the noise throws the iterate back.

The end alone is biased down and the mean alone is blind to too high a learning rate; their ratio is neither.
A lag far below what is tolerated says that the learning rate limits progress, a lag above it that noise
does. How much is tolerated follows from how fast the weights travel, relative to their own norm and to the
length of the run: slow weights may be noisy, fast ones may not. What nothing is seen of is drawn to the rate
that is usual for such weights (:mod:`hdet.autolr.prior`). No torch, no I/O; float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hdet.autolr.choice import mean_of, standard_error
from hdet.autolr.prior import usual_rate

__all__ = ["DECAYS", "HorizonController", "HorizonDecision", "HorizonState", "Window"]

Action = Literal["scale", "up", "down", "hold", "back"]

#: Why nothing moves in the decay; reports match this sentence.
DECAYS = "the schedule decays"
#: A relative displacement below this is lost in rounding; then the next window tries a hundred times more.
_LEAST_DISPLACEMENT = 1e-6
#: Weights that moved further than their own norm in the first window have diverged: back, and a hundredth.
_MOST_DISPLACEMENT = 1.0
_BLIND_STEP = 100.0
#: Of weights in bfloat16 or float16 a part of every step is rounded away until they move by so many times
#: their rounding; the pace seen until then is too low, and the rate that follows from it too high.
_ROUNDED = 8.0
#: So often the learning rate is raised for weights that do not move; then they are taken to have no gradient.
_MAX_BLIND = 6
#: Without an end in sight the run is taken to be at this share of its length.
_OPEN_ENDED_SHARE = 0.15
#: A relative change of the learning rate that is none.
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Window:
    """What one window showed.

    Args:
        step: t, steps taken at its end.
        next_step: t′, where the next window ends.
        total_steps: S, or None while it is not known.
        displacement: ‖m − p‖ / ‖p‖, every tensor scaled by its own size.
        steps_between: from the middle of the window before to that of this one.
        previous, mean: the loss of each probe batch at p and m; not read in the first window, and empty there
            unless others than these weights were compared.
        end: the loss at e, of the same batches, or of those that ``mean_there`` has the loss at m of.
        best: the loss at the best m so far, on the batches of ``mean``; p's where it is not known.
        rise: how much the schedule itself rose over the window, as a logarithm.
        explained: by how much the loss changed because other hyperparameters were moved: no progress of the
            learning rate's.
        unit: the learning rate that a factor of 1 stands for.
        before: steps that were taken before t began to count: by the search that a restart ended.
        decides: whether the probe has more than one sample.
        rounding: of weights with less than float32's precision, their relative rounding; of others 0.
    """

    step: int
    next_step: int
    total_steps: int | None
    displacement: float
    steps_between: float
    previous: Sequence[float] = ()
    mean: Sequence[float] = ()
    end: Sequence[float] = ()
    mean_there: Sequence[float] = ()
    best: Sequence[float] = ()
    rise: float = 0.0
    explained: float = 0.0
    unit: float = 1.0
    before: int = 0
    decides: bool = True
    rounding: float = 0.0

    @property
    def share(self) -> float:
        """t/S."""
        return _OPEN_ENDED_SHARE if self.total_steps is None else self.step / self.total_steps

    @property
    def speed(self) -> float:
        """v: by how much of their own norm the weights would move in the whole run at this pace."""
        return self.displacement * (self.step / self.share) / self.steps_between


@dataclass(frozen=True, slots=True)
class HorizonState:
    """What is remembered between two windows.

    ``value`` is the factor on the schedule, ``usual`` the one it is drawn to; ``pace`` the speed that a unit
    of it gave the weights so far; ``ceiling`` is what it is not raised above after a retreat or a rollback;
    ``worked`` is the highest that made progress. ``first_loss`` is where the judged windows began;
    ``fine_tuning`` is the share of the usual rate that suits these weights, below 1 for trained ones."""

    value: float
    usual: float | None = None
    windows: int = 0
    first_loss: float | None = None
    gap: float | None = None
    progress: float | None = None
    last_gap: float = 0.0
    backs: int = 0
    total_backs: int = 0
    blind: int = 0
    pace: float | None = None
    ceiling: float = math.inf
    worked: float = 0.0
    fine_tuning: float = 1.0

    def risen(self, rise: float) -> HorizonState:
        """Where the schedule rises by itself, a smaller factor gives the same learning rate as before."""
        down = math.exp(-max(rise, 0.0))
        return replace(
            self,
            usual=None if self.usual is None else down * self.usual,
            ceiling=down * self.ceiling,
            worked=down * self.worked,
            pace=None if self.pace is None else self.pace / down,
        )


@dataclass(frozen=True, slots=True)
class HorizonDecision:
    """The new state, what was done, and the numbers it rests on."""

    state: HorizonState
    action: Action
    speed: float
    gap: float = math.nan
    progress: float = math.nan
    lag: float = math.nan
    tolerated: float = math.nan
    why: str = ""


@dataclass(frozen=True, slots=True)
class HorizonController:
    """Moves a factor on a schedule from what windows of training show.

    With t the steps taken, t′ the end of the next window, S the whole run, v the relative speed, η the
    learning rate and η₀ the usual one:

        c        = tolerance / (v·√(t/S))
        evidence = clip((c − lag)/c, −1, 1), 0 where it is not larger than its error
        Δ log η  = log(t′/t) · clip(growth·evidence + pull·log(η₀/η), −growth, growth)

    So a rate that nothing speaks against goes to the usual one, and evidence carries it away from there, by
    growth/pull at most. There is none before something has clearly been learnt, and none for a higher rate
    where progress is not larger than its error; a lag is reckoned with no less progress than that.

    Args:
        tolerance: c at the end of a run whose weights travel by their own norm.
        growth: the learning rate grows, and shrinks, at most like t^growth: a warm-up of its own.
        pull: how strongly the usual rate draws, against ``growth`` for all the evidence there can be.
        start_speed: v in the second window.
        memory: weight of the windows before in the pooled gap and progress, in [0, 1).
        thrown: weights that move so many times as far as a unit of rate has moved them before were thrown.
        lost: what a window may lose, as a share of all that was gained.
        slower: after a rollback or a retreat the rate is divided by this, and bounded by that; the bound
            grows in proportion to the steps taken.
        least: outside the decay the rate never falls below one that made progress by more than this factor.

    >>> controller = HorizonController()
    >>> state = HorizonState(1e-3, usual=1e-3, windows=9, first_loss=4.0)
    >>> seen = Window(step=100, next_step=120, total_steps=2000, displacement=0.02, steps_between=18,
    ...               previous=[2.0], mean=[1.9], end=[1.92])
    >>> decision = controller.update(state, seen)
    >>> decision.action, round(decision.lag, 2), round(decision.tolerated, 1)
    ('up', 0.2, 6.0)
    """

    tolerance: float = 3.0
    growth: float = 1.5
    pull: float = 0.8
    start_speed: float = 2.0
    memory: float = 0.5
    thrown: float = 2.0
    lost: float = 0.1
    slower: float = 3.0
    least: float = 30.0

    def __post_init__(self) -> None:
        for name in ("tolerance", "growth", "start_speed"):
            value = getattr(self, name)
            if not (_is_number(value) and math.isfinite(value) and value > 0):
                raise ValueError(f"HorizonController: {name} must be a finite number > 0, got {value!r}")
        for name in ("thrown", "slower", "least"):
            value = getattr(self, name)
            if not (_is_number(value) and math.isfinite(value) and value > 1):
                raise ValueError(f"HorizonController: {name} must be a finite number > 1, got {value!r}")
        for name in ("pull", "lost"):
            value = getattr(self, name)
            if not (_is_number(value) and math.isfinite(value) and value >= 0):
                raise ValueError(f"HorizonController: {name} must be a finite number >= 0, got {value!r}")
        if not (_is_number(self.memory) and 0 <= self.memory < 1):
            raise ValueError(f"HorizonController: memory must be in [0, 1), got {self.memory!r}")

    def update(self, state: HorizonState, window: Window) -> HorizonDecision:
        """One window: the state after it, with the factor for the next."""
        if not window.mean or state.windows == 0:
            return self._first(state, window)
        gaps, gains, speed = _gaps(window), _gains(window), window.speed
        gap, progress = mean_of(gaps), mean_of(gains)
        first = mean_of(window.previous) if state.first_loss is None else state.first_loss
        state = replace(state.risen(window.rise), windows=state.windows + 1, first_loss=first)
        if self._exploded(state, window):
            return self._back(state, speed, gap, progress)
        if window.rounding > 0:  # the faster weights travel, the less of it is rounded away
            state = replace(state, usual=_usual(state, window))
        gap, progress = self._pool(state.gap, gap), self._pool(state.progress, progress)
        error = standard_error(gains)
        progresses = window.decides and progress > error  # what is not larger than its error is none
        state = replace(
            state,
            gap=gap,
            progress=progress,
            last_gap=mean_of(gaps),
            backs=0,
            pace=self._pool(state.pace, speed / state.value),
            worked=max(state.worked, state.value) if progresses else state.worked,
        )
        tolerated = self.tolerance / math.sqrt(window.share) / max(speed, 1e-12)
        lag = _ratio(gap, max(progress, error))
        seen = HorizonDecision(state, "hold", speed, gap, progress, lag, tolerated)
        evidence, why = min(max((tolerated - lag) / tolerated, -1.0), 1.0), ""
        if not window.decides:
            evidence, why = 0.0, "one sample"
        elif not first - min(mean_of(window.best or window.previous), mean_of(window.mean)) > 3 * error:
            # A loss that has never fallen says nothing of the rate: the probe may be of another kind.
            evidence, why = 0.0, "nothing learnt"
        elif not _is_significant(gaps, gains, tolerated):
            evidence, why = 0.0, "not significant"
        elif evidence > 0 and not progresses:
            evidence, why = 0.0, "no progress"
        return self._move(replace(seen, why=why), window, evidence)

    def _move(self, seen: HorizonDecision, window: Window, evidence: float) -> HorizonDecision:
        """By the evidence, and toward what is usual, within the bounds."""
        state, time = seen.state, math.log(window.next_step / window.step)
        drawn = 0.0 if state.usual is None else self.pull * math.log(state.usual / state.value)
        change = time * min(max(self.growth * evidence + drawn, -self.growth), self.growth)
        if change > 0:
            change = max(0.0, change - max(window.rise, 0.0))
        value = state.value * math.exp(change)
        # Every window below it that does not go back is evidence that it may have been an accident.
        grown = (window.before + window.next_step) / (window.before + window.step)
        state = replace(state, ceiling=state.ceiling * grown)
        if value > state.value:
            value = max(state.value, min(value, state.ceiling))
        value = max(value, min(state.value, state.worked / self.least))
        if math.isclose(value, state.value, rel_tol=_ROUNDING):  # at a bound: rounding is no change
            value = state.value
        action: Action = "up" if value > state.value else "down" if value < state.value else "hold"
        return replace(seen, state=replace(state, value=value), action=action)

    def descend(self, state: HorizonState, window: Window) -> HorizonDecision:
        """One window of the decay: the factor stays, unless there is a rollback, or no rate is known yet."""
        if state.windows == 0:
            return self._first(state, window)
        if not window.mean:
            return HorizonDecision(state, "hold", window.speed, why=DECAYS)
        gap, progress, state = mean_of(_gaps(window)), mean_of(_gains(window)), state.risen(window.rise)
        if window.step != window.total_steps and self._exploded(state, window, decays=True):
            return self._back(state, window.speed, gap, progress)
        state = replace(state, last_gap=gap, backs=0)
        return HorizonDecision(state, "hold", window.speed, gap, progress, why=DECAYS)

    def retreat(self, state: HorizonState, *, slower: bool = True) -> HorizonState:
        """From the best weights on; ``slower``: at a smaller rate, which is its bound."""
        state = replace(state, gap=None, progress=None, last_gap=0.0)
        if not slower:
            return state
        value = self._slower(state)
        return replace(state, value=value, ceiling=min(state.ceiling, value))

    def restart(
        self, state: HorizonState, first: float, at_best: float, *, slower: bool = True
    ) -> HorizonState:
        """From the beginning, below the rate that led to the best; ``slower``: below a third of it."""
        ceiling = at_best / self.slower if slower else at_best
        usual = ceiling if state.usual is None else min(state.usual, ceiling)
        return HorizonState(first, usual=usual, ceiling=ceiling)

    def _slower(self, state: HorizonState) -> float:
        return max(state.value / self.slower, min(state.value, state.worked / self.least))

    def _first(self, state: HorizonState, window: Window) -> HorizonDecision:
        """The first window runs at next to nothing: it tells how far a unit of learning rate carries."""
        if not window.displacement <= _MOST_DISPLACEMENT:  # or not a number
            # No bound stays: what one step threw, or a NaN, says little of the rate.
            state = _counted(replace(state, value=state.value / _BLIND_STEP))
            return HorizonDecision(
                state, "back", window.speed, why="the weights moved further than their own norm"
            )
        if not window.displacement > _LEAST_DISPLACEMENT:
            if state.blind >= _MAX_BLIND:
                if state.blind == _MAX_BLIND:  # back to where it began: a gradient may yet come
                    state = replace(
                        state, value=state.value / _BLIND_STEP**state.blind, blind=state.blind + 1
                    )
                return HorizonDecision(state, "hold", window.speed, why="does not move")
            state = replace(state, value=state.value * _BLIND_STEP, blind=state.blind + 1, backs=0)
            return HorizonDecision(state, "scale", window.speed, why="hardly moved")
        usual = _usual(state, window)
        fast = state.value * self.start_speed / window.speed
        value = min(fast, usual, state.ceiling)
        if window.displacement <= _ROUNDED * window.rounding and value > 2 * state.value:
            value = min(value, state.value * _BLIND_STEP)
            return HorizonDecision(
                replace(state, value=value, backs=0), "scale", window.speed, why="rounded away"
            )
        state = replace(state, value=value, usual=usual, windows=state.windows + 1, backs=0)
        return HorizonDecision(state, "scale", window.speed)

    def _back(self, state: HorizonState, speed: float, gap: float, progress: float) -> HorizonDecision:
        """To the window's start, at a smaller rate."""
        value = self._slower(state)
        state = replace(state, value=value, ceiling=min(state.ceiling, value), gap=None, progress=None)
        state = _counted(state)
        return HorizonDecision(state, "back", speed, gap, progress, why="the loss rose along the window")

    def _exploded(self, state: HorizonState, window: Window, *, decays: bool = False) -> bool:
        """Not finite; or L(m) above L(p) by more than noise explains, that of the probe and of the window's
        start, and either the weights were thrown or much of what was clearly gained is lost.

        A loss that rises while nothing was gained and the weights travel as before is no explosion: the
        probe's data are of another kind, say, and going back would not help. Nor is one that goes on rising
        after a rollback, or in the decay: the data are used up.
        """
        # Weights that no probe batch uses may have blown up although every loss is finite.
        if not all(map(math.isfinite, (window.speed, *window.mean, *window.end))):
            return True
        if not window.decides:
            return False
        rises = [m - p for m, p in zip(window.mean, window.previous, strict=True)]
        error, start = standard_error(rises), max(state.last_gap, 0.0)
        gained = 0.0 if state.first_loss is None else state.first_loss - mean_of(window.previous)
        rise = mean_of(rises) - 3 * error - start
        # Where every batch lost more than was ever gained, that they disagree by how much is no excuse.
        if not (rise > 0 or min(rises) > max(gained, 0.0) + start):
            return False
        if state.pace is None:
            thrown = window.displacement > _MOST_DISPLACEMENT
        else:
            thrown = window.speed > self.thrown * state.pace * state.value
        learnt = gained > 3 * error
        return thrown or (learnt and rise > self.lost * gained and state.backs == 0 and not decays)

    def _pool(self, before: float | None, now: float) -> float:
        return now if before is None else self.memory * before + (1 - self.memory) * now


def _usual(state: HorizonState, window: Window) -> float:
    """The factor that is usual at the pace of this window, of these weights, and no more than before."""
    pace = window.displacement / window.steps_between / (state.value * window.unit)
    usual = state.fine_tuning * usual_rate(pace) / window.unit if 0 < pace < math.inf else math.inf
    return usual if state.usual is None else min(usual, state.usual)


def _counted(state: HorizonState) -> HorizonState:
    return replace(state, backs=state.backs + 1, total_backs=state.total_backs + 1)


def _is_significant(gaps: Sequence[float], gains: Sequence[float], tolerated: float) -> bool:
    """Three paired batches at least make a standard error; with fewer every difference counts."""
    if len(gains) < 3:
        return True
    if len(gaps) != len(gains):
        return abs(mean_of(gaps) - tolerated * mean_of(gains)) >= tolerated * standard_error(gains)
    excess = [g - tolerated * p for g, p in zip(gaps, gains, strict=True)]
    return abs(mean_of(excess)) >= standard_error(excess)


def _gaps(window: Window) -> list[float]:
    """Batch by batch: the same samples at both points, so most of their noise cancels."""
    return [e - m for e, m in zip(window.end, window.mean_there or window.mean, strict=True)]


def _gains(window: Window) -> list[float]:
    """Beyond the best so far: what a recovery wins back is none, nor what others have moved."""
    best = window.best or window.previous
    return [b + window.explained - m for b, m in zip(best, window.mean, strict=True)]


def _ratio(gap: float, progress: float) -> float:
    if progress > 0:
        return gap / progress
    return math.inf if gap > 0 else 0.0


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
