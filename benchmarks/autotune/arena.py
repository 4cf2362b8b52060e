"""What every arm works with: the task, the ledger, and trainings of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from benchmarks.autotune.ledger import Ledger
from benchmarks.autotune.plan import SEGMENTS, Run
from benchmarks.autotune.space import Setting
from benchmarks.autotune.tasks import TASKS, Task
from benchmarks.autotune.training import Training
from benchmarks.rows import Row
from benchmarks.workloads import Workload

__all__ = ["INSTALL", "Arena", "needed"]

INSTALL = "pip install -r benchmarks/requirements.txt"


@dataclass(frozen=True)
class Arena:
    """One run's task at its scale, and the ledger in which the run is written down."""

    run: Run
    task: Task
    workload: Workload
    ledger: Ledger

    @classmethod
    def of(cls, run: Run) -> Arena:
        """The arena of a run, nothing spent."""
        workload = run.workload
        return cls(run, TASKS[run.task], workload, Ledger(workload, run.seed, workload.build(run.seed)))

    @property
    def segment(self) -> int:
        """Steps of a part of a single run."""
        return self.workload.steps // SEGMENTS

    def training(
        self, number: int, setting: Setting, steps: int | None = None, *, batches: int = 1
    ) -> Training:
        """A training on the batches of this number, or on so many of them together."""
        return Training(
            self.task,
            self.workload,
            self.ledger,
            seed=self.run.seed,
            number=number,
            setting=setting,
            steps=steps,
            batches=batches,
        )

    def trial(self, number: int, setting: Setting, segments: int, probe: float) -> Row:
        """What a row keeps of one training."""
        return {"number": number, **asdict(setting), "segments": segments, "probe": probe}


def needed(package: str) -> Any:
    """The package, imported only now; an error says how to get it."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"python -m benchmarks autotune: this arm needs {package.partition('.')[0]}: {INSTALL}"
        ) from error
