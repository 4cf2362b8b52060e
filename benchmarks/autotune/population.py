"""Populations: PBT and PB2, each member a training, exploited at the end of every part of a run.

Who is exploited gets weights, optimizer state and the choice so far of the better one, goes on with batches
of its own, and has handed over its best before. Members are trained in turn, in one process: nothing hangs
on timing, and a seed decides all of it. The schedulers are ours, see :mod:`benchmarks.autotune.twins`.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from itertools import islice

from benchmarks.autotune import twins
from benchmarks.autotune.arena import Arena
from benchmarks.autotune.plan import PB2, SEGMENTS
from benchmarks.autotune.space import drawn
from benchmarks.rows import Row

__all__ = ["GIVEN", "Population", "populate"]

_TWIN = "our twin of Ray 2.60's, held against it in benchmarks/autotune/twins-ray.json: "
#: What each scheduler is given, as the result says it.
GIVEN = {
    "PBT": f"{_TWIN}PopulationBasedTraining(perturbation_interval=1 part, synch=True, all else as it comes: "
    "quantile_fraction=0.25, resample_probability=0.25, perturbation_factors=(1.2, 0.8))",
    "PB2": f"{_TWIN}PB2(perturbation_interval=1 part, synch=True, quantile_fraction=0.25; bounds of learning "
    "rate and weight decay as logarithms, which its Gaussian process is even in)",
}


def populate(arena: Arena) -> list[Row]:
    """As many members as the budget has single runs, from the settings of random search to the end."""
    population = Population(arena)
    for part in range(1, SEGMENTS + 1):
        losses = [member.advance(arena.segment) for member in population.members]
        if part < SEGMENTS:
            population.exploit(part, losses)
    return [
        {**arena.trial(number, member.setting, SEGMENTS, member.finish_()), "parents": parents}
        for number, (member, parents) in enumerate(zip(population.members, population.parents, strict=True))
    ]


class Population:
    """Members, and the scheduler that says who becomes a copy of whom."""

    def __init__(self, arena: Arena) -> None:
        run = arena.run
        self._tuned = arena.task.tuned
        self._scheduler = (twins.PB2 if run.arm == PB2 else twins.PBT)(arena.task.ranges, run.seed)
        settings = islice(drawn(run.seed, run.task, arena.task.tuned), run.members)
        self.members = [arena.training(number, setting) for number, setting in enumerate(settings)]
        #: Of each member, whom it was a copy of, part by part, where it became one.
        self.parents: list[list[list[int]]] = [[] for _ in self.members]

    def exploit(self, part: int, losses: list[float]) -> None:
        """Tell the scheduler how all members stand, and do what it says."""
        values = [asdict(member.setting) for member in self.members]
        settings = [{name: value[name] for name in self._tuned} for value in values]
        for number, parent, found in self._scheduler.after(part, losses, settings):
            member, better = self.members[number], self.members[parent]
            member.finish_()
            member.restore_(better.snapshot())
            member.setting = replace(better.setting, **found)
            self.parents[number].append([part, parent])
