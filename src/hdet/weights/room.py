"""Where a copy of the weights lies: on their device, or in the host's memory, which takes nothing from it."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

__all__ = ["Where", "copy_into", "room_for", "settled"]

Where = Literal["device", "host", "off"]
#: Devices from which copies are under way.
_SENDERS: set[torch.device] = set()


def room_for(tensor: Tensor, where: Where) -> Tensor:
    """Memory for a copy of ``tensor``; in the host's it is pinned, so that copying waits for nothing."""
    if where == "device" or tensor.device.type == "cpu":
        return torch.empty_like(tensor, memory_format=torch.preserve_format, requires_grad=False)
    pinned = tensor.device.type == "cuda"
    return torch.empty_like(tensor, device="cpu", pin_memory=pinned, requires_grad=False)


def copy_into(room: Tensor, tensor: Tensor) -> None:
    """Copy, in the order of the device's other work; who reads ``room`` on the host calls :func:`settled`."""
    under_way = room.device.type == "cpu" and room.is_pinned()
    room.copy_(tensor.detach(), non_blocking=under_way)
    if under_way:
        _SENDERS.add(tensor.device)


def settled() -> None:
    """Wait until what was copied to the host has arrived there."""
    while _SENDERS:
        torch.cuda.synchronize(_SENDERS.pop())
