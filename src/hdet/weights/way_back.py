"""Where training can return to: the start of the window, and the beginning of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from hdet.replicas import local
from hdet.weights.room import Where
from hdet.weights.snapshot import Snapshot

__all__ = ["WayBack"]


class WayBack:
    """Two snapshots, or none.

    Args:
        parameters: all of them, the frozen ones too, for they may be freed within a window.
        optimizer: its state is kept, whatever kind it is.
        model: its buffers are kept.
        where: the window's start is kept. The beginning, which is hardly ever read, lies with the host.
    """

    def __init__(
        self, parameters: Sequence[Tensor], optimizer: Optimizer, model: nn.Module, where: Where
    ) -> None:
        self._snapshots: dict[str, Snapshot] = {}
        weights = [local(parameter) for parameter in parameters]
        if where != "off":
            self._snapshots["snapshot"] = Snapshot(weights, optimizer, model, where)
            self._snapshots["beginning"] = Snapshot(weights, optimizer, model, "host")

    @property
    def exists(self) -> bool:
        """Whether there is one."""
        return bool(self._snapshots)

    def begin_run(self) -> None:
        """Everything as it stands is the beginning."""
        if self.exists:
            self._snapshots["beginning"].take()

    def begin_window(self) -> None:
        """Everything as it stands is the window's start."""
        if self.exists:
            self._snapshots["snapshot"].take()

    def to_window(self) -> None:
        """Back to the window's start."""
        self._snapshots["snapshot"].restore()

    def to_beginning(self) -> None:
        """Back to the beginning of the run."""
        self._snapshots["beginning"].restore()

    def bytes(self) -> int:
        """What the copies take."""
        return sum(snapshot.bytes() for snapshot in self._snapshots.values())

    def state_dict(self) -> dict[str, Any]:
        """Both, under their names. A run mostly begins without optimizer state: there is no room for it."""
        saved: dict[str, Any] = dict.fromkeys(("snapshot", "beginning"))
        for name, snapshot in self._snapshots.items():
            saved[name] = snapshot.state_dict(spare_state=name == "snapshot")
        return saved

    def check_state(self, caller: str, state: Mapping[str, Any]) -> None:
        """Raise ValueError for what :meth:`load_state_dict` cannot take."""
        for name, snapshot in self._snapshots.items():
            if state.get(name) is not None:
                snapshot.check_state(caller, state[name])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what there is of them."""
        for name, snapshot in self._snapshots.items():
            if state.get(name) is not None:
                snapshot.load_state_dict(state[name])
