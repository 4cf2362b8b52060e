"""When a run has crashed, and at which step.

Under a schedule that ends near zero even a model that was wrecked half-way comes to rest, near the loss of
who knows the base rates and nothing else. What there was to learn is therefore what the best plain run of the
same seed, on the same batches, is ahead of that at the end; who ends without half of it, and had once been
better, has crashed. Losses of the same batches are compared, so that weeks which are harder for all count
for little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hdet.experiments.reproduce_plan import PLAIN, SWEPT, Row, Run

__all__ = ["RULE", "crash_step", "judged"]

RULE = (
    "Crashed is who has a loss that is not finite, or lost half of what there was to learn: the final "
    "training loss is nearer to that of the base rates than to that of the best plain run on the same "
    "batches, and has risen by a tenth of the distance between those two since the run's own best."
)
_LOST, _RISEN = 0.5, 0.1
#: A curve is smoothed over so many of its points, which are about 200.
_SMOOTHING = 4


def judged(rows: Mapping[Run, Row], blind: float) -> dict[Run, Row]:
    """The rows, and beside each whether it ``crashed`` and the ``crash_step``.

    ``blind`` is the loss of who knows the base rates alone.
    """
    best: dict[Run, Row] = {}
    for run, row in rows.items():
        # Of the sweep alone, which every table and figure has: they are to judge alike.
        if (
            run.configuration == PLAIN
            and run.lr in SWEPT
            and row["train"] is not None
            and None not in row["loss"]
        ):
            seed = _seed_of(run)
            best[seed] = min(row, best.get(seed, row), key=lambda one: one["train"])
    found = {}
    for run, row in rows.items():
        plain = best.get(_seed_of(run))
        reference, against = (math.inf, None) if plain is None else (plain["train"], plain["loss"])
        step = crash_step(row["loss_steps"], row["loss"], row["train"], reference, blind, against)
        found[run] = {**row, "crashed": step is not None, "crash_step": step}
    return found


def _seed_of(run: Run) -> Run:
    """What all runs on the same batches have in common."""
    return replace(run, configuration=PLAIN, lr=None)


def crash_step(
    steps: Sequence[int],
    losses: Sequence[float | None],
    final: float | None,
    reference: float,
    blind: float,
    against: Sequence[float] | None = None,
) -> int | None:
    """The step from which a run did not come back; None if it did not crash.

    Args:
        steps: where the points of its curve lie.
        losses: the curve; None where a loss was not finite.
        final: its final training loss.
        reference: that of the best plain run.
        blind: that of who knows the base rates alone.
        against: the best plain run's curve: what is harder for both is no part of a crash, nor of its step.

    >>> curve = [1.3, 1.2, 1.1, 1.0, 1.0, 1.0, 1.0, 1.25, 1.28, 1.28, 1.28, 1.28]
    >>> crash_step(range(1, 13), curve, final=1.28, reference=0.95, blind=1.3)
    10
    >>> crash_step(range(1, 13), curve, final=1.28, reference=0.95, blind=1.9) is None
    True
    """
    if final is None or None in losses:
        gone = [step for step, loss in zip(steps, losses, strict=True) if loss is None]
        return min(gone, default=steps[-1])
    smooth = _smoothed([loss for loss in losses if loss is not None])
    learnable, best = blind - reference, min(smooth)
    if learnable <= 0 or final < reference + _LOST * learnable or final < best + _RISEN * learnable:
        return None
    others = [best] * len(smooth) if against is None else _smoothed(against)
    behind = [loss - other for loss, other in zip(smooth, others, strict=True)]
    level = behind[-1] / 2
    rises = [i for i in range(1, len(behind)) if behind[i - 1] <= level < behind[i]]
    return steps[len(steps) - len(smooth) + max(rises, default=len(smooth) - 1)]


def _smoothed(values: Sequence[float]) -> list[float]:
    """Means of a few values in a row, one for each place where so many end."""
    window = min(_SMOOTHING, len(values))
    return [sum(values[i : i + window]) / window for i in range(len(values) - window + 1)]
