"""Forward and backward of one batch: plain, or recorded once as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.regret.plan import Run
from benchmarks.workloads import Batch, Workload

__all__ = ["EagerStep", "GraphedStep", "make_step"]

_CAPTURE_WARM_UPS = 3


class EagerStep:
    """Loss and gradients of a batch."""

    def __init__(self, workload: Workload, model: nn.Module) -> None:
        self._workload, self._model = workload, model

    def __call__(self, batch: Batch) -> Tensor:
        self._model.zero_grad(set_to_none=True)
        loss = self._workload.loss(self._model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()


class GraphedStep:
    """The same, recorded once as a CUDA graph and replayed: one launch instead of hundreds.

    The gradients are made within the graph, in memory of its own, so every replay writes them anew: that is
    what zeroes them. Recording runs the model on a batch like those to come; the statistics that this moves
    are put back. Whoever moves the weights must do so in place, for the graph knows them by their address.
    """

    def __init__(self, workload: Workload, model: nn.Module, like: Batch) -> None:
        self._inputs = tuple(part.clone() for part in like)
        eager = EagerStep(workload, model)
        kept = [buffer.clone() for buffer in model.buffers()]
        here, aside = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        try:
            aside.wait_stream(here)
            with torch.cuda.stream(aside):
                for _ in range(_CAPTURE_WARM_UPS):
                    eager(self._inputs)
            here.wait_stream(aside)
            model.zero_grad(set_to_none=True)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._loss = eager(self._inputs)
        finally:
            for buffer, before in zip(model.buffers(), kept, strict=True):
                buffer.copy_(before)

    def __call__(self, batch: Batch) -> Tensor:
        for mine, given in zip(self._inputs, batch, strict=True):
            mine.copy_(given)
        self._graph.replay()
        return self._loss


def make_step(run: Run, workload: Workload, model: nn.Module) -> tuple[Callable[[Batch], Tensor], str]:
    """The quickest way to the gradients, and which one it is."""
    if torch.device(run.device).type != "cuda":
        return EagerStep(workload, model), "eager"
    try:
        return GraphedStep(workload, model, next(workload.batches(run.seed))), "graph"
    except RuntimeError as error:
        model.zero_grad(set_to_none=True)
        return EagerStep(workload, model), f"eager, for no graph could be made: {error}"[:200]
