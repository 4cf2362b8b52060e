"""What was published with LightBench 0.1.1 (``benchmark_results.md``) of plain AdamW.

For every problem the trial, of up to 1,000, in which a search over learning rate and betas first solved it,
or None. A harder problem of a kind was not tried once an easier one had failed, and counts as failed.
"""

from __future__ import annotations

__all__ = ["ADAMW_TRIALS", "DIFFICULTIES", "GONE", "solved_within"]

DIFFICULTIES = ("trivial", "easy", "medium", "hard", "extreme", "nightmare")

_NEVER = (None,) * 6
_TRIALS: dict[str, tuple[int | None, ...]] = {
    "adversarial_gradient": _NEVER,
    "batch_size_scaling": (6,) * 6,
    "beale": (19,),
    "constrained_optimization": (6, 4, 4, 4, 4, 4),
    "discontinuous_gradient": (13,),
    "dynamic_landscape": (8,) * 6,
    "gradient_delay": (6, 6, 8, 8, 8, 8),
    "gradient_noise_scale": (6,) * 6,
    "layer_wise_scale": (6,) * 6,
    "minimax": _NEVER,
    "momentum_utilization": (12, 8, 8, 8, 8, 3),
    "noisy_matmul": (20, 16, 13, 12, 12, 8),
    "parameter_scale": (538, 19, 538, 538, 538, 538),
    "plateau_navigation": (2, 2, 2, 13, None, None),
    "quadratic_varying_scale": (6,) * 6,
    "quadratic_varying_target": (11, 13, 12, 6, 6, 6),
    "rastrigin": (58,),
    "rosenbrock": (14,),
    "saddle_point": (2, 2, 2, 2, None, None),
    "scale_invariant": (11, 14, 14, 11, 24, 21),
    "sparse_gradient": (6, 6, 11, 10, None, None),
    "wide_linear": _NEVER,
    "xor_digit": (2, 6, 24, 186, None, None),
    "xor_digit_rnn": (2, None, None, None, None, None),
    "xor_sequence": (2, 2, 6, 6, 30, None),
    "xor_sequence_rnn": (2, 2, 6, 75, None, None),
    "xor_spot": (2, 6, 25, 151, None, None),
    "xor_spot_rnn": (6, None, None, None, None, None),
}

#: Kinds that the package no longer holds under these names.
GONE = ("constrained_optimization", "gradient_noise_scale")

#: ``kind-difficulty``, as in the published table, of what the package still holds.
ADAMW_TRIALS: dict[str, int | None] = {
    f"{kind}-{difficulty}": trial
    for kind, trials in _TRIALS.items()
    if kind not in GONE
    for difficulty, trial in zip(DIFFICULTIES, trials, strict=False)
}


def solved_within(trials: int, *, gone: bool = False) -> int:
    """How many problems AdamW solved within so many trials; with those that are gone, if asked.

    >>> [solved_within(trials) for trials in (10, 30, 1000)]
    [62, 86, 95]
    >>> [solved_within(trials, gone=True) for trials in (10, 30, 1000)]
    [74, 98, 107]
    """
    known = [trial for kind, of in _TRIALS.items() if gone or kind not in GONE for trial in of]
    return sum(trial is not None and trial <= trials for trial in known)
