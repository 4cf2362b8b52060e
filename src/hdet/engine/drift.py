"""Where nothing is averaged, nothing keeps the ranks one model but the gradient that they share.

If they do not share it (DistributedDataParallel is missing), one decision is taken from models that have less
and less to do with one another. So their weights are compared at every sync, by a sum of their bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from torch.optim import Optimizer

from hdet.engine.starts import distance, sample
from hdet.replicas import Replicas, local
from hdet.weights.parameters import checksum, trained_parameters

__all__ = ["Drift"]

#: Relative to their norm. Kernels that round differently stay far below it on one gradient.
_FAR = 1e-2
_IN_A_ROW = 3


class Drift:
    """Compares the weights of ranks that should have the same.

    Args:
        caller: begins the errors.
        optimizer: whose weights they are.
        replicas: who is compared.
        diverges: whether they are meant to differ; then nothing is compared.
    """

    def __init__(self, caller: str, optimizer: Optimizer, replicas: Replicas, *, diverges: bool) -> None:
        self._caller = caller
        self._optimizer = optimizer
        self._replicas = replicas
        self._compares = not diverges and not replicas.elastic and replicas.size > replicas.here
        self._far = 0
        self._told = False

    def checksum(self, purpose: Literal["sync", "converge"]) -> float:
        """This rank's, or 0 where there is nothing to compare."""
        if not self._compares or purpose != "sync":
            return 0.0
        return checksum([local(p) for group in trained_parameters(self._optimizer) for p in group])

    def judge(self, sums: Sequence[float]) -> tuple[str, ...]:
        """What is odd, told once. Where sums differ, a collective.

        Raises RuntimeError on all ranks where weights are far apart at several syncs in a row."""
        parts = self._replicas.parts
        if all(own == sums[r % parts] for r, own in enumerate(sums)):
            self._far = 0
            return ()
        apart = distance(self._replicas, sample(self._optimizer))
        self._far = self._far + 1 if apart > _FAR else 0
        if not math.isfinite(apart):  # lost weights are another matter, and told as such
            return ()
        doubt = (
            f"the ranks' weights differ, by {apart:.2g} of their norm, although nothing makes replicas "
            "diverge: gradients are not shared (DistributedDataParallel is missing), or the weights of one "
            "rank were written"
        )
        if self._far >= _IN_A_ROW:
            raise RuntimeError(f"{self._caller}.step: {doubt}; so at {self._far} syncs in a row")
        told, self._told = self._told, True
        return () if told else (doubt,)
