"""The published controller (Eq. 4–8): a softmax over the replicas' losses pulls the value towards
the replicas that did better, smoothed by a velocity.

Three things leave the paper's path, and the decision reports them: a replica whose loss is
not finite has no vote; without two different finite losses there is no evidence, and nothing moves but
the decay; and one sync never takes the value below the slowest replica's, so it stays positive.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "ControlState",
    "Decision",
    "SoftmaxController",
    "geometric_decay",
    "literal_decay",
]


@dataclass(frozen=True, slots=True)
class ControlState:
    """What a controller remembers of one hyperparameter between two syncs."""

    value: float
    velocity: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What one update saw and did; ``state`` is all that the next update needs.

    ``weights`` has an entry for every replica (0 for one that was left out), ``delta`` is Δ of Eq. 6.
    The other two tell where the published path was left: replicas without a finite loss, and the value
    that Eq. 7 asked for where it was clamped.
    """

    state: ControlState
    weights: tuple[float, ...]
    delta: float
    left_out: tuple[int, ...] = ()
    clamped_from: float | None = None


@dataclass(frozen=True, slots=True)
class SoftmaxController:
    """Eq. 4–7 in float64.

    With ``η_r = η̄·ρ_r``: ``w = softmax((L̄ − L_r)/σ)``, ``Δ = Σ w_r η_r − mean η_r``,
    ``v ← βv + (1−β)Δ``, ``η̄ ← η̄(1−γ) + λv``.

    Args:
        temperature: σ > 0, in units of the loss, or ``"auto"`` for the standard deviation of the losses.
        momentum: β in [0, 1).
        step_size: λ > 0.
        decay: γ of Eq. 8, the share of the value that each sync takes away (``geometric_decay``); None
            where the value is a factor on a schedule that goes on.

    >>> controller = SoftmaxController(temperature=0.1, momentum=0.0, step_size=1.0)
    >>> decision = controller.update(ControlState(1.0), losses=[2.0, 1.0], multipliers=[0.9, 1.1])
    >>> round(decision.state.value, 4)  # the faster replica did better: up
    1.1
    """

    temperature: float | Literal["auto"] = 0.002
    momentum: float = 0.9
    step_size: float = 0.5
    decay: float | None = None

    def __post_init__(self) -> None:
        sigma = self.temperature
        if sigma != "auto" and not (_is_number(sigma) and math.isfinite(sigma) and sigma > 0):
            raise ValueError(
                f"SoftmaxController: temperature (loss_scale, σ) must be > 0 or 'auto', got {sigma!r}"
            )
        if not (_is_number(self.momentum) and 0 <= self.momentum < 1):
            raise ValueError(
                f"SoftmaxController: momentum (momentum_of_lr, β) must be in [0, 1), got {self.momentum!r}"
            )
        if not (_is_number(self.step_size) and math.isfinite(self.step_size) and self.step_size > 0):
            raise ValueError(
                f"SoftmaxController: step_size (lr_of_lr, λ) must be > 0, got {self.step_size!r}"
            )

    def update(
        self, state: ControlState, *, losses: Sequence[float], multipliers: Sequence[float]
    ) -> Decision:
        """One sync: replica r ran at ``state.value * multipliers[r]`` and saw ``losses[r]``."""
        voters = [r for r, loss in enumerate(losses) if math.isfinite(loss)]
        left_out = tuple(r for r in range(len(losses)) if r not in voters)
        decayed = state.value * (1 - (self.decay or 0.0))
        if len({losses[r] for r in voters}) < 2:
            weights = tuple(1 / len(voters) if r in voters else 0.0 for r in range(len(losses)))
            return Decision(ControlState(decayed, state.velocity), weights, 0.0, left_out)

        weights = self._weights(losses, voters)
        # Eq. 5–6. The unweighted mean is over the voters: a missing replica must not look like evidence.
        weighted = sum(weights[r] * state.value * multipliers[r] for r in voters)
        delta = weighted - sum(state.value * multipliers[r] for r in voters) / len(voters)
        # Eq. 7.
        velocity = self.momentum * state.velocity + (1 - self.momentum) * delta
        value = decayed + self.step_size * velocity
        floor = decayed * min(multipliers)
        if value < floor:
            return Decision(ControlState(floor, velocity), weights, delta, left_out, value)
        return Decision(ControlState(value, velocity), weights, delta, left_out)

    def _weights(self, losses: Sequence[float], voters: Sequence[int]) -> tuple[float, ...]:
        """Eq. 4. Losses are counted from the best one instead of the mean: the softmax stays as it is."""
        best = min(losses[r] for r in voters)
        gaps = {r: min(losses[r] - best, sys.float_info.max) for r in voters}
        sigma = _deviation(list(gaps.values())) if self.temperature == "auto" else self.temperature
        exponentials = {r: math.exp(-gap / sigma) for r, gap in gaps.items()}
        total = sum(exponentials.values())
        return tuple(exponentials.get(r, 0.0) / total for r in range(len(losses)))


def literal_decay(*, div_factor: float, final_div_factor: float, syncs: float) -> float:
    """γ of Eq. 8 as printed, with ``log(f_div/f_final)``: over all syncs it multiplies the value by
    ``f_final/f_div``.

    Where f_div > f_final, that is the residual which is left. Where f_div < f_final, as with OneCycleLR's
    defaults (25 and 1e4), the logarithm is negative, γ < 0, and the value *grows*.

    >>> round((1 - literal_decay(div_factor=25, final_div_factor=5, syncs=10)) ** 10, 6)
    0.2
    >>> round((1 - literal_decay(div_factor=25, final_div_factor=1e4, syncs=10)) ** 10, 6)
    400.0
    """
    return 1 - math.exp(-math.log(div_factor / final_div_factor) / syncs)


def geometric_decay(*, div_factor: float, final_div_factor: float, syncs: float) -> float:
    """γ of Eq. 8 corrected: ``log(f_div·f_final)`` is the whole way from OneCycleLR's peak to its floor."""
    return 1 - math.exp(-math.log(div_factor * final_div_factor) / syncs)


def _deviation(gaps: Sequence[float]) -> float:
    """Standard deviation in units of the largest gap, which neither overflows nor vanishes."""
    largest = max(gaps)
    shares = [gap / largest for gap in gaps]
    mean = sum(shares) / len(shares)
    deviation = largest * math.sqrt(sum((share - mean) ** 2 for share in shares) / len(shares))
    return max(deviation, math.ulp(0.0))


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
