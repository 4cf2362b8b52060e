"""The joint controller: the replicas' losses are regressed on all hyperparameters together.

With x_rh the distance of replica r's value from the base, along the coordinate of hyperparameter h,
``L_r = c + Σ_h g_h·x_rh + noise`` is fitted by least squares. Unlike a vote for each hyperparameter by
itself (Eq. 4–6), this does not credit one with what another did, and the residuals say how far a slope can be
trusted: nothing moves that is not significant, and the spread becomes as wide as it takes to see something.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

__all__ = [
    "AxisState",
    "Estimate",
    "Fit",
    "RegressionController",
    "RegressionDecision",
    "RegressionState",
    "fit",
]

#: The noise of the losses changes slowly: it is pooled over about ten syncs.
_NOISE_MEMORY = 0.9
#: A round's own slope that is so many of its errors away from 0 is no noise.
_CONTRADICTION = 3.0
#: How far above the median a loss may be, in units of the usual deviation.
_LOUDEST = 5.0
#: The square of a larger loss is no float any more.
_TOO_LARGE = 1e150
_SINGULAR = 1e-9
#: A value stays within so many of its first spreads of where it was last certain, by so many errors of all
#: slopes since. Moves that each follow one significant round would wander without an end where there is no
#: effect at all: one round in three is significant by chance.
_LEASH, _CERTAIN = 2.0, 3.0


@dataclass(frozen=True, slots=True)
class AxisState:
    """What is remembered of one hyperparameter: its spread, and the evidence of past rounds, fading. A saved
    state has the fields in this order.

    With the weights w_k = φ^age/var_k of past slopes g_k: ``information`` = Σ w_k, ``evidence`` = Σ w_k·g_k,
    and ``information_squared`` = Σ φ^age·w_k gives the variance of their mean; all in units of the noise.
    """

    spread: float
    narrowest: float
    widest: float
    information: float = 0.0
    evidence: float = 0.0
    information_squared: float = 0.0
    #: The sign of the last significant slope.
    direction: int = 0
    #: The last round's own slope and its variance in units of the noise.
    last: tuple[float, float] | None = None
    #: How far the value is from where it was last certain, and all evidence since, none of it fading.
    away: float = 0.0
    information_since: float = 0.0
    evidence_since: float = 0.0


@dataclass(frozen=True, slots=True)
class RegressionState:
    """All hyperparameters, and the noise that they share: a sum of squares and its degrees of freedom."""

    axes: tuple[AxisState, ...]
    noise: float = 0.0
    freedom: float = 0.0

    def to_rows(self) -> list[list[float | None]]:
        """Plain numbers, for a checkpoint."""
        rows: list[list[float | None]] = [[self.noise, self.freedom]]
        for *first, direction, last, away, information, evidence in map(astuple, self.axes):
            rows.append([*first, float(direction), *(last or (None, None)), away, information, evidence])
        return rows

    @classmethod
    def from_rows(cls, rows: Sequence[Sequence[float | None]]) -> RegressionState:
        """The state that :meth:`to_rows` wrote."""
        (noise, freedom), *others = rows
        axes = []
        for row in others:
            *first, direction, slope, variance, away, information, evidence = row
            last = None if slope is None else (slope, variance)
            values: list[Any] = [*first, int(direction or 0), last, away, information, evidence]
            axes.append(AxisState(*values))
        return cls(tuple(axes), noise or 0.0, freedom or 0.0)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is known of one hyperparameter: the slope of the loss along its coordinate, and its error.

    ``move`` is by how much the base shall go, along the coordinate; NaN where nothing is known.
    """

    slope: float
    error: float
    move: float


@dataclass(frozen=True, slots=True)
class RegressionDecision:
    """What one update saw and did; ``why`` is empty unless it could not see anything.

    ``capped`` are the replicas whose loss counts for less than it was.
    """

    state: RegressionState
    estimates: tuple[Estimate, ...]
    capped: tuple[int, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Fit:
    """Least squares: slopes, their variances in units of the noise, and what is left over."""

    slopes: tuple[float, ...]
    variances: tuple[float, ...]
    residual: float
    freedom: int


@dataclass(frozen=True, slots=True)
class RegressionController:
    """Moves all hyperparameters down the slope of the loss, as far as it is known.

    With t = slope / standard error, pooled over past rounds: below ``significance`` nothing moves, and the
    spread widens; else the base moves by ``spread · min(1, |t| / full_step)``. Where a significant slope has
    turned its sign the value sought lies between: the spread narrows, and stays within what it was there.
    A replica whose loss is out of all proportion, or no number, speaks against its values, but no louder
    than others usually do; where one was lost altogether the spreads narrow. What has no effect stays within
    two of its first spreads, unless all rounds together are three errors away from none.

    Args:
        memory: φ in [0, 1), the weight of a round against the one after it.
        significance: the ``|t|`` from which on a slope counts.
        full_step: the ``|t|`` from which on a move is as long as the spread.
        reach: the spread stays within its start divided, and multiplied, by so much; 1 keeps it fixed.

    >>> controller = RegressionController()
    >>> state = controller.start([0.5])
    >>> decision = controller.update(state, losses=[2.0, 1.0, 2.1, 1.1], offsets=[(-0.5, 0.5, -0.5, 0.5)])
    >>> decision.estimates[0].slope, decision.estimates[0].move  # higher values did better: up
    (-1.0, 0.5)
    """

    memory: float = 0.6
    significance: float = 1.0
    full_step: float = 2.0
    reach: float = 4.0

    widen = 1.2
    narrow = 0.6

    def __post_init__(self) -> None:
        for name, least, below in (
            ("memory", 0.0, 1.0),
            ("significance", 0.0, math.inf),
            ("full_step", self.significance, math.inf),
            ("reach", 1.0, math.inf),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value < below:
                above = "" if math.isinf(below) else f" and below {below:g}"
                raise ValueError(
                    f"RegressionController: {name} must be at least {least:g}{above}, got {value!r}"
                )
        if self.full_step <= 0:
            raise ValueError(f"RegressionController: full_step must be above 0, got {self.full_step!r}")

    def start(self, spreads: Sequence[float], widest: Sequence[float] | None = None) -> RegressionState:
        """Nothing is known yet. ``widest`` bounds a spread where the hyperparameter does."""
        limits = widest or [math.inf for _ in spreads]
        return RegressionState(
            tuple(
                AxisState(spread, spread / self.reach, min(spread * self.reach, max(spread, limit)))
                for spread, limit in zip(spreads, limits, strict=True)
            )
        )

    def update(
        self, state: RegressionState, *, losses: Sequence[float], offsets: Sequence[Sequence[float]]
    ) -> RegressionDecision:
        """One sync: replica r ran ``offsets[h][r]`` away from each base and came to ``losses[r]``."""
        heard, capped = _cap(losses, _deviation(state))
        explored = [h for h, column in enumerate(offsets) if len(set(column)) > 1]
        fitted = fit([offsets[h] for h in explored], heard) if heard else None
        lost = any(not math.isfinite(loss) for loss in losses)
        if fitted is None:
            unknown = tuple(Estimate(math.nan, math.nan, 0.0) for _ in offsets)
            known = sum(map(math.isfinite, losses))
            why = f"{known} replicas do not separate {len(explored)} hyperparameters: nothing moves"
            narrower = replace(state, axes=tuple(self._narrowed(axis, lost) for axis in state.axes))
            return RegressionDecision(narrower, unknown, capped, why if explored else "")
        state = _with_noise(state, fitted, explored)
        deviation = _deviation(state)
        axes = list(state.axes)
        estimates = [Estimate(math.nan, math.nan, 0.0) for _ in offsets]
        for i, h in enumerate(explored):
            axis = self._remember(axes[h], fitted.slopes[i], fitted.variances[i], deviation)
            axis, estimates[h] = self._judge(axis, deviation, state.freedom)
            axes[h] = self._narrowed(axis, lost)
        return RegressionDecision(replace(state, axes=tuple(axes)), tuple(estimates), capped)

    def _narrowed(self, axis: AxisState, lost: bool) -> AxisState:
        """Where a replica was lost its values were too far out for somebody."""
        return replace(axis, spread=max(axis.narrowest, axis.spread * self.narrow)) if lost else axis

    def _remember(self, axis: AxisState, slope: float, variance: float, deviation: float) -> AxisState:
        """Pool a round's slope with those before, by precision and age.

        What clearly contradicts them is no noise: the value has passed its best, or what is best has
        changed, and the rounds before are forgotten.
        """
        weight = 1 / variance
        certain = abs(slope) >= _CONTRADICTION * deviation * math.sqrt(variance)
        memory = 0.0 if certain and slope * axis.evidence < 0 else self.memory
        return replace(
            axis,
            information=memory * axis.information + weight,
            evidence=memory * axis.evidence + weight * slope,
            information_squared=memory**2 * axis.information_squared + weight,
            last=(slope, variance),
            information_since=axis.information_since + weight,
            evidence_since=axis.evidence_since + weight * slope,
        )

    def _judge(self, axis: AxisState, deviation: float, freedom: float) -> tuple[AxisState, Estimate]:
        slope = axis.evidence / axis.information
        error = deviation * math.sqrt(axis.information_squared) / axis.information
        if math.isnan(error):  # as many replicas as unknowns: the noise shows from the second round on
            return axis, Estimate(slope, math.nan, 0.0)
        certainty = abs(slope) / error if error > 0 else math.inf if slope else 0.0
        if certainty < self.significance:
            return replace(axis, spread=min(axis.spread * self.widen, axis.widest)), Estimate(
                slope, error, 0.0
            )
        direction = 1 if slope > 0 else -1
        move = -direction * axis.spread * min(1.0, certainty / self.full_step)
        if direction == -axis.direction:
            widest = max(axis.narrowest, axis.spread)
            axis = replace(axis, spread=max(axis.narrowest, axis.spread * self.narrow), widest=widest)
        # Three errors that few residuals tell are more of them: by Student's law, near enough.
        certain = _CERTAIN * (1 + 4 / freedom) * deviation
        axis, move = self._leashed(replace(axis, direction=direction), move, certain)
        return axis, Estimate(slope, error, move)

    def _leashed(self, axis: AxisState, move: float, certain: float) -> tuple[AxisState, float]:
        """As far as the leash goes; beyond it where all rounds since speak for it together."""
        limit = _LEASH * self.reach * axis.narrowest
        away = axis.away + move
        if abs(away) > limit:
            enough = certain * math.sqrt(axis.information_since)
            if -math.copysign(1.0, away) * axis.evidence_since >= enough:
                return replace(axis, away=0.0, information_since=0.0, evidence_since=0.0), move
            away = math.copysign(limit, away)
        return replace(axis, away=away), away - axis.away


def fit(columns: Sequence[Sequence[float]], losses: Sequence[float]) -> Fit | None:
    """Least squares with an intercept; None where the columns do not determine every slope.

    >>> found = fit([(-1.0, 1.0, -1.0, 1.0), (-1.0, -1.0, 1.0, 1.0)], [1.0, 3.0, 6.0, 8.0])
    >>> found.slopes, found.freedom
    ((1.0, 2.5), 1)
    """
    count = len(losses)
    if not columns or count < len(columns) + 1:
        return None
    target = _centred(losses)
    centred = [_centred(column) for column in columns]
    norms = [math.sqrt(_dot(column, column)) for column in centred]
    sizes = [max(map(abs, column)) for column in columns]
    if any(norm <= _SINGULAR * size for norm, size in zip(norms, sizes, strict=True)):
        return None  # constant, but for rounding
    # Columns of unit length, so that what is singular does not depend on units.
    unit = [[x / norm for x in column] for column, norm in zip(centred, norms, strict=True)]
    inverse = _inverse([[_dot(a, b) for b in unit] for a in unit])
    if inverse is None:
        return None
    along = [_dot(column, target) for column in unit]
    coefficients = [_dot(row, along) for row in inverse]
    fitted = [
        math.fsum(c * column[r] for c, column in zip(coefficients, unit, strict=True)) for r in range(count)
    ]
    left = [y - f for y, f in zip(target, fitted, strict=True)]
    return Fit(
        slopes=tuple(c / norm for c, norm in zip(coefficients, norms, strict=True)),
        variances=tuple(inverse[i][i] / norm**2 for i, norm in enumerate(norms)),
        residual=_dot(left, left),
        freedom=count - 1 - len(columns),
    )


def _cap(losses: Sequence[float], deviation: float) -> tuple[list[float], tuple[int, ...]]:
    """The losses, none so far above the middle that it drowns the others, and who would have been.

    To leave such replicas out would be to forget what is known against their values.

    >>> _cap([1.0, 1.1, 0.9, 1.0, 1e6, math.nan], deviation=0.1)
    ([1.0, 1.1, 0.9, 1.0, 1.5, 1.5], (4, 5))
    """
    finite = [loss for loss in losses if abs(loss) < _TOO_LARGE]
    if len(finite) < 2:
        return [], tuple(r for r, loss in enumerate(losses) if not abs(loss) < _TOO_LARGE)
    middle = statistics.median(finite)
    usual = statistics.median(abs(loss - middle) for loss in finite)
    # Before anything is known of the noise, only what is many times the others counts as out of proportion.
    height = _LOUDEST * max(usual, abs(middle) if math.isnan(deviation) else deviation) or 1.0
    capped = tuple(r for r, loss in enumerate(losses) if not -_TOO_LARGE < loss <= middle + height)
    return [middle + height if r in capped else loss for r, loss in enumerate(losses)], capped


def _deviation(state: RegressionState) -> float:
    """The standard deviation of a replica's loss; NaN while nothing is known of it."""
    return math.sqrt(state.noise / state.freedom) if state.freedom > 0 else math.nan


def _with_noise(state: RegressionState, fitted: Fit, explored: Sequence[int]) -> RegressionState:
    """Pool the residuals. Where there are none, slopes that differ from round to round show the noise."""
    squares, freedom = fitted.residual, float(fitted.freedom)
    if fitted.freedom == 0:
        squares = 0.0
        for i, h in enumerate(explored):
            if (last := state.axes[h].last) is not None:
                squares += (fitted.slopes[i] - last[0]) ** 2 / (fitted.variances[i] + last[1])
                freedom += 1
    return replace(
        state,
        noise=_NOISE_MEMORY * state.noise + squares,
        freedom=_NOISE_MEMORY * state.freedom + freedom,
    )


def _centred(values: Sequence[float]) -> list[float]:
    mean = math.fsum(values) / len(values)
    return [value - mean for value in values]


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def _inverse(matrix: Sequence[Sequence[float]]) -> list[list[float]] | None:
    """Gauss and Jordan's, with pivots; None for a matrix that is singular."""
    n = len(matrix)
    rows = [[*row, *(float(i == j) for j in range(n))] for i, row in enumerate(matrix)]
    for i in range(n):
        pivot = max(range(i, n), key=lambda r: abs(rows[r][i]))
        if abs(rows[pivot][i]) < _SINGULAR:
            return None
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for r in range(n):
            if r != i and rows[r][i]:
                factor = rows[r][i]
                rows[r] = [x - factor * y for x, y in zip(rows[r], rows[i], strict=True)]
    return [row[n:] for row in rows]
