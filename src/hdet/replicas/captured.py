"""A pass of stacked replicas, recorded once as a CUDA graph and replayed at every step.

A small model's pass is hundreds of short kernels, and the host is slower to start them than the device to run
them. Replayed, they cost one start. What the host decides is decided once, when the pass is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from hdet.replicas.stacked import LossFn, StackedReplicas

__all__ = ["CapturedPass"]

#: Passes before the recording, in which libraries and allocators settle.
_WARM_UP = 3


@dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    losses: Tensor
    gradients: list[Tensor]


class CapturedPass:
    """Forward and backward pass of all replicas; :meth:`StackedReplicas.capture` makes it.

    There is one recording for each shape of batch and each set of training flags. On a CPU nothing is
    recorded, and the pass is run as it is.

    Args:
        replicas: whose pass it is.
        loss_fn: from (model, batch) to a scalar. Numbers that it reads from elsewhere stay as recorded.
    """

    def __init__(self, replicas: StackedReplicas, loss_fn: LossFn) -> None:
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
        tensors, rebuild, form = _taken_apart(batch)
        key = (form, tuple((t.shape, t.dtype) for t in tensors), self._replicas.modes)
        if key not in self._recorded:
            self._recorded[key] = self._record(tensors, rebuild)
        recording = self._recorded[key]
        kept = [None if m.grad is None else m.grad.clone() for m in matrices]
        torch._foreach_copy_(recording.inputs, tensors)  # no public name: see replicas/averaging.py
        recording.graph.replay()
        for matrix, before, gradient in zip(matrices, kept, recording.gradients, strict=True):
            matrix.grad = gradient if before is None else before.add_(gradient)
        return recording.losses.clone()

    def _record(self, tensors: Sequence[Tensor], rebuild: Callable[[Sequence[Tensor]], Any]) -> _Recording:
        device = self._replicas.matrices[0].device
        inputs = [tensor.to(device, copy=True) for tensor in tensors]
        buffers = self._replicas.buffers_of(None)
        before = [buffer.clone() for buffer in buffers]
        random = torch.cuda.get_rng_state(device)
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self._run(rebuild(inputs))
        torch.cuda.current_stream(device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            losses, gradients = self._run(rebuild(inputs))
        # As if nobody had warmed up: statistics and random numbers go on from where they stood.
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)
        torch.cuda.set_rng_state(random, device)
        return _Recording(graph, inputs, losses, gradients)

    def _run(self, batch: Any) -> tuple[Tensor, list[Tensor]]:
        losses = self._replicas.losses(self._loss_fn, batch)
        # A group that the loss does not reach has a gradient of 0, as a parameter within a group has.
        gradients = torch.autograd.grad(losses.sum(), self._replicas.matrices, materialize_grads=True)
        return losses.detach(), [self._replicas.share_(gradient) for gradient in gradients]


def _taken_apart(batch: Any) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Any], Hashable]:
    """The tensors of a batch, how to put others in their places, and what is left when they are gone."""
    if isinstance(batch, Tensor):
        return [batch], lambda tensors: tensors[0], "tensor"
    if isinstance(batch, dict):
        keys, items = list(batch), list(batch.values())
    elif isinstance(batch, (tuple, list)):
        keys, items = None, list(batch)
    else:
        return [], lambda _: batch, repr(batch)
    parts = [_taken_apart(item) for item in items]
    counts = [len(tensors) for tensors, _, _ in parts]

    def rebuild(tensors: Sequence[Tensor]) -> Any:
        built, start = [], 0
        for count, (_, inner, _) in zip(counts, parts, strict=True):
            built.append(inner(tensors[start : start + count]))
            start += count
        if keys is not None:
            return dict(zip(keys, built, strict=True))
        return type(batch)(*built) if hasattr(batch, "_fields") else type(batch)(built)

    form = (type(batch).__name__, tuple(map(repr, keys or ())), tuple(inner for _, _, inner in parts))
    return [tensor for tensors, _, _ in parts for tensor in tensors], rebuild, form
