"""What every door shows of the run behind it, under the same names; ``Ensemble`` is the run itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from hdet.engine.cycle import Cycle
from hdet.history import SyncRecord
from hdet.replicas import Replicas

__all__ = ["Face"]


class Face:
    """A scheduler with a cycle behind it."""

    @property
    @abstractmethod
    def _engine(self) -> Cycle:
        """The cycle."""

    @property
    def steps(self) -> int:
        """Optimizer steps counted so far; what a fused optimizer has skipped on the device is taken back at a
        sync."""
        return self._engine.steps

    @property
    def sync_every(self) -> int | None:
        """T, the steps from one sync to the next; None where windows grow with the run."""
        return self._engine.sync_every

    @property
    def spread(self) -> float:
        """α, how far from the base the replicas' learning rates are."""
        return self._engine.spread

    @property
    def values(self) -> dict[str, float]:
        """The base value of everything that is explored, by name; of a learning rate its present one."""
        return self._engine.values

    @property
    def replica_lrs(self) -> list[float]:
        """The learning rate that this replica's next optimizer step uses, for each parameter group."""
        return self._engine.replica_lrs

    @property
    def replicas(self) -> Replicas:
        """The replicas this process is one of."""
        return self._engine.replicas

    @property
    def apart(self) -> bool:
        """Whether the replicas' weights differ now, so that one rank's are not the run's."""
        return self._engine.apart

    @property
    def history(self) -> list[SyncRecord]:
        """The records of the last syncs, a thousand at most; a file keeps all (``history=`` of the door)."""
        return self._engine.history

    def converge(self) -> None:
        """Average replicas that diverge now, without ending the round. Every rank must call it."""
        self._engine.converge()

    @contextmanager
    def at_base(self) -> Iterator[None]:
        """Within, the base values stand everywhere; the weights stay this replica's own."""
        with self._engine.at_base():
            yield

    def detach(self) -> None:
        """Let go of the optimizer and of what is explored; the base values stay."""
        self._engine.detach()
