"""Where training can return to: the start of the window, and the beginning of the run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from hdet.autolr.snapshot import Snapshot
from hdet.replicas import local

__all__ = ["WayBack"]


class WayBack:
    """Two snapshots.

    Args:
        parameters: all of them, the frozen ones too, for they may be freed within a window.
        optimizer: its state is kept, whatever kind it is.
        model: its buffers are kept.
        offload: whether the window's start is kept in the host's memory. The beginning, which is hardly ever
            read, always is.
    """

    def __init__(
        self, parameters: Sequence[Tensor], optimizer: Optimizer, model: nn.Module, *, offload: bool
    ) -> None:
        weights = [local(parameter) for parameter in parameters]
        self._window = Snapshot(weights, optimizer, model, offload=offload)
        self._beginning = Snapshot(weights, optimizer, model, offload=True)
        self.begin_window, self.to_window = self._window.take, self._window.restore
        self.begin_run, self.to_beginning = self._beginning.take, self._beginning.restore

    def bytes(self) -> int:
        """What the copies take."""
        return self._window.bytes() + self._beginning.bytes()

    def state_dict(self) -> dict[str, Any]:
        """Both. A run mostly begins without optimizer state: there is no room for it."""
        return {
            "snapshot": self._window.state_dict(),
            "beginning": self._beginning.state_dict(spare_state=False),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over both."""
        self._window.load_state_dict(state["snapshot"])
        self._beginning.load_state_dict(state["beginning"])
