"""Where training crashes, and how far an arm moves that edge: a logistic curve over log rate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

__all__ = ["crashed", "edge_shift", "half_crashed"]

#: Without half of what there is to learn, a run has crashed.
_LOST = 0.5
#: A weak pull of the slope to 0, without which runs that are parted perfectly have none.
_RIDGE = 1e-3
_ROUNDS, _RESAMPLES = 40, 1000


def crashed(final: float, best: float, blind: float) -> bool:
    """Whether a run ends nearer to the loss of who knows base rates alone than to the best plain run's.

    >>> crashed(1.2, best=1.0, blind=2.0), crashed(1.6, best=1.0, blind=2.0), crashed(math.nan, 1.0, 2.0)
    (False, True, True)
    """
    return not final < best + _LOST * (blind - best)


def half_crashed(rates: Sequence[float], shares: Sequence[float]) -> float:
    """The rate at which half of the runs crash, by a line between the two that enclose it.

    >>> round(half_crashed([1.0, 2.0, 4.0], [0.0, 0.25, 0.75]), 3)
    2.828
    """
    for (low, below), (high, above) in zip(
        zip(rates, shares, strict=True), zip(rates[1:], shares[1:], strict=True), strict=False
    ):
        if below < 0.5 <= above:
            way = (0.5 - below) / (above - below)
            return math.exp(math.log(low) + way * math.log(high / low))
    raise ValueError(f"half_crashed: the runs must pass one half between two rates, got {list(shares)}")


def edge_shift(
    rates: Sequence[float], crashes: Mapping[str, Sequence[Sequence[bool]]], plain: str, seed: int = 0
) -> dict[str, dict[str, float]]:
    """For each arm the shift of its edge over the plain one's, as a share of the rate, with a 95 % interval.

    All arms have one slope. The interval is that of resampled seeds, the same ones in all arms.

    Args:
        rates: at which all were run.
        crashes: by arm, for each seed whether it crashed at each rate.
        plain: the arm that others are compared with.
    """
    arms = list(crashes)
    x = torch.tensor([math.log(rate) for rate in rates], dtype=torch.float64)
    y = torch.tensor([crashes[arm] for arm in arms], dtype=torch.float64)  # arms × seeds × rates
    draw = torch.Generator().manual_seed(seed)
    chosen = torch.randint(y.shape[1], (_RESAMPLES, y.shape[1]), generator=draw)
    counts = torch.cat([y.sum(1)[None], y[:, chosen].sum(2).transpose(0, 1)])  # resamples × arms × rates
    edges = _edges(x, counts / y.shape[1])
    shifts = (edges - edges[:, [arms.index(plain)]]).expm1()
    low, high = shifts[1:].quantile(torch.tensor([0.025, 0.975], dtype=torch.float64), dim=0)
    return {
        arm: {
            "edge": math.exp(float(edges[0, place])),
            "shift": float(shifts[0, place]),
            "low": float(low[place]),
            "high": float(high[place]),
            "crashed": int(y[place].sum()),
            "runs": y[place].numel(),
        }
        for place, arm in enumerate(arms)
    }


def _edges(x: Tensor, shares: Tensor) -> Tensor:
    """Newton's method for a common slope and an intercept for each arm, for all resamples at once."""
    resamples, arms, _ = shares.shape
    centre = x.mean()
    # Columns: the rate, then one for each arm. Rows: arm after arm.
    columns = torch.cat(
        [(x - centre).repeat(arms)[:, None], torch.eye(arms, dtype=x.dtype).repeat_interleave(len(x), 0)], 1
    )
    target = shares.flatten(1)
    found = torch.zeros(resamples, 1 + arms, dtype=x.dtype)
    found[:, 0] = 1.0
    ridge = torch.full((1 + arms,), _RIDGE, dtype=x.dtype)
    for _ in range(_ROUNDS):
        chance = (found @ columns.T).clamp(-30, 30).sigmoid()
        slope = (target - chance) @ columns - ridge * found
        weight = chance * (1 - chance)
        curvature = torch.einsum("rn,ni,nj->rij", weight, columns, columns) + torch.diag(ridge)
        step = torch.linalg.solve(curvature, slope)
        found = found + step.clamp(-2, 2)
    # Where no run crashed, or all did, the edge lies beyond the rates: no further than they are wide.
    return (centre - found[:, 1:] / found[:, :1]).clamp(2 * x[0] - x[-1], 2 * x[-1] - x[0])
