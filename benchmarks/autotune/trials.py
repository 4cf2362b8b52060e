"""Arms made of single runs: at a given setting, and Optuna's, whose pruned trials leave samples for more.

Optuna is asked for a setting and told a loss (ask and tell), one trial after another, so that a seed
decides all of it. After each part of a run its pruner hears the probe's loss of the weights as they stand;
a trial's value is the best that it could hand over. The last trial ends with the budget, wherever it
stands.
"""

from __future__ import annotations

import logging
import zlib
from dataclasses import replace
from typing import Any

from benchmarks.autotune.arena import Arena, needed
from benchmarks.autotune.plan import SEGMENTS
from benchmarks.autotune.space import DEFAULTS, Setting
from benchmarks.rows import Row

__all__ = ["PRUNER", "STARTUP", "single", "tpe"]

#: Trials before TPE, and the median, have a say: TPE's own ten would be more than the budget.
STARTUP = 4
#: What its pruner is given, as the result says it.
PRUNER = f"HyperbandPruner(min_resource=1, max_resource={SEGMENTS}, reduction_factor=3)"


def single(arena: Arena, setting: Setting, number: int, *, batches: int = 1) -> list[Row]:
    """One run at the setting, of so many ``batches`` in a step."""
    training = arena.training(number, setting, batches=batches)
    for _ in range(SEGMENTS):
        training.advance(arena.segment)
    return [arena.trial(number, setting, SEGMENTS, training.finish_())]


def tpe(arena: Arena) -> list[Row]:
    """Optuna's TPE with Hyperband, until the budget is spent."""
    optuna = needed("optuna")
    # Optuna reports every trial; its warnings stay.
    optuna.logging.set_verbosity(logging.WARNING)
    study = _study(optuna, arena)
    space = _distributions(optuna, arena)
    left = arena.run.members * SEGMENTS
    trials: list[Row] = []
    while left:
        trial = study.ask(space)
        setting = replace(DEFAULTS, **trial.params)
        spent, value, pruned = _run(arena, trial, setting, left)
        left -= spent
        trials.append({**arena.trial(trial.number, setting, spent, value), "pruned": pruned})
        if pruned:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        elif spent == SEGMENTS:
            study.tell(trial, value)
    return trials


def _run(arena: Arena, trial: Any, setting: Setting, left: int) -> tuple[int, float, bool]:
    """One trial: how many parts it ran for, the best it could hand over, and whether it was pruned."""
    training = arena.training(trial.number, setting)
    losses: list[float] = []
    pruned = False
    for part in range(1, min(left, SEGMENTS) + 1):
        losses.append(training.advance(arena.segment))
        trial.report(losses[-1], part)
        if part < SEGMENTS and trial.should_prune():
            pruned = True
            break
    return len(losses), min(*losses, training.finish_()), pruned


def _study(optuna: Any, arena: Arena) -> Any:
    run = arena.run
    pruner = optuna.pruners.HyperbandPruner(min_resource=1, max_resource=SEGMENTS, reduction_factor=3)
    # Luck at the start is each arm's and each task's own; Hyperband deals brackets by the name, too.
    name = f"{run.task} {run.arm} {run.seed}"
    return optuna.create_study(
        study_name=name,
        direction="minimize",
        sampler=optuna.samplers.TPESampler(seed=zlib.crc32(name.encode()), n_startup_trials=STARTUP),
        pruner=pruner,
    )


def _distributions(optuna: Any, arena: Arena) -> dict[str, Any]:
    return {
        name: optuna.distributions.FloatDistribution(known.low, known.high, log=known.log)
        for name, known in arena.task.ranges.items()
    }
