"""When a run has crashed, and at which step.

Under a schedule that ends near zero even a model that was wrecked half-way comes to rest, near the loss of
who knows the base rates and nothing else. What there was to learn is therefore what the best plain run of the
same seed is ahead of that at the end; who had a higher learning rate than that run and ends without half of
it has crashed. (Who had a lower one is slow.) All of them saw the same batches, so that weeks which are
harder for all count for little. Who ends at twice the loss of the base rates, or above, has crashed whatever
there was to learn: a model that has not moved yet is below that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from benchmarks.reproduce.plan import PLAIN, SWEPT, Row, Run

__all__ = ["RULE", "crash_step", "judged"]

RULE = (
    "Crashed is who has a loss that is not finite, or ends at twice the loss of the base rates or above, or "
    "was given a higher learning rate than the best plain run on the same batches and ends nearer to the "
    "loss of the base rates than to that run's."
)
_LOST, _FAR = 0.5, 2.0
#: A curve is smoothed over so many of its points, which are about 200.
_SMOOTHING = 4


def judged(rows: Mapping[Run, Row], blind: float) -> dict[Run, Row]:
    """The rows, and beside each whether it ``crashed`` and the ``crash_step``.

    ``blind`` is the loss of who knows the base rates alone.
    """
    best: dict[Run, Row] = {}
    for run, row in rows.items():
        # Of the sweep alone, which every table and figure has: they are to judge alike.
        if run.configuration == PLAIN and run.lr in SWEPT and _is_finite(row):
            seed = _seed_of(run)
            best[seed] = min(row, best.get(seed, row), key=lambda one: one["train"])
    found = {}
    for run, row in rows.items():
        step = crash_step(row, best.get(_seed_of(run)), blind)
        found[run] = {**row, "crashed": step is not None, "crash_step": step}
    return found


def _seed_of(run: Run) -> Run:
    """What all runs on the same batches have in common."""
    return replace(run, configuration=PLAIN, lr=None, settings=run.settings.of(PLAIN))


def _is_finite(row: Row) -> bool:
    return row["train"] is not None and None not in row["loss"]


def crash_step(row: Row, best: Row | None, blind: float) -> int | None:
    """The step from which a run did not come back; None if it did not crash.

    Args:
        row: the run.
        best: the best plain run on the same batches, if one is known.
        blind: the loss of who knows the base rates alone.

    >>> steps = list(range(1, 13))
    >>> best = {"lr": 0.01, "train": 1.0, "loss_steps": steps, "loss": [1.2] * 4 + [1.0] * 8}
    >>> wrecked = {"lr": 0.1, "train": 1.28, "loss_steps": steps, "loss": [1.1] * 4 + [1.0] * 3 + [1.28] * 5}
    >>> crash_step(wrecked, best, blind=1.3)
    9
    >>> crash_step({**wrecked, "lr": 0.001}, best, blind=1.3) is None
    True
    >>> exploded = {**wrecked, "train": 121.0, "loss": [2.1] * 4 + [121.0] * 8}
    >>> crash_step(exploded, None, blind=1.3)
    6
    """
    steps: list[int] = row["loss_steps"]
    if not _is_finite(row):
        return min((s for s, loss in zip(steps, row["loss"], strict=True) if loss is None), default=steps[-1])
    if row["train"] >= _FAR * blind:
        others = [blind] * len(steps)
    elif best is not None and _has_lost(row, best, blind):
        others = best["loss"]
    else:
        return None
    pairs = zip(_smoothed(row["loss"]), _smoothed(others), strict=True)
    behind = [loss - other for loss, other in pairs]
    level = behind[-1] / 2
    rises = [i for i in range(1, len(behind)) if behind[i - 1] <= level < behind[i]]
    return steps[len(steps) - len(behind) + max(rises, default=0)]


def _has_lost(row: Row, best: Row, blind: float) -> bool:
    """Whether half of what there was to learn is missing, at a higher learning rate than the best run's."""
    if row["lr"] is not None and row["lr"] <= best["lr"]:
        return False
    learnable = blind - best["train"]
    return bool(learnable > 0 and row["train"] >= best["train"] + _LOST * learnable)


def _smoothed(values: Sequence[float]) -> list[float]:
    """Means of a few values in a row, one for each place where so many end."""
    window = min(_SMOOTHING, len(values))
    return [sum(values[i : i + window]) / window for i in range(len(values) - window + 1)]
