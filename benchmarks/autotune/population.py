"""Ray Tune's populations: PBT and PB2, each member a training, exploited at the end of every part of a run.

The schedulers are Ray's own objects, in their synchronous mode; what stands in for Ray's cluster is one
process that trains the members in turn and hands results to the scheduler in their order. So nothing hangs
on timing, and a seed decides all of it. Who is exploited gets weights, optimizer state and the choice so
far of the better one, goes on with batches of its own, and has handed over its best before.
"""

from __future__ import annotations

import logging
import math
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from typing import Any

from benchmarks.autotune.arena import Arena, needed
from benchmarks.autotune.plan import PB2, SEGMENTS
from benchmarks.autotune.space import RANGES, Setting, clipped, drawn
from benchmarks.autotune.training import Training
from benchmarks.rows import Row

__all__ = ["GIVEN", "Population", "populate"]

#: What each scheduler is given, as the result says it.
GIVEN = {
    "PBT": "PopulationBasedTraining(perturbation_interval=1 part, synch=True, all else as it comes: "
    "quantile_fraction=0.25, resample_probability=0.25, perturbation_factors=(1.2, 0.8))",
    "PB2": "PB2(perturbation_interval=1 part, synch=True, quantile_fraction=0.25; bounds of learning rate "
    "and weight decay as decimal logarithms, which its Gaussian process is even in)",
}
_METRIC, _TIME = "probe", "training_iteration"


def populate(arena: Arena) -> list[Row]:
    """As many members as the budget has single runs, from the settings of random search to the end."""
    with _alone(arena.run.seed):
        population = Population(arena)
        for part in range(1, SEGMENTS + 1):
            losses = [member.advance(arena.segment) for member in population.members]
            if part < SEGMENTS:
                population.exploit(part, losses)
        return [
            {**arena.trial(number, member.setting, SEGMENTS, member.finish_()), "parents": parents}
            for number, (member, parents) in enumerate(
                zip(population.members, population.parents, strict=True)
            )
        ]


class Population:
    """Members, and Ray's scheduler, which sees each of them as one of its trials."""

    def __init__(self, arena: Arena) -> None:
        experiment = needed("ray.tune.experiment")
        self._of_logarithms = arena.run.arm == PB2
        self._scheduler = _pb2() if self._of_logarithms else _pbt()
        settings = list(islice(drawn(arena.run.seed, arena.run.task), arena.run.members))
        self.members = [arena.training(number, setting) for number, setting in enumerate(settings)]
        #: Of each member, whom it was a copy of, part by part, where it became one.
        self.parents: list[list[list[int]]] = [[] for _ in settings]
        self._trials = [
            experiment.Trial("hdet", config=self._config(setting), trial_id=f"{number:05d}", stub=True)
            for number, setting in enumerate(settings)
        ]
        self._controller = _Controller(dict(zip(self._trials, self.members, strict=True)))
        for trial in self._trials:
            trial.set_status(trial.RUNNING)
            self._scheduler.on_trial_add(self._controller, trial)

    def exploit(self, part: int, losses: list[float]) -> None:
        """Tell the scheduler how all members stand, and do what it says."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a Gaussian process that does not converge
            for trial, loss in zip(self._trials, losses, strict=True):
                self._scheduler.on_trial_result(self._controller, trial, {_TIME: part, _METRIC: loss})
        for number, (trial, member) in enumerate(zip(self._trials, self.members, strict=True)):
            # Ray 2.60 leaves what a trial is to go on from here; its cluster reads it when the trial resumes.
            manager = trial.run_metadata.checkpoint_manager
            given, manager._latest_checkpoint_result = manager._latest_checkpoint_result, None
            trial.set_status(trial.RUNNING)
            if given is not None:
                member.finish_()
                member.restore_(given.checkpoint["state"])
                member.setting = self._setting(trial.config)
                self.parents[number].append([part, given.checkpoint["number"]])

    def _config(self, setting: Setting) -> dict[str, float]:
        values = asdict(setting)
        if not self._of_logarithms:
            return values
        return {name: math.log10(value) if RANGES[name].log else value for name, value in values.items()}

    def _setting(self, config: dict[str, float]) -> Setting:
        values = {name: float(config[name]) for name in RANGES}
        if self._of_logarithms:
            values = {name: 10**value if RANGES[name].log else value for name, value in values.items()}
        return clipped(Setting(**values))


class _Controller:
    """As much of Ray's TuneController as its synchronous schedulers ask."""

    search_alg = None

    def __init__(self, members: dict[Any, Training]) -> None:
        self._members = members

    def get_trials(self) -> list[Any]:
        return [*self._members]

    get_live_trials = get_trials

    def _schedule_trial_save(self, trial: Any, result: Any = None) -> dict[str, Any]:
        return {"number": self.get_trials().index(trial), "state": self._members[trial].snapshot()}

    def pause_trial(self, trial: Any, should_checkpoint: bool = True) -> None:
        trial.set_status(trial.PAUSED)


def _common() -> dict[str, Any]:
    return {
        "time_attr": _TIME,
        "metric": _METRIC,
        "mode": "min",
        "perturbation_interval": 1,
        "synch": True,
        "log_config": False,
    }


def _pbt() -> Any:
    tune = needed("ray.tune")
    mutations = {
        name: (tune.loguniform if known.log else tune.uniform)(known.low, known.high)
        for name, known in RANGES.items()
    }
    return needed("ray.tune.schedulers").PopulationBasedTraining(hyperparam_mutations=mutations, **_common())


def _pb2() -> Any:
    bounds = {
        name: [math.log10(known.low), math.log10(known.high)] if known.log else [known.low, known.high]
        for name, known in RANGES.items()
    }
    return needed("ray.tune.schedulers.pb2").PB2(hyperparam_bounds=bounds, **_common())


@contextmanager
def _alone(seed: int) -> Iterator[None]:
    """Within, the generators that Ray draws from start from the seed; after, they stand where they stood."""
    numpy = needed("numpy")
    logging.getLogger("ray").setLevel(logging.WARNING)  # it tells of every exploit
    before, array_before = random.getstate(), numpy.random.get_state()
    random.seed(seed)
    numpy.random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)
        numpy.random.set_state(array_before)
