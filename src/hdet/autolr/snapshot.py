"""Copies that training can return to: weights, optimizer state and buffers, in memory that is written over.

A copy lies on the device, or in the host's memory (pinned where there is an accelerator), which is slower and
takes nothing from the device. A tensor that is made of others (quantised state: codes and scales) is copied
by its parts, bit for bit: its own ``empty_like`` and ``clone`` may be missing, and its ``.to(copy=True)`` may
return the same memory.
"""

from __future__ import annotations

import math
import signal
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hdet.loop.optimizers import every_parameter
from hdet.loop.state import Own, Piece
from hdet.replicas import Replicas, SoloReplica, drop_gathered, is_dtensor, local, sharded_like, state_of
from hdet.replicas.norms import norms_of

__all__ = [
    "Copies",
    "Snapshot",
    "copy_into",
    "copy_of",
    "empty_copy",
    "fits",
    "has_room",
    "state_is_finite",
    "uninterrupted",
    "wait_for_copies",
]

#: The protocol of torch's wrapper subclasses, which are made of other tensors.
_FLATTEN = "__tensor_flatten__"
#: Devices from which copies are under way.
_SENDERS: set[torch.device] = set()
#: Memory from this size on has pages of its own.
_LARGE_BYTES = 1 << 20
#: Copies stay on the device where so many times as much is free.
_ROOM = 4
#: What a parameter group holds that is the user's or the schedule's, not the optimizer's.
_NOT_STATE = frozenset({"params", "lr", "initial_lr", "param_names"})

#: Where a tensor was found: weight, buffer, state or group; the number of that; its name there.
_Key = tuple[str, int, str]


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Within, Ctrl-C waits: weights that are half written are no model, and who catches KeyboardInterrupt
    would go on with them. Only the main thread handles signals."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return
    waiting: list[Any] = []
    signal.signal(signal.SIGINT, lambda *given: waiting.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if waiting:
            before(*waiting[0])


def empty_copy(tensor: Tensor, *, offload: bool) -> Tensor:
    """Memory for a copy of ``tensor``; the host's is pinned, so that copying waits for nothing."""
    if hasattr(tensor, _FLATTEN):
        return _by_parts(tensor, lambda part: empty_copy(part, offload=offload))
    if not offload or tensor.device.type == "cpu":
        return torch.empty_like(tensor, memory_format=torch.preserve_format, requires_grad=False)
    if tensor.device.type == "cuda":
        return _pinned_like(tensor)
    return torch.empty_like(tensor, device="cpu", requires_grad=False)


def fits(memory: Tensor, tensor: Tensor) -> bool:
    """Whether the one can hold a copy of the other."""
    of_parts = hasattr(tensor, _FLATTEN)
    if memory.shape != tensor.shape or hasattr(memory, _FLATTEN) != of_parts:
        return False
    if not of_parts:
        return True
    names = _parts(tensor)
    return names == _parts(memory) and all(fits(getattr(memory, n), getattr(tensor, n)) for n in names)


def copy_into(memory: Tensor, tensor: Tensor) -> None:
    """Copy, in the order of the device's other work; :func:`wait_for_copies` before the host reads it."""
    if hasattr(tensor, _FLATTEN):
        for name in _parts(tensor):
            copy_into(getattr(memory, name), getattr(tensor, name))
        return
    under_way = memory.is_cpu and not tensor.is_cpu and memory.is_pinned()
    memory.copy_(tensor.detach(), non_blocking=under_way)
    if under_way:
        _SENDERS.add(tensor.device)


def copy_of(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy in new memory on ``device``."""
    if hasattr(tensor, _FLATTEN):
        return _by_parts(tensor, lambda part: copy_of(part, device))
    return tensor.detach().to(device, copy=True)


def state_is_finite(optimizer: Optimizer) -> bool:
    """Whether all is that an optimizer keeps of single weights, such as moments. Waits for the device."""
    moments = [
        value
        for parameter, of in state_of(optimizer).items()
        for value in (of.values() if isinstance(of, Mapping) else ())
        if isinstance(value, Tensor) and value.shape == parameter.shape
    ]
    if any(type(one) is not Tensor for one in moments):  # sharded, or made of other tensors
        moments = [one for one in map(local, moments) if not hasattr(one, _FLATTEN)]
    moments = [one for one in moments if one.is_floating_point() or one.is_complex()]
    return all(map(math.isfinite, norms_of(moments)))


def wait_for_copies() -> None:
    """Wait until what was copied to the host has arrived there."""
    while _SENDERS:
        torch.cuda.synchronize(_SENDERS.pop())


def _bytes_of(tensor: Tensor) -> int:
    if hasattr(tensor, _FLATTEN):
        return sum(_bytes_of(getattr(tensor, name)) for name in _parts(tensor))
    return tensor.numel() * tensor.element_size()


def _parts(tensor: Any) -> list[str]:
    """The attributes that hold its tensors."""
    return list(tensor.__tensor_flatten__()[0])


def _by_parts(tensor: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
    whole: Any = tensor
    names, context = whole.__tensor_flatten__()
    parts = {name: make(getattr(tensor, name)) for name in names}
    made: Tensor = type(whole).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())
    return made


def _pinned_like(tensor: Tensor) -> Tensor:
    """Memory of the host that the device reaches by itself.

    The processor's threads make what is large, and the device registers it afterwards: torch's own way makes
    it page by page in one thread, a second for two gigabytes, and rounds it up to a power of two.
    """
    size = tensor.numel() * tensor.element_size()
    if size >= _LARGE_BYTES:
        made = torch.empty_like(tensor, device="cpu", requires_grad=False).zero_()
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        if int(runtime.cudaHostRegister(made.data_ptr(), size, 0)) == 0:
            weakref.finalize(made, runtime.cudaHostUnregister, made.data_ptr()).atexit = False
            return made
    return torch.empty_like(tensor, device="cpu", pin_memory=True, requires_grad=False)


def has_room(tensors: Iterable[Tensor]) -> bool:
    """Whether copies of these take at most a quarter of what their device has left. Asked once training has
    taken what it needs, which torch keeps: before, all of the device looks free."""
    wanted: dict[torch.device, int] = {}
    for tensor in tensors:
        if tensor.device.type != "cpu":  # an optimizer's counters: their copies are the host's anyway
            wanted[tensor.device] = wanted.get(tensor.device, 0) + _bytes_of(tensor)
    return all(
        device.type == "cuda" and torch.cuda.mem_get_info(device)[0] >= _ROOM * size
        for device, size in wanted.items()
    )


class Copies:
    """Copies of tensors by key; the memory is kept and written over.

    Args:
        offload: whether it is the host's; None: the device's where it has room, else the host's.
    """

    def __init__(self, *, offload: bool | None) -> None:
        self._offload = offload
        self.tensors: dict[Any, Tensor] = {}

    @torch.no_grad()
    def write(
        self,
        tensors: Mapping[Any, Tensor],
        like: Mapping[Any, Tensor] | None = None,
        *,
        offload: bool | None = None,
    ) -> None:
        """Copy these, in the type and shape of ``like`` where that has another; ``offload``, if given, counts
        instead of its own."""
        wanted = tensors if like is None else {key: like[key] for key in tensors}
        if (offload := self._offload if offload is None else offload) is None:
            elsewhere = [
                tensor
                for key, tensor in wanted.items()
                if key not in self.tensors or self.tensors[key].device != tensor.device
            ]
            offload = bool(elsewhere) and not has_room(elsewhere)
        here: list[Tensor] = []
        for key, tensor in tensors.items():
            memory, model = self.tensors.get(key), wanted[key]
            fit = memory is not None and memory.dtype == model.dtype and fits(memory, model)
            if memory is None or not fit or (memory.device != model.device and not offload):
                memory = self.tensors[key] = empty_copy(model, offload=offload)
            if memory.device == tensor.device and not hasattr(tensor, _FLATTEN):
                here += memory, tensor
            else:
                copy_into(memory, tensor)
        if here:  # one call: to begin a copy takes longer than to copy what is small
            torch._foreach_copy_(here[::2], here[1::2])  # no public name: see replicas/averaging.py

    def write_all(self, tensors: Mapping[Any, Tensor]) -> None:
        """Copy all of them, and forget all others."""
        self.tensors = {key: memory for key, memory in self.tensors.items() if key in tensors}
        self.write(tensors)

    def load(self, tensors: Mapping[Any, Tensor], like: Mapping[Any, Tensor] | None = None) -> None:
        """Copy what was saved, before training has shown what room there is."""
        self.write(tensors, like, offload=self._offload is not False)

    def empty(self, like: Tensor) -> Tensor:
        """Memory for one that is not copied yet."""
        return empty_copy(like, offload=self._offload is not False)

    def bytes(self) -> int:
        """What they take."""
        return sum(map(_bytes_of, self.tensors.values()))


class Snapshot:
    """What training can return to.

    Args:
        optimizer: its parameters and its state are copied, whatever kind it is.
        model: its buffers are copied.
        offload: whether the copies lie in the host's memory; None: where the device has no room.
        replicas: who trains; several in this process have buffers of their own, which the model does not
            hold.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        *,
        offload: bool | None,
        replicas: Replicas | None = None,
    ) -> None:
        self._optimizer = optimizer
        self._replicas = replicas or SoloReplica()
        self._model = model
        self._weights = [local(parameter) for parameter in every_parameter(optimizer)]
        self._copies = Copies(offload=offload)
        self._values: dict[_Key, Any] = {}

    def take(self) -> None:
        """Copy everything."""
        tensors, self._values = self._now()
        self._copies.write_all(tensors)

    def copy(self) -> Snapshot:
        """Another one of the same, in memory of its own."""
        wait_for_copies()
        other = Snapshot(self._optimizer, self._model, offload=True, replicas=self._replicas)
        other._copies.write(self._copies.tensors)
        other._values = dict(self._values)
        return other

    @torch.no_grad()
    @uninterrupted()
    def restore(self) -> None:
        """Write everything back, in place; state that did not exist then is removed."""
        tensors, values = self._now()
        copies, homes = self._copies.tensors, self._homes()
        groups = {i for kind, i, _ in self._values if kind == "group"}
        for kind, i, name in (tensors.keys() | values.keys()) - copies.keys() - self._values.keys():
            # A buffer made since then is a cache, not a statistic; a group added since then is the user's.
            if kind == "state" or (kind == "group" and i in groups):
                del homes[kind, i][name]
        for key, copy in copies.items():
            kind, i, name = key
            if key in tensors and fits(tensors[key], copy):
                copy_into(tensors[key], copy)
            elif kind in ("state", "group") and (kind, i) in homes:
                wait_for_copies()
                again = copy_of(copy, self._weights[0].device)
                homes[kind, i][name] = sharded_like(self._parameters[i], again) if kind == "state" else again
        for (kind, i, name), value in self._values.items():
            homes[kind, i][name] = _own(value)
        drop_gathered(self._model)

    def bytes(self) -> int:
        """What the copies take."""
        return self._copies.bytes()

    def state_dict(self, *, spare_state: bool = True) -> dict[str, Any]:
        """The copies themselves, so that a resumed run can return to the same point.

        ``spare_state``: also with memory for optimizer state that did not exist yet; without it, a run can
        be loaded without state that did.
        """
        wait_for_copies()
        saved: dict[str, Any] = {"weight": {}, "buffer": [], "state": {}, "group": {}}
        for (kind, i, name), copy in self._copies.tensors.items():
            if kind == "weight":
                saved[kind][i] = Piece(copy, self._parameters[i])
            elif kind == "buffer":
                saved[kind].append([name, copy])
            else:
                held = copy if kind == "group" else self._of_state(i, copy, may_miss=not spare_state)
                saved[kind].setdefault(i, {})[name] = held
        for key, tensor in self._now()[0].items():
            kind, i, name = key
            if key in self._copies.tensors or kind not in ("weight", "state"):
                continue
            piece = Piece(partial(self._copies.empty, tensor), self._parameters[i])
            if kind == "weight":
                saved[kind][i] = piece
            elif spare_state and _is_whole(self._parameters[i], tensor):
                saved[kind].setdefault(i, {})[name] = piece
        return {"kept": saved, "values": [[*key, value] for key, value in self._values.items()]}

    def _of_state(self, i: int, tensor: Tensor, *, may_miss: bool) -> Piece | Own | Tensor:
        """What an optimizer keeps of a parameter: a tensor as large as that, a counter, or something else, of
        which other ranks may hold another part."""
        parameter = self._parameters[i]
        if _is_whole(parameter, tensor):
            return Piece(tensor, parameter, may_miss=may_miss)
        return Own(tensor) if is_dtensor(parameter) and tensor.numel() > 1 else tensor

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over the copies of another run of the same model and optimizer."""
        device = self._weights[0].device
        self._copies.tensors = {}
        for key, saved in _entries(state["kept"]):
            like = saved if saved.device == device else copy_of(saved, device)
            self._copies.load({key: saved}, {key: like})
        self._values = {(kind, i, name): value for kind, i, name, value in state["values"]}

    def _now(self) -> tuple[dict[_Key, Tensor], dict[_Key, Any]]:
        """Everything that training changes: tensors, and plain values such as counters."""
        buffers = self._replicas.buffers_of(self._model)
        tensors: dict[_Key, Tensor] = {
            ("weight", i, ""): weight.detach() for i, weight in enumerate(self._weights)
        }
        tensors |= {("buffer", 0, name): local(buffer) for name, buffer in buffers.items()}
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
    return tensor.shape == local(parameter).shape and not hasattr(tensor, _FLATTEN)


def _entries(saved: Mapping[str, Any]) -> Iterator[tuple[_Key, Tensor]]:
    """What was copied, with its key."""
    yield from ((("weight", i, ""), tensor) for i, tensor in saved["weight"].items())
    yield from ((("buffer", 0, name), tensor) for name, tensor in saved["buffer"])
    for kind in ("state", "group"):
        yield from (((kind, i, name), t) for i, home in saved[kind].items() for name, t in home.items())


def _own(value: Any) -> Any:
    """A value that the optimizer cannot change any more: some keep lists, and write into them."""
    return deepcopy(value) if isinstance(value, (list, dict)) else value
