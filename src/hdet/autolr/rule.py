"""The horizon controller: as fast as the final decay can forgive, no faster, and never in a hurry.

A window of training leaves three points behind: the mean of the window before, p; its own mean, m; and its
last iterate, e. On batches not trained on,

    progress = L(p) − L(m)      what the averaged path gained in one window,
    gap      = L(e) − L(m)      noise that averaging has removed, and the final decay will,
    lag      = gap / progress   how many windows the noise throws the iterate back.

The end alone is biased down and the mean alone is blind to too high a learning rate; their ratio is neither.
A lag far below what is tolerated says that the learning rate limits progress, a lag above it that noise
does. How much is tolerated follows from how fast the weights travel, relative to their own norm and to the
length of the run: slow weights may be noisy, fast ones may not. Growth is bounded by a power of the time,
which is a warm-up of its own: what ruins a young network, an older one takes. No torch, no I/O; float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hdet.autolr.choice import mean_of, standard_error

__all__ = ["DECAYS", "HorizonController", "HorizonDecision", "HorizonState", "Window"]

Action = Literal["scale", "up", "down", "hold", "back"]

#: Why nothing moves in the decay; reports match this sentence.
DECAYS = "the schedule decays"
#: Windows that only bring the weights to speed, before any noise is judged.
_SCALING_WINDOWS = 3
_SCALING_STEP = math.log(3.0)
#: A relative displacement below this is lost in rounding; then the next window tries a hundred times more.
_LEAST_DISPLACEMENT = 1e-6
#: Weights that moved further than their own norm in the first window have diverged: back, and a hundredth.
_MOST_DISPLACEMENT = 1.0
_BLIND_STEP = math.log(100.0)
#: So often the learning rate is raised for weights that do not move; then they are taken to have no gradient.
_MAX_BLIND = 6
_BACK = math.log(1 / 3)
#: Before the search has begun any clear rise is rolled back, so often in a row.
_EARLY_BACKS = 3
#: Weights that move so many times as far as a unit of learning rate has moved them so far were thrown.
_THROWN = 2.0
#: Where nothing but drift is seen the end is ahead of the mean by half a window's progress; a young run is
#: like that whatever its learning rate. One that still is after this share of its steps is too slow by far.
_DRIFT, _YOUTH = -0.2, 0.15
#: Progress below this share of all that the search has gained is a standstill even where nothing is noisy.
_STANDSTILL = 1e-3
#: An end so far above where the search began, as a share of what was gained since, has exploded if its gap
#: is so many times that of the window before.
_LOST, _SUDDEN = 0.5, 3.0
#: How close to a value that exploded the factor may grow, and how that value grows with time, as t to this.
_BELOW_CEILING, _CEILING_GROWTH = 0.5, 0.5
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
        displacement: ‖m − p‖ / ‖p‖.
        steps_between: from the middle of the window before to that of this one.
        previous, mean: the loss of each probe batch at p and m; not read in the first window, and empty there
            unless others than these weights were compared.
        end: the loss at e, of the same batches, or of those that ``mean_there`` has the loss at m of.
        best: the loss at the best m so far, on the batches of ``mean``; p's where it is not known.
        rise: how much the schedule itself rose over the window, as a logarithm.
        explained: by how much the loss changed because other hyperparameters were moved: no progress of the
            learning rate's.
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

    ``value`` is the factor on the schedule; ``pace`` the speed that a unit of it gave the weights so far;
    ``ceiling`` a value that they exploded at; ``cap`` one that a restarted search never exceeds.
    ``first_loss`` is where the judged windows began."""

    value: float
    windows: int = 0
    first_loss: float | None = None
    gap: float | None = None
    progress: float | None = None
    last_gap: float = 0.0
    backs: int = 0
    total_backs: int = 0
    blind: int = 0
    pace: float | None = None
    ceiling: float | None = None
    cap: float = math.inf


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

    With t the steps taken, S the whole run and v the relative speed:

        v* = speed / √(t/S),    c = tolerance · v*/v,
        Δ log η = growth · log(t′/t) · clip((c − lag)/c, −1, 1),

    an increase being held back where v would pass ``top_speed`` or a value that exploded, where the schedule
    rises by itself, and where progress, beyond the best so far, is not larger than its error.

    Args:
        tolerance: the lag, in windows, that weights travelling at v* may have.
        growth: the learning rate grows, and shrinks, at most like t^growth; twice that in the exponent where
            a run that is no longer young shows nothing but drift.
        start_speed: v that the first windows bring the weights to.
        speed: v* at the end of the run.
        top_speed: v beyond which the learning rate does not grow: a trust region.
        memory: weight of the windows before in the pooled gap and progress, in [0, 1).
        significance: a difference of gap from c·progress below this many standard errors moves nothing.
        relapse: a loss at m above that at p by more than three standard errors and the noise of the window's
            start explain is a relapse, and rolled back, if the weights were thrown (moved much further than
            before) or if it is this share of the improvement since the search began, and not so again.

    >>> controller = HorizonController()
    >>> state = HorizonState(1e-3, windows=9, first_loss=4.0)
    >>> seen = Window(step=100, next_step=120, total_steps=2000, displacement=0.02, steps_between=18,
    ...               previous=[2.0], mean=[1.9], end=[1.92])
    >>> decision = controller.update(state, seen)
    >>> decision.action, round(decision.lag, 2), round(decision.tolerated, 1)
    ('up', 0.2, 10.1)
    """

    tolerance: float = 2.5
    growth: float = 1.5
    start_speed: float = 2.0
    speed: float = 2.0
    top_speed: float = 16.0
    memory: float = 0.5
    significance: float = 1.0
    relapse: float = 0.05

    def __post_init__(self) -> None:
        for name in ("tolerance", "growth", "start_speed", "speed", "top_speed"):
            value = getattr(self, name)
            if not (_is_number(value) and math.isfinite(value) and value > 0):
                raise ValueError(f"HorizonController: {name} must be a finite number > 0, got {value!r}")
        if not (_is_number(self.memory) and 0 <= self.memory < 1):
            raise ValueError(f"HorizonController: memory must be in [0, 1), got {self.memory!r}")
        for name in ("significance", "relapse"):
            value = getattr(self, name)
            if not (_is_number(value) and math.isfinite(value) and value >= 0):
                raise ValueError(f"HorizonController: {name} must be a finite number >= 0, got {value!r}")

    def update(self, state: HorizonState, window: Window) -> HorizonDecision:
        """One window: the state after it, with the factor for the next."""
        speed = window.speed
        if not window.mean or state.windows == 0:
            return self._scale_blindly(state, window)
        gaps, gains = _gaps(window), _gains(window)
        gap, progress, error = mean_of(gaps), mean_of(gains), standard_error(gains)
        state = replace(state, windows=state.windows + 1)
        if self._relapsed(state, window):
            return self._back(state, speed, _BACK, gap, progress)
        pace = self._pool(state.pace, speed / state.value)
        state = replace(state, last_gap=gap, backs=0, pace=pace)
        if state.windows <= _SCALING_WINDOWS:
            return self._scale(state, speed, gap, progress)

        pooled_gap = self._pool(state.gap, gap)
        pooled_progress = self._pool(state.progress, progress)
        first = state.first_loss if state.first_loss is not None else mean_of(window.previous)
        state = replace(state, gap=pooled_gap, progress=pooled_progress, first_loss=first)
        # Progress that is not larger than its error counts as none; nor does what is left without noise.
        gained = max(first - mean_of(window.mean), 0.0)
        least = max(self.significance * error, _STANDSTILL * gained)
        tolerated = self.tolerance * self.speed / math.sqrt(window.share) / max(speed, 1e-12)
        lag = _ratio(pooled_gap, max(pooled_progress, least))
        seen = HorizonDecision(state, "hold", speed, pooled_gap, pooled_progress, lag, tolerated)
        # Where nothing has been gained at all, and noise does not show either, the learning rate is too small
        # to be judged.
        blind = error > 0 and gained <= 3 * error and pooled_gap <= self.significance * standard_error(gaps)
        if not blind and not self._is_significant(gaps, gains, tolerated):
            return replace(seen, why="not significant")
        limit = self.growth * math.log(window.next_step / window.step)
        if window.share > _YOUTH and lag < _DRIFT and window.rise <= 0:
            limit *= 2
        change = limit * min(max((tolerated - lag) / tolerated, -1.0), 1.0)
        if change > 0:
            stands = progress <= _STANDSTILL * gained and not error > 0
            if stands or pooled_progress <= (-least if blind else least):
                return replace(seen, why="no progress")
            room = math.log(self.top_speed / max(speed, 1e-12))
            if state.ceiling is not None:
                # Every window that makes progress below it is evidence that it may have been an accident.
                grown = (
                    (window.next_step / window.step) ** _CEILING_GROWTH if pooled_progress > least else 1.0
                )
                ceiling = state.ceiling * grown
                seen = replace(seen, state=replace(state, ceiling=ceiling))
                room = min(room, math.log(_BELOW_CEILING * ceiling / state.value))
            change = max(0.0, min(change, room, limit - max(window.rise, 0.0)))
        return _moved(seen, change)

    def descend(self, state: HorizonState, window: Window) -> HorizonDecision:
        """One window of the decay: the factor stays, unless there is a rollback."""
        if not window.mean:
            return HorizonDecision(state, "hold", window.speed, why=DECAYS)
        gap, progress = mean_of(_gaps(window)), mean_of(_gains(window))
        if window.step != window.total_steps and self._relapsed(state, window, decays=True):
            return self._back(state, window.speed, _BACK, gap, progress)
        state = replace(state, last_gap=gap, backs=0)
        return HorizonDecision(state, "hold", window.speed, gap, progress, why=DECAYS)

    def retreat(self, state: HorizonState, *, slower: bool = True) -> HorizonState:
        """From the best weights on; ``slower``: with a smaller factor that does not grow back to what it
        was."""
        state = replace(state, gap=None, progress=None, last_gap=0.0)
        return replace(state, value=state.value * math.exp(_BACK), ceiling=state.value) if slower else state

    def restart(self, first: float, at_best: float, *, slower: bool = True) -> HorizonState:
        """From the beginning, at a learning rate that stays below what led to the best; ``slower``: below a
        third of it."""
        return HorizonState(first, cap=at_best * math.exp(_BACK) if slower else at_best)

    def _scale_blindly(self, state: HorizonState, window: Window) -> HorizonDecision:
        """The first window runs at next to nothing: it tells how far a unit of learning rate carries."""
        if not window.displacement <= _MOST_DISPLACEMENT:  # or not a number
            decision = self._back(state, window.speed, -_BLIND_STEP)
            return replace(decision, why="the weights moved further than their own norm")
        if not window.displacement > _LEAST_DISPLACEMENT:
            if state.blind >= _MAX_BLIND:
                if state.blind == _MAX_BLIND:  # back to where it began: a gradient may yet come
                    value = state.value / math.exp(_BLIND_STEP * state.blind)
                    state = replace(state, value=value, blind=state.blind + 1)
                return HorizonDecision(state, "hold", window.speed, why="does not move")
            state = replace(state, value=state.value * math.exp(_BLIND_STEP), blind=state.blind + 1, backs=0)
            return HorizonDecision(state, "scale", window.speed, why="hardly moved")
        value = min(state.value * self.start_speed / window.speed, state.cap)
        state = replace(state, value=value, windows=state.windows + 1, backs=0)
        return HorizonDecision(state, "scale", window.speed)

    def _scale(self, state: HorizonState, speed: float, gap: float, progress: float) -> HorizonDecision:
        change = math.log(self.start_speed / max(speed, 1e-12))
        change = min(max(change, -_SCALING_STEP), _SCALING_STEP)
        if gap > progress:
            change = min(change, 0.0)
        seen = HorizonDecision(state, "scale", speed, gap, progress, _ratio(gap, progress))
        return replace(_moved(seen, change), action="scale")

    def _back(
        self,
        state: HorizonState,
        speed: float,
        change: float,
        gap: float = math.nan,
        progress: float = math.nan,
    ) -> HorizonDecision:
        ceiling = state.value if state.ceiling is None else min(state.ceiling, state.value)
        state = replace(
            state,
            value=state.value * math.exp(change),
            ceiling=ceiling,
            gap=None,
            progress=None,
            backs=state.backs + 1,
            total_backs=state.total_backs + 1,
        )
        return HorizonDecision(state, "back", speed, gap, progress, why="the loss rose along the window")

    def _relapsed(self, state: HorizonState, window: Window, *, decays: bool = False) -> bool:
        """Not finite, or L(m) above L(p) by more than noise explains: that of the probe, and of the start.

        A loss that rises while the weights travel as before is no explosion: the data are used up, say, and
        going back would not help.
        """
        # Weights that no probe batch uses may have blown up although every loss is finite.
        if not all(map(math.isfinite, (window.speed, *window.mean, *window.end))):
            return True
        rises = [m - p for m, p in zip(window.mean, window.previous, strict=True)]
        start = max(state.last_gap, 0.0)
        gained = 0.0 if state.first_loss is None else max(state.first_loss - mean_of(window.previous), 0.0)
        # In an explosion two batches differ by more than three of their standard errors explain; but where
        # all of them lost more than everything gained so far, no noise of the probe is to blame.
        if min(rises) > gained + start or _lost_at_its_end(state, window):
            return True
        rise = mean_of(rises) - 3 * standard_error(rises) - start
        if not rise > 0:
            return False
        usual = None if state.pace is None else state.pace * state.value * math.exp(max(window.rise, 0.0))
        thrown = usual is not None and window.speed > _THROWN * usual
        # In the decay the weights slow down by themselves, and overfitting is not held up by a retreat.
        share = 0.5 if decays else self.relapse
        # What rises again at a third of the rate, and was not thrown, is no explosion either.
        if state.first_loss is None:
            return state.backs < _EARLY_BACKS
        return thrown or (rise > share * gained and state.backs == 0)

    def _pool(self, before: float | None, now: float) -> float:
        return now if before is None else self.memory * before + (1 - self.memory) * now

    def _is_significant(self, gaps: Sequence[float], gains: Sequence[float], tolerated: float) -> bool:
        """Three paired batches at least make a standard error; with fewer every difference counts."""
        if len(gains) < 3:
            return True
        if len(gaps) != len(gains):
            excess_mean = mean_of(gaps) - tolerated * mean_of(gains)
            return abs(excess_mean) >= self.significance * tolerated * standard_error(gains)
        excess = [g - tolerated * p for g, p in zip(gaps, gains, strict=True)]
        return abs(mean_of(excess)) >= self.significance * standard_error(excess)


def _moved(seen: HorizonDecision, change: float) -> HorizonDecision:
    before = seen.state.value
    value = min(before * math.exp(change), seen.state.cap)
    if math.isclose(value, before, rel_tol=_ROUNDING):  # at its ceiling: rounding is no change
        value = before
    action: Action = "up" if value > before else "down" if value < before else "hold"
    return replace(seen, state=replace(seen.state, value=value), action=action)


def _gaps(window: Window) -> list[float]:
    """Batch by batch: the same samples at both points, so most of their noise cancels."""
    return [e - m for e, m in zip(window.end, window.mean_there or window.mean, strict=True)]


def _gains(window: Window) -> list[float]:
    """Beyond the best so far: what a recovery wins back is none, nor what others have moved."""
    best = window.best or window.previous
    return [b + window.explained - m for b, m in zip(best, window.mean, strict=True)]


def _lost_at_its_end(state: HorizonState, window: Window) -> bool:
    """Whether e is further above where the search began than half of what it gained lies below, all of a
    sudden: the mean of such a window may still look well, but nothing good goes on from its end."""
    gaps = _gaps(window)
    gap = mean_of(gaps)
    sudden = state.last_gap != 0 and gap > _SUDDEN * abs(state.last_gap)
    if state.first_loss is None or not sudden:
        return False
    gained = max(state.first_loss - mean_of(window.best or window.previous), 0.0)
    clear = gap > 3 * standard_error(gaps) or min(gaps) > gained
    return clear and mean_of(window.mean) + gap - state.first_loss > _LOST * gained


def _ratio(gap: float, progress: float) -> float:
    if progress > 0:
        return gap / progress
    return math.inf if gap > 0 else 0.0


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
