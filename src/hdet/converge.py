"""Converge (Eq. 3): the weights become their mean over the replicas, and their distance is taken.

The plan of the mean follows what is trained: it is made once, and again where parameters are frozen, freed
or moved to other memory.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.optim import Optimizer

from hdet.divergence import Divergence, Measured
from hdet.layout import trained_parameters
from hdet.replicas import Mean, Replicas, local

__all__ = ["Converge"]


class Converge:
    """The mean of an optimizer's parameters and a model's buffers.

    Args:
        replicas: who takes part.
        optimizer: its parameters are averaged.
        model: its buffers are averaged too.
    """

    def __init__(self, replicas: Replicas, optimizer: Optimizer, model: nn.Module | None) -> None:
        self._replicas = replicas
        self._optimizer = optimizer
        self._model = model
        self._groups = len(optimizer.param_groups)
        self._mean: Mean | None = None
        self._mean_key: list[int] = []
        self._trained: dict[int, Tensor] = {}
        self._gauge: Divergence | None = None

    @property
    def begun(self) -> bool:
        """Whether displacements are being counted."""
        return self._gauge is not None

    def begin(self) -> Divergence:
        """Count displacements from the present weights, unless that has begun already."""
        if self._gauge is None:
            # A group added later is averaged, but not explored.
            groups = trained_parameters(self._optimizer)[: self._groups]
            self._gauge = Divergence([[local(p) for p in group] for group in groups])
        return self._gauge

    def forget(self) -> None:
        """The weights will be others: count displacements anew from the next :meth:`begin`."""
        self._gauge = None

    def __call__(self) -> tuple[Measured, tuple[str, ...]]:
        """Average; how far this replica was from the mean, and what was odd. Every rank must call it."""
        mean = self.plan()
        gauge = self.begin()
        before = gauge.read()
        events = mean()
        return gauge.measure(before), events

    def plan(self) -> Mean:
        """The plan of the mean, made again only where the tensors are others than before.

        What was trained at the last sync is averaged once more: it may have been frozen in between.
        """
        now = {id(p): p for group in trained_parameters(self._optimizer) for p in group}
        tensors = [local(p) for p in {**now, **self._trained}.values()]
        self._trained = now
        buffers = list(self._model.buffers()) if self._model is not None else []
        key = [tensor.data_ptr() for tensor in (*tensors, *buffers)]
        if self._mean is None or key != self._mean_key:
            self._mean = self._replicas.plan_mean(tensors, buffers)
            self._mean_key = key
            self._gauge = None
        return self._mean
