"""Where a copy of the weights lies: on their device, or in the host's memory, which takes nothing from it.

A tensor that is made of others (quantised state: codes and scales) is copied by its parts, bit for bit. Its
own ``empty_like`` and ``clone`` may be missing, and its ``.to(copy=True)`` may hand out the same memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

__all__ = ["bytes_of", "copy_into", "copy_of", "fits", "room_for", "settled"]

#: Devices from which copies are under way.
_SENDERS: set[torch.device] = set()
#: Memory from here on has pages of its own.
_LARGE_BYTES = 1 << 20


def room_for(tensor: Tensor, *, offload: bool) -> Tensor:
    """Memory for a copy of ``tensor``; in the host's it is pinned, so that copying waits for nothing."""
    if _parts(tensor):
        return _by_parts(tensor, lambda part: room_for(part, offload=offload))
    if not offload or tensor.device.type == "cpu":
        return torch.empty_like(tensor, memory_format=torch.preserve_format, requires_grad=False)
    if tensor.device.type == "cuda":
        return _pinned_like(tensor)
    return torch.empty_like(tensor, device="cpu", requires_grad=False)


def fits(room: Tensor, tensor: Tensor) -> bool:
    """Whether the one can hold a copy of the other."""
    alike = room.shape == tensor.shape and _parts(room) == _parts(tensor)
    parts = ((getattr(room, name), getattr(tensor, name)) for name in _parts(tensor)) if alike else ()
    return alike and all(fits(*pair) for pair in parts)


def copy_into(room: Tensor, tensor: Tensor) -> None:
    """Copy, in the order of the device's other work; who reads ``room`` on the host calls :func:`settled`."""
    if names := _parts(tensor):
        for name in names:
            copy_into(getattr(room, name), getattr(tensor, name))
        return
    under_way = room.is_cpu and not tensor.is_cpu and room.is_pinned()
    room.copy_(tensor.detach(), non_blocking=under_way)
    if under_way:
        _SENDERS.add(tensor.device)


def copy_of(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy in memory of its own, there."""
    if _parts(tensor):
        return _by_parts(tensor, lambda part: copy_of(part, device))
    return tensor.detach().to(device, copy=True)


def bytes_of(tensor: Tensor) -> int:
    """What it takes, whatever it passes for."""
    if names := _parts(tensor):
        return sum(bytes_of(getattr(tensor, name)) for name in names)
    return tensor.numel() * tensor.element_size()


def _parts(tensor: Tensor) -> list[str]:
    """The attributes that hold its tensors, by the protocol of torch's wrapper subclasses; a plain one has
    none."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    return [] if flatten is None else list(flatten()[0])


def _by_parts(tensor: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
    whole: Any = tensor
    names, context = whole.__tensor_flatten__()
    parts = {name: make(getattr(tensor, name)) for name in names}
    made: Tensor = type(whole).__tensor_unflatten__(parts, context, tensor.size(), tensor.stride())
    return made


def _pinned_like(tensor: Tensor) -> Tensor:
    """Memory of the host that the device reaches by itself.

    What is large is made by the processor's threads and shown to the device afterwards: torch's own way makes
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


def settled() -> None:
    """Wait until what was copied to the host has arrived there."""
    while _SENDERS:
        torch.cuda.synchronize(_SENDERS.pop())
