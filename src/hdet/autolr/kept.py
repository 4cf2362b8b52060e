"""One copy of the weights, and of the buffers that stood beside them, in memory that is written over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hdet.autolr.room import copy_into, room_for, settled
from hdet.loop.state import pieces_of
from hdet.replicas import drop_gathered, local

__all__ = ["Kept"]


class Kept:
    """What can be written back into a model.

    Args:
        model: whose buffers are kept, too.
        parameters: all that may ever be trained. What is never trained is not copied.
        offload: whether the copies lie in the host's memory.
    """

    def __init__(self, model: nn.Module, parameters: Sequence[Tensor], *, offload: bool) -> None:
        self._model = model
        self._whole = list(parameters)
        self._parameters = {i: local(p) for i, p in enumerate(parameters)}
        self._offload = offload
        self._weights: dict[int, Tensor] = {}
        self._buffers: dict[str, Tensor] = {}

    @torch.no_grad()
    def take(self, weights: Mapping[int, Tensor]) -> None:
        """Copy weights, by the number of their parameter, and the buffers as they stand.

        A parameter that was kept and is not given (frozen meanwhile) is kept as it stands now.
        """
        given = {i: self._parameters[i] for i in self._weights} | dict(weights)
        for i, weight in given.items():
            kept = self._weights.get(i)
            if kept is None:
                kept = self._weights[i] = room_for(self._parameters[i], offload=self._offload)
            copy_into(kept, weight)
        before, self._buffers = self._buffers, {}
        for name, buffer in self._model.named_buffers():
            kept = before.get(name)
            if kept is None or kept.shape != buffer.shape or kept.dtype != buffer.dtype:
                kept = room_for(buffer, offload=self._offload)
            copy_into(kept, buffer)
            self._buffers[name] = kept

    @torch.no_grad()
    def join(self, parameters: Mapping[int, Tensor]) -> None:
        """Parameters that are trained from now on: until here they have not changed."""
        self._parameters |= parameters
        if self._weights:
            for i, parameter in parameters.items():
                if i not in self._weights:
                    self._weights[i] = self._copy(parameter)

    @torch.no_grad()
    def write_(self) -> None:
        """Into the model, in place."""
        for i, kept in self._weights.items():
            self._parameters[i].detach().copy_(kept)
        buffers = dict(self._model.named_buffers())
        for name, kept in self._buffers.items():
            if name in buffers and buffers[name].shape == kept.shape:
                buffers[name].copy_(kept)
        drop_gathered(self._model)

    def clear(self) -> None:
        """Forget what was kept."""
        self._weights, self._buffers = {}, {}

    def bytes(self) -> int:
        """What the copies take."""
        return sum(t.numel() * t.element_size() for t in (*self._weights.values(), *self._buffers.values()))

    def state_dict(self) -> dict[str, Any]:
        """The copies themselves, with room for what may be kept one day."""
        settled()
        later = [i for i, p in enumerate(self._whole) if p.requires_grad and i not in self._weights]
        room = {i: partial(room_for, self._parameters[i].detach(), offload=self._offload) for i in later}
        held = pieces_of(self._weights, self._whole) | pieces_of(room, self._whole)
        return {"weights": held, "buffers": [[name, kept] for name, kept in self._buffers.items()]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the copies of another run of the same model."""
        self._weights = {
            i: room_for(self._parameters[i], offload=self._offload).copy_(saved)
            for i, saved in state["weights"].items()
        }
        self._buffers = {name: self._copy(saved) for name, saved in state["buffers"]}

    def _copy(self, tensor: Tensor) -> Tensor:
        room = room_for(tensor, offload=self._offload)
        copy_into(room, tensor)
        return room
