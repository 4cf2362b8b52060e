"""Which learning rate is usual, from how far the first steps carry. No torch, no I/O; float64.

On the tasks of ``benchmarks/zoo`` that it was fitted on, the best rate falls with the pace, by how much of
their tensors' sizes a unit of rate moves the weights in a step. It falls by less than the pace rises, and
for all optimizers alike: two numbers, and an error of four times either way. Weights that were trained before
want less, the more of them there are: what they have learnt spoils before the loss shows it.
"""

from __future__ import annotations

import math

__all__ = ["fine_tuning", "likely_rates", "usual_rate"]

#: log10 of the rate at a pace of 1, and by how much it changes for a pace ten times as high;
#: ``python -m benchmarks.zoo.prior`` fits them.
_AT_ONE, _SLOPE = -1.33, -0.70
#: So many trained weights want the usual rate; ``python -m benchmarks.pretrained`` says why, in its protocol.
_TRAINED = 3000.0
#: In four of five runs on the zoo the tuned rate lay within so many times the one found.
_LIKELY = 6.0


def usual_rate(pace: float) -> float:
    """The best rate to be expected of weights that a rate of η moves by ``pace``·η of their size in a step.

    >>> round(usual_rate(1.0), 3), round(usual_rate(100.0), 4)
    (0.047, 0.0019)
    """
    return math.pow(10.0, _AT_ONE + _SLOPE * math.log10(pace))


def fine_tuning(trained: float, share: float) -> float:
    """What share of the usual rate suits a model in which so many weights, a ``share`` of all, were trained
    before. A step that moves all of them one way changes what n inputs add up to by n times its size, and a
    layer of √N inputs has N weights.

    >>> fine_tuning(300_000, 1.0), fine_tuning(0, 0.0)
    (0.1, 1.0)
    """
    return math.pow(min(1.0, _TRAINED / max(trained, 1.0)), share / 2)


def likely_rates(found: float) -> tuple[float, float]:
    """Between which rates the best is to be expected, once a search has found one. How sure it is could not
    be told from what a run sees: runs whose windows were mostly significant were hardly closer.

    >>> likely_rates(0.75)
    (0.125, 4.5)
    """
    return found / _LIKELY, found * _LIKELY
