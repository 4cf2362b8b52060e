"""A pass of stacked replicas, recorded once as a CUDA graph and replayed at every step.

A small model's pass is hundreds of short kernels, and the host needs longer to start them than the device to
run them. A replay is one start. What the host decides is decided when the pass is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn

from hdet.replicas.stacked.batches import FlatBatch, flatten

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

    There is one recording for each form of batch (shapes, and everything in it that is not a tensor), each
    kind of autocast and each value of ``prepare()``; the latest sixteen are kept.

    Args:
        run: from a batch to the losses and the gradient of each matrix, or none under ``torch.no_grad``.
        prepare: called before every pass; returns what else the host decides by.
        matrices: what the gradients are of.
        buffers: what a pass writes to.
    """

    def __init__(
        self,
        run: Callable[[Any], tuple[Tensor, list[Tensor]]],
        prepare: Callable[[], Hashable],
        matrices: Sequence[nn.Parameter],
        buffers: Sequence[Tensor],
    ) -> None:
        self._run, self._prepare = run, prepare
        self._matrices, self._buffers = matrices, buffers
        self._recorded: dict[Hashable, _Recording] = {}

    def __call__(self, batch: Any) -> Tensor:
        """The losses, without a graph; the gradients are added to those in ``.grad``."""
        flat = flatten(batch)
        recording = self._recording(flat, self._prepare())
        kept = [None if m.grad is None else m.grad.clone() for m in self._matrices]
        if flat.tensors:
            torch._foreach_copy_(recording.inputs, flat.tensors)  # no public name: see replicas/averaging.py
        recording.graph.replay()
        for matrix, before, gradient in zip_longest(self._matrices, kept, recording.gradients):
            if before is not None and gradient is not None:
                before.add_(gradient)
            matrix.grad = gradient if before is None else before
        return recording.losses.clone()

    def _recording(self, flat: FlatBatch, modes: Hashable) -> _Recording:
        key = _key(flat, modes)
        if key not in self._recorded:
            if len(self._recorded) >= _KEPT:
                del self._recorded[next(iter(self._recorded))]
            self._recorded[key] = self._record(flat)
        return self._recorded[key]

    def _record(self, flat: FlatBatch) -> _Recording:
        device = self._matrices[0].device
        inputs = [tensor.to(device, copy=True) for tensor in flat.tensors]
        before = [buffer.clone() for buffer in self._buffers]
        random = torch.cuda.get_rng_state(device)
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self._run(flat.rebuild(inputs))
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # A recording may overwrite what another left: losses are copied at once, and gradients before the
        # next replay. So all have one pool.
        pool = next((other.graph.pool() for other in self._recorded.values()), None)
        # What autocast has cached would be read after it is freed, and what it caches now is in the pool.
        torch.clear_autocast_cache()
        with torch.cuda.graph(graph, pool=pool):
            losses, gradients = self._run(flat.rebuild(inputs))
        torch.clear_autocast_cache()
        # Undo the warm-up: statistics and random numbers continue from where they were.
        for buffer, value in zip(self._buffers, before, strict=True):
            buffer.copy_(value)
        torch.cuda.set_rng_state(random, device)
        return _Recording(graph, inputs, losses, gradients)


def _key(flat: FlatBatch, modes: Hashable) -> Hashable:
    """What the host decides by: passes with the same key are one recording."""
    shapes = tuple((tensor.shape, tensor.dtype) for tensor in flat.tensors)
    autocast = (torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda"))
    return flat.form, shapes, modes, autocast, torch.is_grad_enabled()
