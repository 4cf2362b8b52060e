"""Real counterfactuals: for a window every replica trains by itself, on its own gradients, at its own rate.

What its window mean came to, beside the mean of all, says whether a higher or a lower rate had done better.
The windows, their points and the way back are the horizon's, at the weights' mean over all replicas. What is
new is the slope of the replicas' own losses over log η, pooled over windows, and that the horizon heeds it.
With t = slope / error:

    t > 1     the learning rate falls, as fast as the horizon may move it,
    t < −1    it rises where, and as far as, the horizon would raise it,
    else      it stays.

Each replica is measured on probe batches of its own, and so is the mean of all on the same ones: what counts
is the difference. The other way would be to ask all replicas on the same batches. But replicas that lie along
one line, as those with different learning rates partly do, err alike on a batch, so that N of them know no
more of it than one; on batches of their own they see N times as many, and the mean of all is measured there
for the horizon anyway. docs/log.md has what either errs by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from hdet.bench.fan_out.noise import NotedController
from hdet.best import Handed
from hdet.controllers import (
    HorizonController,
    HorizonDecision,
    HorizonState,
    RegressionController,
    RegressionState,
    Window,
)
from hdet.engine.cycle import Cycle
from hdet.hyperparameters import Axis, LearningRate
from hdet.policies import Horizon
from hdet.policies.base import Context, Decided, Seen
from hdet.probes import Probe
from hdet.replicas import replicas_of
from hdet.schedules import SHAPES, DrawnShape, Windows

__all__ = ["ComparedWindow", "Counterfactual", "CounterfactualController", "CounterfactualLR", "heeded"]

#: How many standard errors make a slope count, and how many of them a move at full length.
_SIGNIFICANT, _FULL = 1.0, 2.0
_MEMORY = 0.5


def heeded(change: float, t: float, limit: float) -> float:
    """The change of log η that a horizon proposes, after what the counterfactuals say.

    >>> [heeded(0.2, t, limit=0.3) for t in (4.0, 0.5, -0.5, -4.0)]
    [-0.3, 0.0, 0.0, 0.2]
    >>> heeded(-0.2, -4.0, limit=0.3), heeded(-0.2, math.nan, limit=0.3)  # nothing was compared
    (0.0, -0.2)
    """
    if math.isnan(t):
        return change
    if t > _SIGNIFICANT:
        return -limit * min(1.0, t / _FULL)
    return max(change, 0.0) if t < -_SIGNIFICANT else 0.0


@dataclass(frozen=True, slots=True)
class ComparedWindow(Window):
    """A window of several replicas: also the slope of their losses over log η, in standard errors."""

    t: float = math.nan


@dataclass(frozen=True, slots=True)
class CounterfactualController(NotedController):
    """A horizon that heeds the slope, once the weights have been brought to speed."""

    def decided(self, state: HorizonState, window: Window) -> HorizonDecision:
        decision = HorizonController.update(self, state, window)
        judged = decision.action in ("up", "down", "hold") and not math.isnan(decision.tolerated)
        if not judged or not isinstance(window, ComparedWindow):
            return decision
        limit = self.growth * math.log(window.next_step / window.step)
        change = heeded(math.log(decision.state.value / state.value), window.t, limit)
        value = state.value * math.exp(change)
        return replace(
            decision,
            state=replace(decision.state, value=value),
            action="up" if change > 0 else "down" if change < 0 else "hold",
        )


class Counterfactual(Horizon):
    """A horizon at the mean of replicas that trained by themselves, and the slope of their own losses."""

    kind = "counterfactual"
    estimates_jointly = True

    def bind(self, axes: Sequence[Axis], context: Context) -> None:
        # It looks at the mean of all alone, where nobody is apart from anybody.
        super().bind(axes, replace(context, diverges=False))
        self._regression = RegressionController(memory=_MEMORY, reach=1.0)
        self._t = math.nan
        #: Of every window in which replicas differed: step, slope and its error.
        self.slopes: list[tuple[int, float, float]] = []

    def start(self, step: int) -> None:
        """Slopes are pooled within a search: one that begins anew does so at rates far from the last."""
        super().start(step)
        self._known: RegressionState = self._regression.start([axis.spread for axis in self.axes])

    def at_own(self) -> Sequence[float | Tensor]:
        """The loss at this replica's own window mean, once there is something to compare."""
        if not self._judges:
            return ()
        with self._context.regularisers_off(), self._trail.at_mean():
            return self.incumbent.keeper.measure()

    def at_mean(self) -> Sequence[float | Tensor]:
        """All that a horizon measures, m being that of all replicas from here on."""
        self._context.replicas.plan_mean(self._trail.mean.tensors)()
        return [*super().at_own(), *super().at_mean()]

    def decide(self, seen: Seen) -> Decided:
        self._t = math.nan
        if self._judges:
            batches = self._probe.choosing
            own, of_all = ([row[:batches] for row in seen.rows], [row[batches:] for row in seen.rows])
            if any(map(any, seen.levels)):
                self._compare(seen, [_apart(a, b) for a, b in zip(own, of_all, strict=True)])
            seen = replace(seen, rows=of_all)
        return super().decide(seen)

    def _compare(self, seen: Seen, losses: Sequence[float]) -> None:
        offsets = [axis.offsets(row) for axis, row in zip(self.axes, seen.levels, strict=True)]
        decision = self._regression.update(self._known, losses=losses, offsets=offsets)
        self._known = decision.state
        found = decision.estimates[0]
        if math.isfinite(found.error):
            self.slopes.append((seen.step, found.slope, found.error))
            self._t = found.slope / found.error if found.error > 0 else math.copysign(math.inf, found.slope)

    def _act(
        self, step: int, windows: Sequence[Window]
    ) -> tuple[list[HorizonDecision], tuple[str, ...], bool]:
        compared = [
            ComparedWindow(**{part.name: getattr(window, part.name) for part in fields(Window)}, t=self._t)
            for window in windows
        ]
        return super()._act(step, compared)


def _apart(own: Sequence[float], of_all: Sequence[float]) -> float:
    """How much worse a replica is than the mean of all, on the same batches."""
    return math.fsum(a - b for a, b in zip(own, of_all, strict=False)) / len(own)


class CounterfactualLR:
    """What AutoLR would be on gradients of one's own: WSD, windows that grow, the best weights handed over.

    It trains to the end also where nothing improves any more. One parameter group.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        probe: Probe,
        total_steps: int,
        spread: float,
        controller: CounterfactualController,
        seed: int,
    ) -> None:
        shape = SHAPES["wsd"](total_steps)
        self._policy = Counterfactual(
            [LearningRate(spread=spread)],
            probe,
            controller,
            Windows(last=shape.search_until),
            patience=3,
        )
        self._cycle = Cycle(
            optimizer,
            [self._policy],
            replicas_of("CounterfactualLR", optimizer, model=probe.model),
            schedule=DrawnShape(optimizer, shape),
            total_steps=total_steps,
            gradients="none",
            model=probe.model,
            seed=seed,
            caller="CounterfactualLR",
        )
        self._total_steps = total_steps

    def step(self) -> Any:
        """Call after ``optimizer.step()``."""
        return self._cycle.step()

    @property
    def slopes(self) -> list[tuple[int, float, float]]:
        """Of every window in which replicas differed: step, slope and its error."""
        return self._policy.slopes

    @property
    def steps(self) -> int:
        """Taken so far."""
        return self._cycle.steps

    @property
    def finished(self) -> bool:
        """Whether this was the last step."""
        return self._cycle.steps == self._total_steps

    def finish_(self) -> Handed | None:
        """Let the model hold the best weights that were seen."""
        return self._policy.incumbent.keeper.hand_over_(standing=False)
