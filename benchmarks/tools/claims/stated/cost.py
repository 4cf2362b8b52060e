"""What we say of the cost of AutoLR, of a step and of a mean of weights."""

from __future__ import annotations

from benchmarks.tools.claims.claim import Claim
from benchmarks.tools.claims.judges import cost

__all__ = ["CLAIMS"]

_STEP = ("step", "step-cuda")
_CONVERGE = ("converge", "converge-16-cores")

CLAIMS = (
    Claim(
        "cost",
        "docs/evidence.md",
        "A window's mean of 8 iterates is as good as one of 32; other windows or fewer batches are not",
        cost.only_fewer_iterates_are_as_good,
        ("zoo-cost",),
    ),
    Claim(
        "cost",
        "docs/evidence.md",
        "AutoLR adds at most 2 % of wall-clock",
        cost.costs_two_percent,
        ("autolr", "autolr-cuda"),
    ),
    Claim(
        "cost",
        "docs/evidence.md",
        "Averaging takes at most 1.3 times one flat all_reduce",
        cost.averaging_near_the_limit,
        _CONVERGE,
    ),
    Claim(
        "cost",
        "docs/evidence.md",
        "Averaging is ahead of average_parameters and of one all_reduce per tensor",
        cost.averaging_beats_others,
        _CONVERGE,
    ),
    Claim(
        "cost",
        "docs/evidence.md",
        "step(loss) takes at most 1.5 times OneCycleLR's",
        cost.call_costs_little,
        _STEP,
    ),
    Claim(
        "cost",
        "docs/evidence.md",
        "Around a billion parameters: one copy of the weights, 2 % of 500 steps, packing at 80 % of a copy",
        cost.light_around_a_large_model,
        ("large",),
    ),
    Claim("cost", "docs/evidence.md", "It never waits for the device", cost.never_waits, ("step-cuda",)),
    Claim(
        "cost",
        "docs/evidence.md",
        "At most 0.5 % over plain DDP at T = 100, 0.1 % at T = 1000",
        cost.step_costs_little,
        _STEP,
    ),
)
