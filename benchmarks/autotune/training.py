"""One model in training at one setting, a part of its run at a time: a trial, or a member of a population.

AdamW, OneCycleLR's curve over the whole run at the setting's peak, and :class:`hdet.BestMean` beside it,
which keeps the best of the windows' means and last iterates by the probe: the same choice for every arm.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import torch

from benchmarks.autotune.ledger import Ledger
from benchmarks.autotune.space import Setting
from benchmarks.autotune.tasks import Task, optimizer_of, put
from benchmarks.workloads import Batch, Workload
from benchmarks.workloads.base import ByNumber, generator, seeded
from hdet.autolr.best_mean import BestMean
from hdet.autolr.schedule import OneCycle
from hdet.probes.probe import Probe

__all__ = ["Training", "joined", "stream"]

# More than any search has trials, so that no two of any two seeds draw the same batches.
_SEED_STRIDE = 10_000


def stream(seed: int, number: int) -> int:
    """The seed of the batches, and of the dropout, of a trial, a member or a replica with this number."""
    return _SEED_STRIDE * seed + number


def joined(workload: Workload, seed: int, numbers: Iterable[int]) -> Iterator[Batch]:
    """The batches of all these numbers, one of each together."""
    streams = [workload.batches(stream(seed, number)) for number in numbers]
    if len(streams) == 1:
        return streams[0]
    return (tuple(map(torch.cat, zip(*parts, strict=True))) for parts in zip(*streams, strict=True))


class Training:
    """All trainings of a seed start from the same weights; batches are each one's own.

    Args:
        task: what is trained.
        workload: the task at its scale.
        ledger: what it spends is written there, and what it could hand over is measured there.
        seed: of the weights.
        number: of the batches and the dropout, together with the seed.
        setting: what it is trained with.
        steps: of its schedule, those of the workload if None.
        batches: how many make one step.
    """

    def __init__(
        self,
        task: Task,
        workload: Workload,
        ledger: Ledger,
        *,
        seed: int,
        number: int,
        setting: Setting,
        steps: int | None = None,
        batches: int = 1,
    ) -> None:
        self.setting = setting
        self.model = workload.build(seed).train()
        self.optimizer = optimizer_of(self.model)
        self.taken = 0
        self._task, self._workload, self._ledger = task, workload, ledger
        self._seed, self._stream = seed, stream(seed, number)
        self._criterion = task.criterion()
        self._shape = OneCycle(workload.steps if steps is None else steps)
        self._batches = joined(workload, seed, range(number, number + batches))
        self._best = self._chooser()

    def advance(self, steps: int) -> float:
        """Train for so many steps; the probe's loss of the weights as they then stand."""
        put(self.setting, self.model, self.optimizer, self._criterion)
        draw = generator(self._stream, f"autotune dropout {self.taken}").initial_seed()
        with seeded(draw):
            if torch.cuda.is_available():
                torch.cuda.manual_seed(draw)
            for batch in islice(self._batches, steps):
                self._step(batch)
        return self._ledger.look(self.model, self.setting)

    def finish_(self) -> float:
        """Let the model hold the best weights that were seen; their loss on the probe."""
        self._best.finish_()
        return self._ledger.look(self.model, self.setting)

    def snapshot(self) -> dict[str, Any]:
        """Weights, the optimizer's state, the choice so far, and how many steps that took: a copy."""
        return copy.deepcopy(
            {
                "model": self.model.state_dict(),
                "optimizer": self.optimizer.state_dict(),
                "best": self._best.state_dict(),
                "taken": self.taken,
            }
        )

    def restore_(self, saved: dict[str, Any]) -> None:
        """Go on from another training's snapshot, on one's own batches and at one's own setting."""
        saved = copy.deepcopy(saved)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self._best = self._chooser()
        self._best.load_state_dict(saved["best"])
        self.taken = saved["taken"]

    def _step(self, batch: Batch) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = self.setting.lr * self._shape(self.taken)
        self.optimizer.zero_grad(set_to_none=True)
        self._criterion(*self._task.outputs(self.model, batch)).backward()
        self.optimizer.step()
        self.taken += 1
        self._ledger.spend(len(batch[0]))
        self._best.step()

    def _chooser(self) -> BestMean:
        workload, model = self._workload, self.model
        probe = Probe(
            lambda batch: workload.loss(model, batch), ByNumber(workload.probe(self._seed)), model=model
        )
        return BestMean(model, probe)
