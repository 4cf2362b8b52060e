"""The twins of PBT and PB2 held against Ray's own, on a task that is a formula.

``python -m benchmarks.autotune.held_against_ray --output benchmarks/autotune/twins-ray.json``, where Ray is
installed (``pip install -r benchmarks/requirements.txt``). Two questions, for four and for eight members:

- decisions: Ray runs a population; the twin is told of the same losses, and both draw the same numbers. How
  often does it choose the same parent, and a setting that is nowhere a hundredth of its range away?
- outcomes: the twin runs as many populations of its own, of other seeds. Are the final best losses alike?
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import platform
import random
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, stdev
from typing import Any
from unittest import mock

from benchmarks.autotune import twins
from benchmarks.autotune.space import Range
from benchmarks.autotune.twins import Move, Values, share_of

__all__ = ["Ray", "compared", "main", "run"]

PARTS = 10
SPACE = {
    "lr": Range(1e-5, 1e-1, log=True),
    "weight_decay": Range(1e-4, 1.0, log=True),
    "dropout": Range(0.0, 0.6),
    "label_smoothing": Range(0.0, 0.3),
}
TWINS = {"PBT": twins.PBT, "PB2": twins.PB2}


class Ray:
    """Ray's scheduler in the manner of a twin; it takes this for its controller, and a trial for a member."""

    search_alg = None

    def __init__(self, kind: str, settings: Sequence[Values], seed: int) -> None:
        self._draw = random.Random(seed)
        tune, schedulers = import_module("ray.tune"), import_module("ray.tune.schedulers.pb2")
        logging.getLogger("ray").setLevel(logging.WARNING)  # it tells of every exploit
        common = {"time_attr": "part", "metric": "loss", "mode": "min", "perturbation_interval": 1}
        common |= {"synch": True, "log_config": False}
        self._logarithms = {name for name in SPACE if kind == "PB2" and SPACE[name].log}
        if kind == "PB2":
            ends = [
                self._config({name: getattr(SPACE[name], end) for name in SPACE}) for end in ("low", "high")
            ]
            bounds = {name: [end[name] for end in ends] for name in SPACE}
            self._scheduler = schedulers.PB2(hyperparam_bounds=bounds, **common)
        else:
            ranges = {
                name: (tune.loguniform if known.log else tune.uniform)(known.low, known.high)
                for name, known in SPACE.items()
            }
            self._scheduler = schedulers.PopulationBasedTraining(
                hyperparam_mutations=ranges, custom_explore_fn=_clipped, **common
            )
        self._trials = [
            tune.experiment.Trial("hdet", config=self._config(setting), trial_id=f"{number:05d}", stub=True)
            for number, setting in enumerate(settings)
        ]
        for trial in self._trials:
            trial.set_status(trial.RUNNING)
            self._scheduler.on_trial_add(self, trial)

    def after(self, part: int, losses: Sequence[float], settings: Sequence[Values]) -> list[Move]:
        with (
            warnings.catch_warnings(),
            mock.patch("ray.tune.schedulers.pbt.random", self._draw),
            mock.patch("numpy.random.uniform", self._uniform),
        ):
            warnings.simplefilter("ignore")  # of a Gaussian process that does not converge
            for trial, loss in zip(self._trials, losses, strict=True):
                self._scheduler.on_trial_result(self, trial, {"part": part, "loss": loss})
        moves = []
        for number, trial in enumerate(self._trials):
            # Ray 2.60 leaves here what a trial is to go on from; its cluster reads it when the trial resumes.
            manager = trial.run_metadata.checkpoint_manager
            given, manager._latest_checkpoint_result = manager._latest_checkpoint_result, None
            trial.set_status(trial.RUNNING)
            if given is not None:
                moves.append((number, given.checkpoint[0], self._values(trial.config)))
        return moves

    def get_trials(self) -> list[Any]:
        return self._trials

    get_live_trials = get_trials

    def pause_trial(self, trial: Any, should_checkpoint: bool = True) -> None:
        trial.set_status(trial.PAUSED)

    def _schedule_trial_save(self, trial: Any, result: Any = None) -> list[int]:
        return [self._trials.index(trial)]

    def _uniform(self, low: float, high: float, size: int) -> Any:
        """In place of numpy's, which has a generator of its own."""
        return import_module("numpy").array([self._draw.uniform(low, high) for _ in range(size)])

    def _config(self, setting: Values) -> Values:
        return {
            name: math.log10(value) if name in self._logarithms else value for name, value in setting.items()
        }

    def _values(self, config: Values) -> Values:
        return _clipped(
            {name: 10**value if name in self._logarithms else value for name, value in config.items()}
        )


def _clipped(setting: Values) -> Values:
    return {name: SPACE[name].clip(value) for name, value in setting.items()}


def _drawn(draw: random.Random) -> Values:
    return {name: known.at(draw.random()) for name, known in SPACE.items()}


class Population:
    """Members whose losses fall the faster the nearer a setting is to the best, which moves along the run."""

    def __init__(self, members: int, seed: int) -> None:
        self._draw = random.Random(f"population {seed}")
        self.settings = [_drawn(self._draw) for _ in range(members)]
        self._heights = [2.0] * members

    def advance(self, part: int) -> list[float]:
        """One part; the losses, measured with noise."""
        bowls = [
            (math.log10(setting["lr"]) + 2 + part / PARTS) ** 2
            + 0.3 * (math.log10(setting["weight_decay"]) + 2) ** 2
            + 10 * (setting["dropout"] - 0.2) ** 2
            + 20 * (setting["label_smoothing"] - 0.1) ** 2
            for setting in self.settings
        ]
        self._heights = [
            height * (1 - 0.3 * math.exp(-bowl)) for height, bowl in zip(self._heights, bowls, strict=True)
        ]
        return [
            height + 0.02 * min(bowl, 5.0) + 0.01 * self._draw.gauss(0, 1)
            for height, bowl in zip(self._heights, bowls, strict=True)
        ]

    def move(self, moves: Sequence[Move]) -> None:
        """Let members become copies."""
        for number, parent, setting in moves:
            self._heights[number], self.settings[number] = self._heights[parent], setting


def run(kind: str, members: int, seed: int, ray: bool) -> tuple[float, list[bool]]:
    """The best loss at the end of a population; of each move of Ray's, whether the twin would do the same."""
    population = Population(members, seed)
    twin = TWINS[kind](SPACE, seed)
    theirs = Ray(kind, population.settings, seed) if ray else None
    same = []
    for part in range(1, PARTS):
        losses = population.advance(part)
        moves = twin.after(part, losses, population.settings)
        if theirs is not None:
            told, moves = dict(_keyed(moves)), theirs.after(part, losses, population.settings)
            same += [_alike(told[number], move) for number, move in _keyed(moves)]
        population.move(moves)
    return min(population.advance(PARTS)), same


def _keyed(moves: Sequence[Move]) -> Iterator[tuple[int, Move]]:
    return ((move[0], move) for move in moves)


def _alike(one: Move, other: Move) -> bool:
    """The same parent, and settings that are nowhere a hundredth of the range apart."""
    apart = (share_of(known, one[2][name]) - share_of(known, other[2][name]) for name, known in SPACE.items())
    return one[:2] == other[:2] and all(abs(way) < 0.01 for way in apart)


def compared(kind: str, members: int, seeds: int, processes: int) -> dict[str, Any]:
    """Both questions of one scheduler and size of population."""
    stats = import_module("scipy.stats")
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        given = [(kind, members, seed, seed < seeds) for seed in range(2 * seeds)]
        found = [*pool.map(run, *zip(*given, strict=True))]
    same = [one for _, moves in found for one in moves]
    losses = [loss for loss, _ in found]
    theirs, ours = losses[:seeds], losses[seeds:]
    welch = float(stats.ttest_ind(theirs, ours, equal_var=False).pvalue)
    smirnov = float(stats.ks_2samp(theirs, ours).pvalue)
    return {
        "scheduler": kind,
        "members": members,
        "seeds": seeds,
        "decisions": len(same),
        "same_decisions": fmean(same),
        "ray": _mean(theirs),
        "twin": _mean(ours),
        "p_means_welch": welch,
        "p_distributions_kolmogorov_smirnov": smirnov,
        "verdict": "agree" if min(welch, smirnov) > 0.01 else "differ",
    }


def _mean(losses: Sequence[float]) -> dict[str, float]:
    return {"mean": fmean(losses), "standard_error": stdev(losses) / math.sqrt(len(losses))}


def main() -> None:
    """All comparisons, as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    found: dict[str, Any] = {
        "command": f"python -m benchmarks.autotune.held_against_ray --seeds {given.seeds}",
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("ray", "scikit-learn", "scipy", "numpy", "torch")},
        },
        "parts": PARTS,
        "comparisons": [],
    }
    for kind in TWINS:
        for members in (4, 8):
            found["comparisons"].append(compared(kind, members, given.seeds, given.processes))
            given.output.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
