"""The way back: weights, optimizer state and buffers as they were when the window began.

One copy of each, in memory that is kept and written over: on the device, or in the host's (pinned where
there is an accelerator), which is slower and takes nothing from the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hdet.autolr.room import bytes_of, copy_into, copy_of, fits, room_for, settled
from hdet.loop.optimizers import every_parameter
from hdet.loop.state import Own, Piece
from hdet.replicas import drop_gathered, is_dtensor, local, sharded_like, state_of

__all__ = ["Snapshot"]

#: Kind of home (weight, buffer, state, group), its number, the name in it.
_Key = tuple[str, int, str]
#: What a parameter group holds that is the user's or the schedule's, not the optimizer's.
_NOT_STATE = frozenset({"params", "lr", "initial_lr", "param_names"})


class Snapshot:
    """What training can return to.

    Args:
        weights: the parameters.
        optimizer: its state is kept, whatever kind it is.
        model: its buffers are kept.
        offload: whether the copies lie in the host's memory.
    """

    def __init__(
        self,
        weights: Sequence[Tensor],
        optimizer: Optimizer,
        model: nn.Module,
        *,
        offload: bool,
    ) -> None:
        self._weights = list(weights)
        self._optimizer = optimizer
        self._model = model
        self._offload = offload
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
            if kept is None or not fits(kept, tensor) or kept.dtype != tensor.dtype:
                kept = self._tensors[key] = room_for(tensor, offload=self._offload)
            copy_into(kept, tensor)
        self._values = values

    @torch.no_grad()
    def restore(self) -> None:
        """Bring everything back, in place; state that did not exist then is removed."""
        tensors, values = self._now()
        homes = self._homes()
        groups = {i for kind, i, _ in self._values if kind == "group"}
        for kind, i, name in (tensors.keys() | values.keys()) - self._tensors.keys() - self._values.keys():
            # A buffer made since then is a cache, not a statistic; a group added since then is the user's.
            if kind == "state" or (kind == "group" and i in groups):
                del homes[kind, i][name]
        for key, kept in self._tensors.items():
            kind, i, name = key
            if key in tensors and fits(tensors[key], kept):
                copy_into(tensors[key], kept)
            elif kind in ("state", "group") and (kind, i) in homes:
                settled()
                again = copy_of(kept, self._weights[0].device)
                homes[kind, i][name] = sharded_like(self._parameters[i], again) if kind == "state" else again
        for (kind, i, name), value in self._values.items():
            homes[kind, i][name] = _own(value)
        drop_gathered(self._model)

    def bytes(self) -> int:
        """What the copies take."""
        return sum(map(bytes_of, self._tensors.values()))

    def state_dict(self, *, spare_state: bool = True) -> dict[str, Any]:
        """The copies themselves, so that a resumed run can go back to where the unbroken one could.

        ``spare_state``: there is room for optimizer state that was not there yet, too. Without it a run can
        do without state that was.
        """
        settled()
        kept: dict[str, Any] = {"weight": {}, "buffer": [], "state": {}, "group": {}}
        for (kind, i, name), tensor in self._tensors.items():
            if kind == "weight":
                kept[kind][i] = Piece(tensor, self._parameters[i])
            elif kind == "buffer":
                kept[kind].append([name, tensor])
            else:
                held = tensor if kind == "group" else self._of_state(i, tensor, may_miss=not spare_state)
                kept[kind].setdefault(i, {})[name] = held
        for (kind, i, name), tensor in self._now()[0].items():
            if (kind, i, name) in self._tensors or kind not in ("weight", "state"):
                continue
            parameter, room = self._parameters[i], partial(room_for, tensor, offload=self._offload)
            if kind == "weight":
                kept[kind][i] = Piece(room, parameter)
            elif spare_state and _is_whole(parameter, tensor):
                kept[kind].setdefault(i, {})[name] = Piece(room, parameter)
        return {"kept": kept, "values": [[*key, value] for key, value in self._values.items()]}

    def _of_state(self, i: int, tensor: Tensor, *, may_miss: bool) -> Piece | Own | Tensor:
        """What an optimizer keeps of a parameter: a tensor as large as that, a counter, or something else, of
        which nobody knows what another rank has."""
        parameter = self._parameters[i]
        if _is_whole(parameter, tensor):
            return Piece(tensor, parameter, may_miss=may_miss)
        return Own(tensor) if is_dtensor(parameter) and tensor.numel() > 1 else tensor

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the copies of another run of the same model and optimizer."""
        here = self._weights[0].device
        self._tensors = {}
        for kind, i, name, saved in _entries(state):
            placed = saved if saved.device == here else copy_of(saved, here)
            kept = self._tensors[kind, i, name] = room_for(placed, offload=self._offload)
            copy_into(kept, saved)
        self._values = {(kind, i, name): value for kind, i, name, value in state["values"]}

    def _now(self) -> tuple[dict[_Key, Tensor], dict[_Key, Any]]:
        """Everything that training changes: tensors, and plain values such as counters."""
        tensors: dict[_Key, Tensor] = {
            ("weight", i, ""): weight.detach() for i, weight in enumerate(self._weights)
        }
        tensors |= {("buffer", 0, name): local(buffer) for name, buffer in self._model.named_buffers()}
        values: dict[_Key, Any] = {}
        for (kind, i), home in self._homes().items():
            for name, value in home.items():
                if kind == "group" and name in _NOT_STATE:
                    continue
                if isinstance(value, Tensor):
                    tensors[kind, i, name] = local(value)
                else:
                    values[kind, i, name] = _own(value)
        return tensors, values

    @property
    def _parameters(self) -> list[Tensor]:
        return every_parameter(self._optimizer)

    def _homes(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Where the optimizer keeps things: its state of each parameter, and its groups."""
        groups = self._optimizer.param_groups
        state = state_of(self._optimizer)
        homes = {("state", i): state[p] for i, p in enumerate(self._parameters) if p in state}
        return homes | {("group", i): group for i, group in enumerate(groups)}


def _is_whole(parameter: Tensor, tensor: Tensor) -> bool:
    """Whether this is as large as the parameter; one that is made of several tensors never is."""
    return tensor.shape == local(parameter).shape and not hasattr(tensor, "__tensor_flatten__")


def _entries(state: Mapping[str, Any]) -> Iterator[tuple[str, int, str, Tensor]]:
    """What was kept, with its key."""
    kept = state["kept"]
    yield from (("weight", i, "", tensor) for i, tensor in kept["weight"].items())
    yield from (("buffer", 0, name, tensor) for name, tensor in kept["buffer"])
    for kind in ("state", "group"):
        yield from ((kind, i, name, t) for i, home in kept[kind].items() for name, t in home.items())


def _own(value: Any) -> Any:
    """A value that the optimizer cannot change any more: some keep lists, and write into them."""
    return deepcopy(value) if isinstance(value, (list, dict)) else value
