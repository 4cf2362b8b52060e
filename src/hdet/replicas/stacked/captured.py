"""A pass of stacked replicas, recorded once as a CUDA graph and replayed at every step.

A small model's pass is hundreds of short kernels, and the host is slower to start them than the device to run
them. Replayed, they cost one start. What the host decides is decided once, when the pass is recorded.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hdet.replicas.stacked.base import LossFn, Rows
from hdet.replicas.stacked.batches import Parts, take_apart

__all__ = ["CapturedPass"]

#: Passes before the recording, in which libraries and allocators settle.
_WARM_UP = 3

#: Recordings kept: each holds its inputs and gradients, and loaders make a few shapes, not hundreds.
_KEPT = 16


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    losses: Tensor
    gradients: list[Tensor]


class CapturedPass:
    """Forward and backward pass of all replicas; :meth:`StackedReplicas.capture` makes it.

    There is one recording for each form of batch (shapes, and whatever in it is no tensor), each set of
    training flags and each kind of autocast, of the latest sixteen. What replicas explore is read anew at
    every replay. On a CPU nothing is recorded, and the pass is run as it is.

    Args:
        replicas: whose pass it is.
        loss_fn: from (model, batch) to a scalar. Other numbers that it reads from elsewhere stay as recorded,
            and that the model is as it was stacked is asked when a pass is recorded, not when it is replayed.
    """

    def __init__(self, replicas: Rows, loss_fn: LossFn) -> None:
        self._replicas = replicas
        self._loss_fn = loss_fn
        self._recorded: dict[Hashable, _Recording] = {}

    def __call__(self, batch: Any) -> Tensor:
        """The losses, without a graph; the gradients are added to what ``.grad`` holds, as ever."""
        matrices = self._replicas.matrices
        if not matrices[0].is_cuda:
            losses = self._replicas.losses(self._loss_fn, batch)
            self._replicas.backward(losses)
            return losses.detach()
        parts = take_apart(batch)
        self._replicas.keep_up_()
        recording = self._recording(parts)
        kept = [None if m.grad is None else m.grad.clone() for m in matrices]
        if parts.tensors:
            torch._foreach_copy_(recording.inputs, parts.tensors)  # no public name: see replicas/averaging.py
        recording.graph.replay()
        for matrix, before, gradient in zip(matrices, kept, recording.gradients, strict=True):
            matrix.grad = gradient if before is None else before.add_(gradient)
        return recording.losses.clone()

    def _recording(self, parts: Parts) -> _Recording:
        key = _key(parts, self._replicas.modes)
        if key not in self._recorded:
            if len(self._recorded) >= _KEPT:
                del self._recorded[next(iter(self._recorded))]
            self._recorded[key] = self._record(parts)
        return self._recorded[key]

    def _record(self, parts: Parts) -> _Recording:
        device = self._replicas.matrices[0].device
        inputs = [tensor.to(device, copy=True) for tensor in parts.tensors]
        buffers = self._replicas.buffers_of(None)
        before = [buffer.clone() for buffer in buffers]
        random = torch.cuda.get_rng_state(device)
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self._run(parts.rebuild(inputs))
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # A recording may write over what another left: losses are copied at once, and gradients before the
        # next replay. So all have one pool.
        pool = next((other.graph.pool() for other in self._recorded.values()), None)
        # What autocast has kept would be read when it is long gone, and what it keeps now lies in the pool.
        torch.clear_autocast_cache()
        with torch.cuda.graph(graph, pool=pool):
            losses, gradients = self._run(parts.rebuild(inputs))
        torch.clear_autocast_cache()
        # As if nobody had warmed up: statistics and random numbers go on from where they stood.
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)
        torch.cuda.set_rng_state(random, device)
        return _Recording(graph, inputs, losses, gradients)

    def _run(self, batch: Any) -> tuple[Tensor, list[Tensor]]:
        losses = self._replicas.losses(self._loss_fn, batch)
        return losses.detach(), self._replicas.gradients_of(losses)


def _key(parts: Parts, modes: tuple[int, ...]) -> Hashable:
    """What the host decides by: passes with the same are one recording."""
    shapes = tuple((tensor.shape, tensor.dtype) for tensor in parts.tensors)
    autocast = (torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda"))
    return parts.form, shapes, modes, autocast
