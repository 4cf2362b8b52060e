"""AutoTune's arm: as many replicas as other arms have runs, all of them one run that tunes everything."""

from __future__ import annotations

from hdet.bench.autotune.arena import Arena
from hdet.bench.rows import Row

__all__ = ["autotune"]


def autotune(rank: int, arena: Arena) -> list[Row]:
    """One replica of ``arena.run.members``, on processes of their own that share a gloo group.

    It trains ``arena.workload.steps`` steps on the batches of ``stream(arena.run.seed, rank)``, from
    ``arena.workload.build(arena.run.seed)``, with ``optimizer_of(model)`` and ``arena.task.criterion()``,
    both as they come, and explores within :data:`~hdet.bench.autotune.space.RANGES`. About every
    ``arena.segment`` steps, and once the best weights have been handed over, it calls
    ``arena.ledger.look(model, setting)`` where the replicas are one model; ``arena.ledger.spend`` is told
    the samples of all replicas. Rank 0's ledger counts.

    Returns:
        What was found, one ``arena.trial(0, setting, SEGMENTS, probe)``; a list, as other arms have several.
    """
    raise NotImplementedError(
        "hdet bench autotune: the AutoTune arm waits for hdet.AutoTune; fill in "
        "hdet.bench.autotune.replicas.autotune, or leave the arm out"
    )
