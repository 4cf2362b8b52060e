"""Wraps an hdet scheduler for a framework: averages replicas before weights are read, and saves all states.

Frameworks save rank 0's scheduler and load it on every rank. Right after a sync that is enough. Between two
syncs each replica that diverges has its own path, and each rank of a sharded model has its own shards: then
every rank writes a file of its own, next to the framework's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any, SupportsFloat

import torch
from torch import Tensor

from hdet.history import SyncRecord

__all__ = ["WrappedScheduler"]

_NEEDED = ("step", "converge", "apart", "replicas", "state_dict", "load_state_dict")


class WrappedScheduler:
    """What a framework takes for its scheduler; every other attribute is the door's (``finished``, …).

    Args:
        caller: prefix for error messages.
        door: an AutoLR, AutoTune, OneCycleAutoLR or Ensemble.
    """

    def __init__(self, caller: str, door: Any) -> None:
        missing = [name for name in _NEEDED if not hasattr(door, name)]
        if missing:
            raise TypeError(
                f"{caller}: the door must be an AutoLR, AutoTune, OneCycleAutoLR or Ensemble, got "
                f"{type(door).__name__}, which has no {missing[0]}"
            )
        #: The door itself.
        self.auto = door
        #: Where the framework loads from.
        self.folder: Path | None = None
        #: Whether replicas were averaged between two syncs, since the last step.
        self._averaged_early = False

    def step(self, loss: Tensor | SupportsFloat | None = None) -> SyncRecord | None:
        """As the door's."""
        self._averaged_early = False
        record: SyncRecord | None = self.auto.step(loss)
        return record

    def converge(self) -> None:
        """Average the replicas if they differ. Every rank calls it, before weights are evaluated or saved."""
        if self.auto.apart:
            self.auto.converge()
            self._averaged_early = True

    @contextmanager
    def converged(self) -> Iterator[None]:
        """Inside, replicas are one model, at the base value of what the forward pass reads."""
        self.converge()
        if not hasattr(self.auto, "at_base"):
            yield
            return
        with self.auto.at_base():
            yield

    @property
    def _files(self) -> int:
        """How many ranks write a file: all, or none where rank 0's state is enough."""
        replicas = self.auto.replicas
        several = replicas.world_size > 1 and (self._averaged_early or replicas.ranks_per_replica > 1)
        return replicas.world_size if several else 0

    def state_dict(self) -> dict[str, Any]:
        """This rank's state, and how many ranks wrote a file."""
        return {"door": self.auto.state_dict(), "files": self._files}

    def save_rank(self, folder: str | PathLike[str]) -> None:
        """Write this rank's file, if files are needed. Every rank calls it."""
        if self._files:
            Path(folder).mkdir(parents=True, exist_ok=True)
            torch.save(self.auto.state_dict(), self._file(Path(folder)))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load this rank's file; rank 0's state if there are no files, or for another number of ranks."""
        own: Mapping[str, Any] = state.get("door", state)  # or a door's own state, saved without this class
        if self.folder is not None and state.get("files") == self.auto.replicas.world_size:
            path = self._file(self.folder)
            if not path.exists():
                raise FileNotFoundError(
                    f"{type(self.auto).__name__}.load_state_dict: the checkpoint must have a file for each "
                    f"of {state['files']} ranks, and lacks {path}; copy the folder whole, from every machine"
                )
            own = torch.load(path, map_location="cpu", weights_only=True)
        self._averaged_early = False
        self.auto.load_state_dict(own)

    def _file(self, folder: Path) -> Path:
        return folder / f"hdet_{self.auto.replicas.world_rank}.pt"

    def __getattr__(self, name: str) -> Any:
        if name == "auto":  # not set yet
            raise AttributeError(name)
        if name == "door":
            raise AttributeError(f"{type(self).__name__}.door was renamed in 0.3.0: use .auto")
        return getattr(self.auto, name)
