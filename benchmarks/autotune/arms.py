"""One run of any arm, from the first step to the row; and which arms can be run here."""

from __future__ import annotations

import logging
import os
from dataclasses import asdict, replace
from importlib.util import find_spec
from itertools import islice

import torch

import hdet
from benchmarks.autotune.arena import INSTALL, Arena, needed
from benchmarks.autotune.plan import (
    AUTOTUNE,
    AVERAGED,
    DEFAULT,
    LARGE,
    LARGE_TUNED,
    PB2,
    PBT,
    RANDOM,
    RATES,
    SWEEP,
    TPE_HYPERBAND,
    TWICE,
    Run,
)
from benchmarks.autotune.population import populate
from benchmarks.autotune.replicas import autotune, large
from benchmarks.autotune.space import DEFAULTS, drawn, sobol
from benchmarks.autotune.trials import single, tpe
from benchmarks.rows import Row

__all__ = ["execute", "unavailable"]

_PACKAGES = {TPE_HYPERBAND: "optuna"}


def execute(rank: int, run: Run) -> Row | None:
    """One process of the run; the first has the result."""
    torch.set_num_threads(1)
    logging.getLogger("hdet").setLevel(logging.ERROR)  # its warnings are for users
    if run.arm in _PACKAGES:
        needed(_PACKAGES[run.arm])  # before the clock runs
    arena = Arena.of(run)
    trials = autotune(rank, arena) if run.arm in (AUTOTUNE, AVERAGED, TWICE) else _trials(arena)
    if rank:
        return None
    setting = arena.ledger.setting
    found = {"setting": None if setting is None else asdict(setting), "trials": trials}
    return {**asdict(run), **arena.ledger.result(), **found, "processors": os.cpu_count() or 1}


def unavailable(arm: str) -> str:
    """Why an arm cannot be run here, and the mend; empty if it can."""
    if arm == AUTOTUNE and "AutoTune" not in hdet.__all__:
        return "this version of hdet has no AutoTune yet"
    package = _PACKAGES.get(arm)
    if package and find_spec(package) is None:
        return f"{package} is not installed: {INSTALL}"
    return ""


def _trials(arena: Arena) -> list[Row]:
    run = arena.run
    if run.arm == DEFAULT:
        return single(arena, DEFAULTS, 0)
    if run.arm == LARGE:
        return large(arena)
    if run.arm == LARGE_TUNED:
        return single(arena, replace(DEFAULTS, lr=RATES[run.number]), 0, batches=run.members)
    tuned = arena.task.tuned
    if run.arm == RANDOM:
        return single(arena, next(islice(drawn(run.seed, run.task, tuned), run.number, None)), run.number)
    if run.arm == SWEEP:
        return single(arena, sobol(run.number, tuned), run.number)
    return populate(arena) if run.arm in (PBT, PB2) else tpe(arena)
