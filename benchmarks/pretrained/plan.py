"""Which runs there are, and which come next: a pure function of what has been found so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import import_module
from typing import Any

from benchmarks.rows import Row

__all__ = [
    "AS_IT_RAN",
    "EPOCHS",
    "FACTORS",
    "FITTED",
    "IMAGES",
    "IMAGE_RATES",
    "PUBLISHED",
    "RATES",
    "RECIPE",
    "SIZES",
    "SPLITS",
    "TEXTS",
    "TRIALS",
    "YIELDS",
    "Run",
    "asked",
    "chosen",
    "factor_arm",
    "planned",
    "run_of",
]

YIELDS, TEXTS = ("buchwald-hartwig", "suzuki"), ("questions", "news", "pros-cons")
IMAGES = ("photos", "characters")
#: Where the share of the usual rate that suits trained weights was chosen, and shares that were tried.
FITTED, FACTORS = ("opinions", "spam", "pairs"), (1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
#: What all runs have in common; a Run has the rest.
RECIPE = {
    "optimizer": "torch.optim.AdamW without decay, else its defaults; Prodigy: lr 1, safeguard_warmup",
    "schedule": "linear to zero; Prodigy: cosine to zero; AutoLR and AutoTune: their own, wsd",
    "clipped at norm": 1.0,
    "batch": {"yields": 16, "texts": 32, "images": 32},
    "precision": "bfloat16 autocast, weights in float32; measured in float32 with tf32 products",
    "probe": "hdet.Probe.set_aside with its defaults",
    "AutoTune": "4 processes, gradients='switch', dropout of hidden layers within 0.05 … 0.8",
}
#: What the authors trained these tasks with, model_args.json of their models: rate, dropout, epochs.
PUBLISHED = {"buchwald-hartwig": (9.659e-5, 0.7987), "suzuki": (9.116e-5, 0.7542)}
EPOCHS = {"buchwald-hartwig": 10, "suzuki": 15}
SPLITS = 5
#: With dropout in the first epoch alone, as the authors' models were trained: PROTOCOL.md, second part.
AS_IT_RAN = ", as it ran"
#: transformers.TrainingArguments' rate and BERT's dropout.
_DEFAULT_RATE, _DROPOUT = 5e-5, 0.1
#: Of the search: trials in all, at a time, and with how many the small one does.
TRIALS, _AT_ONCE, _FEW = 30, 5, 8
_SEARCHED = {"rate": (1e-6, 1e-3), "dropout": (0.05, 0.8)}

#: How many samples there are, and how many epochs that is worth.
SIZES = {100: 30, 1000: 10, 0: 3}
RATES = tuple(10 ** (-5.5 + 0.5 * number) for number in range(7))
#: What is usual: of all weights, and of LoRA's.
_USUAL, _SEEDS = {False: 2e-5, True: 2e-4}, 3
#: Of pictures: the same, how many epochs, and the dropout before the head.
IMAGE_RATES = tuple(10 ** (-5 + 0.5 * number) for number in range(7))
_IMAGE_USUAL, _IMAGE_EPOCHS, _IMAGE_DROPOUT = 1e-3, 10, 0.2


@dataclass(frozen=True, slots=True)
class Run:
    """One training: all that its result depends on.

    ``seed`` is also the number of the split. ``samples`` 0: all. ``held``: it is trained without the rows
    that are set aside, and measured on them; else on the test rows. ``number``: of a trial.
    """

    task: str
    arm: str
    seed: int
    rate: float | None
    dropout: float
    epochs: int
    samples: int = 0
    lora: bool = False
    held: bool = False
    number: int = 0
    device: str = "cpu"


def run_of(row: Row) -> Run:
    """The run whose row it is."""
    return Run(**{field.name: row[field.name] for field in fields(Run)})


def planned(rows: Mapping[Run, Row], parts: Sequence[str], device: str) -> list[Run]:
    """All runs that are wanted, the earlier the more so; those that choices decide once they are made."""
    runs: list[Run] = []
    yields = {
        "given": (f"published{AS_IT_RAN}", "published", "default", "prodigy"),
        "autotune": ("autotune",),
        "autolr": (f"autolr{AS_IT_RAN}", "autolr"),
    }
    for task in YIELDS:
        for part in yields:
            if part in parts:
                runs += [_yield(task, arm, split, device) for arm in yields[part] for split in range(SPLITS)]
        if task == YIELDS[0] and "search" in parts:
            runs += asked(rows, device) + _searched(rows, device)
    if "texts" in parts:
        for samples in SIZES:
            for task in TEXTS:
                for lora in (False, True):
                    like = Run(task, "", 0, None, _DROPOUT, SIZES[samples], samples, lora, device=device)
                    runs += _against_a_sweep(rows, like, RATES, _USUAL[lora], samples == 100)
    if "fit" in parts:
        for samples in (100, 1000):
            for task in FITTED:
                like = Run(task, "", 0, None, _DROPOUT, SIZES[samples], samples, device=device)
                arms = map(factor_arm, FACTORS)
                runs += [replace(like, arm=arm, seed=seed) for arm in arms for seed in range(_SEEDS)]
                against = _against_a_sweep(rows, like, RATES, _USUAL[False], samples == 100)
                runs += [run for run in against if run.arm != "prodigy"]
    if "images" in parts:
        for task in IMAGES:
            like = Run(task, "", 0, None, _IMAGE_DROPOUT, _IMAGE_EPOCHS, device=device)
            runs += _against_a_sweep(rows, like, IMAGE_RATES, _IMAGE_USUAL, True)
    return runs


def factor_arm(factor: float) -> str:
    """AutoLR with another share of the usual rate for trained weights than ``prior.fine_tuning`` gives."""
    return f"autolr × {factor:g}"


def _yield(task: str, arm: str, split: int, device: str) -> Run:
    rate, dropout = PUBLISHED[task]
    given: dict[str, tuple[float | None, float]] = {
        "published": (rate, dropout),
        "autolr": (None, dropout),
        "autotune": (None, _DROPOUT),
        "default": (_DEFAULT_RATE, _DROPOUT),
        "prodigy": (None, dropout),
    }
    return Run(task, arm, split, *given[arm.removesuffix(AS_IT_RAN)], EPOCHS[task], device=device)


def asked(rows: Mapping[Run, Row], device: str) -> list[Run]:
    """Optuna's trials so far and the next ones, on the authors' tuning split: a study played again."""
    told = {run.number: row for run, row in rows.items() if run.arm == "trial" and run.device == device}
    losses = tuple(told[n]["loss"] for n in range(len(told)) if n in told)
    task = YIELDS[0]
    return [
        Run(task, "trial", 0, rate, dropout, EPOCHS[task], held=True, number=number, device=device)
        for number, (rate, dropout) in enumerate(_study(losses[: len(losses) // _AT_ONCE * _AT_ONCE]))
    ]


@cache
def _study(losses: tuple[float, ...]) -> list[tuple[float, float]]:
    """Settings of the trials with these losses, and of the next ones, as many as run at a time."""
    optuna: Any = import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=0, n_startup_trials=_AT_ONCE, constant_liar=True)
    study = optuna.create_study(sampler=sampler)
    space = {
        name: optuna.distributions.FloatDistribution(low, high, log=name == "rate")
        for name, (low, high) in _SEARCHED.items()
    }
    settings = []
    for first in range(0, min(TRIALS, len(losses) + _AT_ONCE), _AT_ONCE):
        trials = [study.ask(space) for _ in range(_AT_ONCE)]
        settings += [(trial.params["rate"], trial.params["dropout"]) for trial in trials]
        for trial, loss in zip(trials, losses[first:], strict=False):
            study.tell(trial, loss if math.isfinite(loss) else 1e9)
    return settings


def _searched(rows: Mapping[Run, Row], device: str) -> list[Run]:
    """What the search found in its first trials and in all, trained on the splits."""
    trials = sorted(
        (run for run in rows if run.arm == "trial" and run.device == device), key=lambda run: run.number
    )
    runs = []
    for count in (_FEW, TRIALS):
        if [run.number for run in trials[:count]] == list(range(count)):
            best = min(trials[:count], key=lambda run: _loss(rows[run]))
            runs += [
                Run(best.task, f"tpe {count}", split, best.rate, best.dropout, best.epochs, device=device)
                for split in range(SPLITS)
            ]
    return runs


def _against_a_sweep(
    rows: Mapping[Run, Row], like: Run, rates: Sequence[float], usual: float, each: bool
) -> list[Run]:
    """AutoLR, the usual rate, Prodigy, the sweep, and what it chose; ``each`` seed is swept, or one for
    all."""

    def run(arm: str, seed: int, rate: float | None, held: bool = False) -> Run:
        return replace(like, arm=arm, seed=seed, rate=rate, held=held)

    runs = []
    for seed in range(_SEEDS):
        runs += [run("autolr", seed, None), run("usual", seed, usual), run("prodigy", seed, None)]
        swept = seed if each else 0
        sweep = [run("sweep", swept, rate, True) for rate in rates]
        runs += sweep if seed == swept else []
        best = chosen(rows, sweep)
        if best:
            runs.append(run("swept", seed, best.rate))
    return runs


def chosen(rows: Mapping[Run, Row], sweep: Sequence[Run]) -> Run | None:
    """The run with the lowest loss on what was set aside, once all are done."""
    return min(sweep, key=lambda run: _loss(rows[run])) if all(run in rows for run in sweep) else None


def _loss(row: Row) -> float:
    return math.inf if row["loss"] is None else float(row["loss"])
