"""A door in a framework's hands: together before anybody looks at the weights, and saved to go on.

Frameworks save the scheduler of rank 0 and hand it to every rank that resumes. That is the whole run where
the replicas have just met. Within a round a horizon that diverges has a path of its own on each rank, and of
a sharded model each rank has its own shards: there, every rank writes a file beside it.
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

__all__ = ["Carried"]

_NEEDED = ("step", "converge", "apart", "replicas", "state_dict", "load_state_dict")


class Carried:
    """What a framework takes for its scheduler. Whatever is not here is the door's own (``finished``, …).

    Args:
        caller: begins the errors.
        door: an AutoLR, AutoTune, OneCycleAutoLR or Ensemble.
    """

    def __init__(self, caller: str, door: Any) -> None:
        missing = [name for name in _NEEDED if not hasattr(door, name)]
        if missing:
            raise TypeError(
                f"{caller}: the door must be an AutoLR, AutoTune, OneCycleAutoLR or Ensemble, got "
                f"{type(door).__name__}, which has no {missing[0]}"
            )
        self.door = door
        #: Where the framework loads from, if it does; the files of the ranks lie there.
        self.folder: Path | None = None
        #: Whether the replicas were brought together within a round, which goes on.
        self._within = False

    def step(self, loss: Tensor | SupportsFloat | None = None) -> SyncRecord | None:
        """As the door's."""
        self._within = False
        record: SyncRecord | None = self.door.step(loss)
        return record

    def converge(self) -> None:
        """Let the replicas be one model, if they are apart. Every rank calls it, before anybody evaluates."""
        if self.door.apart:
            self.door.converge()
            self._within = True

    @contextmanager
    def looked_at(self) -> Iterator[None]:
        """Within, the model is the run's, also where the forward pass reads what is explored."""
        self.converge()
        if hasattr(self.door, "at_base"):
            with self.door.at_base():
                yield
        else:
            yield

    def state_dict(self) -> dict[str, Any]:
        """The state of this rank, and of how many ranks there are files."""
        return {"door": self.door.state_dict(), "files": self._files}

    @property
    def _files(self) -> int:
        replicas = self.door.replicas
        return replicas.ranks if replicas.ranks > 1 and (self._within or replicas.parts > 1) else 0

    def save_own(self, folder: str | PathLike[str]) -> None:
        """Write this rank's file, where rank 0's state is not everybody's. Every rank calls it."""
        if self._files:
            path = self._file(Path(folder))
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.save(self.door.state_dict(), path)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take this rank's own state, or rank 0's where there are no others or another number of ranks."""
        own: Mapping[str, Any] = state.get("door", state)  # or a door's own, saved without us
        if self.folder is not None and state.get("files") == self.door.replicas.ranks:
            path = self._file(self.folder)
            if not path.exists():
                raise FileNotFoundError(
                    f"{type(self.door).__name__}.load_state_dict: the checkpoint must have a file for each "
                    f"of {state['files']} ranks, and lacks {path}; copy the folder whole, from every machine"
                )
            own = torch.load(path, map_location="cpu", weights_only=True)
        self._within = False
        self.door.load_state_dict(own)

    def _file(self, folder: Path) -> Path:
        return folder / f"hdet_{self.door.replicas.place}.pt"

    def __getattr__(self, name: str) -> Any:
        if name == "door":  # not there yet
            raise AttributeError(name)
        return getattr(self.door, name)
