"""The way back: weights, optimizer state and buffers as they were when the window began.

One copy of each, in memory that is kept and written over: on the device, or in the host's (pinned where
there is an accelerator), which is slower and takes nothing from the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["Snapshot", "Where"]

Where = Literal["device", "host", "off"]
#: Kind of home (weight, buffer, state, group), its number, the name in it.
_Key = tuple[str, int, str]
#: What a parameter group holds that is the user's or the schedule's, not the optimizer's.
_NOT_STATE = frozenset({"params", "lr", "initial_lr", "param_names"})


class Snapshot:
    """What training can return to.

    Args:
        weights: the trained parameters.
        optimizer: its state is kept, whatever kind it is.
        model: its buffers are kept.
        where: ``"device"`` or ``"host"``.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        optimizer: Optimizer,
        model: nn.Module,
        where: Literal["device", "host"],
    ) -> None:
        self._weights = list(weights)
        self._optimizer = optimizer
        self._model = model
        self._where = where
        self._tensors: dict[_Key, Tensor] = {}
        self._values: dict[_Key, Any] = {}

    @torch.no_grad()
    def take(self) -> None:
        """Copy everything as it stands."""
        tensors, values = self._now()
        for gone in self._tensors.keys() - tensors.keys():
            del self._tensors[gone]
        for key, tensor in tensors.items():
            kept = self._tensors.get(key)
            if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
                kept = self._tensors[key] = self._room_for(tensor)
            kept.copy_(tensor)
        self._values = values

    @torch.no_grad()
    def restore(self) -> None:
        """Bring everything back, in place; state that did not exist then is removed."""
        tensors, values = self._now()
        for kind, i, name in (tensors.keys() | values.keys()) - self._tensors.keys() - self._values.keys():
            del self._home(kind, i)[name]
        for key, tensor in tensors.items():
            if key in self._tensors:
                tensor.copy_(self._tensors[key])
        for (kind, i, name), value in self._values.items():
            self._home(kind, i)[name] = value

    def bytes(self) -> int:
        """What the copies take."""
        return sum(kept.numel() * kept.element_size() for kept in self._tensors.values())

    def state_dict(self) -> dict[str, Any]:
        """The copies themselves, so that a resumed run can go back to where the unbroken one could."""
        return {
            "tensors": [[*key, tensor.clone()] for key, tensor in self._tensors.items()],
            "values": [[*key, value] for key, value in self._values.items()],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the copies of another run of the same model and optimizer."""
        here = self._weights[0].device
        self._tensors = {
            (kind, i, name): self._room_for(saved.to(here)).copy_(saved)
            for kind, i, name, saved in state["tensors"]
        }
        self._values = {(kind, i, name): value for kind, i, name, value in state["values"]}

    def _now(self) -> tuple[dict[_Key, Tensor], dict[_Key, Any]]:
        """Everything that training changes: tensors, and plain values such as counters."""
        tensors: dict[_Key, Tensor] = {
            ("weight", i, ""): weight.detach() for i, weight in enumerate(self._weights)
        }
        tensors |= {("buffer", 0, name): buffer for name, buffer in self._model.named_buffers()}
        values: dict[_Key, Any] = {}
        homes = [("state", i) for i, p in enumerate(self._parameters()) if p in self._optimizer.state]
        homes += [("group", i) for i in range(len(self._optimizer.param_groups))]
        for kind, i in homes:
            for name, value in self._home(kind, i).items():
                if kind == "group" and name in _NOT_STATE:
                    continue
                if isinstance(value, Tensor):
                    tensors[kind, i, name] = value
                else:
                    values[kind, i, name] = value
        return tensors, values

    def _parameters(self) -> list[Tensor]:
        return [p for group in self._optimizer.param_groups for p in group["params"]]

    def _home(self, kind: str, i: int) -> dict[str, Any]:
        home: dict[str, Any] = (
            self._optimizer.param_groups[i]
            if kind == "group"
            else self._optimizer.state[self._parameters()[i]]
        )
        return home

    def _room_for(self, tensor: Tensor) -> Tensor:
        if self._where == "device" or tensor.device.type == "cpu":
            return torch.empty_like(tensor, memory_format=torch.preserve_format)
        return torch.empty_like(tensor, device="cpu", pin_memory=tensor.device.type == "cuda")
