"""What the weights leave behind: their mean over the window, the mean before it, and how far it is between.

It follows what is trained: layers that are frozen or freed during a run leave it, and join it. Weights are
moved to a point of it, and back, in place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from hdet.replicas import Mean, Replicas, local
from hdet.weights.parameters import trained_parameters
from hdet.weights.window_mean import WindowMean

__all__ = ["Trail"]

#: A vector that begins at zero has no norm; it counts as if each of its values were this large.
_LEAST_SIZE = 0.1


class Trail:
    """The points p, m and e of a window.

    Args:
        optimizer: whose trained parameters are followed.
        replicas: with whom the mean is shared where ``diverges``.
        groups: how many parameter groups each scope holds, whose displacement is its own; None looks at all
            weights together.
        apart: whether each scope has points of its own.
        diverges: whether the replicas' weights differ within a window.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        replicas: Replicas,
        groups: Sequence[int] | None = None,
        apart: bool = False,
        *,
        diverges: bool,
    ) -> None:
        self._optimizer = optimizer
        self._replicas = replicas
        self._sizes, self._apart = groups, apart
        self._diverges = diverges
        self._trained: list[int] = []
        self._least: list[float] = []
        self._average: Mean | None = None
        self.weights: list[Tensor] = []
        self.previous: list[Tensor] = []
        self.follow()

    def follow(self) -> bool:
        """Take up what is trained now; whether that has changed."""
        groups = _merged(trained_parameters(self._optimizer), self._sizes)
        parameters = [p for group in groups for p in group]
        if [id(p) for p in parameters] == self._trained and self.weights:
            return False
        before = dict(zip(self._trained, zip(self.previous, self._least, strict=True), strict=True))
        self._trained = [id(p) for p in parameters]
        every = (p for group in self._optimizer.param_groups for p in group["params"])
        number = {id(p): i for i, p in enumerate(every)}
        #: Which of the optimizer's parameters they are.
        self.numbers = [number[id(p)] for p in parameters]
        self.weights = [local(p) for p in parameters]
        self.mean = WindowMean(self.weights)
        self.end = [torch.empty_like(weight) for weight in self.weights]
        kept = [before.get(id(p)) or (None, None) for p in parameters]
        self.previous = [
            mine.clone() if old is None else old
            for mine, (old, _) in zip(self.mean.tensors, kept, strict=True)
        ]
        self._least = [
            _usual_norm(w) if old is None else old for w, (_, old) in zip(self.weights, kept, strict=True)
        ]
        self._average = self._replicas.plan_mean(self.mean.tensors) if self._diverges else None
        ends = list(accumulate(len(group) for group in groups))
        self.scopes = [slice(end - len(group), end) for end, group in zip(ends, groups, strict=True)]
        return True

    def start(self) -> None:
        """The weights as they stand are what the first window is compared with."""
        self._least = [_usual_norm(weight) for weight in self.weights]
        self.stand()

    def stand(self) -> None:
        """The weights as they stand become p."""
        torch._foreach_copy_(self.previous, [w.detach() for w in self.weights])

    def keep(self, scope: int) -> None:
        """m becomes p."""
        part = self.scopes[scope]
        if self.weights[part]:
            torch._foreach_copy_(self.previous[part], self.mean.tensors[part])

    def leave(self) -> None:
        """Remember where the weights are, to return there from other points."""
        torch._foreach_copy_(self.end, [w.detach() for w in self.weights])

    def points(self) -> list[Sequence[Tensor]]:
        """m, then p and e: of all weights, or of one scope with the others at m."""
        mean = self.mean.tensors
        points: list[Sequence[Tensor]] = [mean]
        for scope in self.scopes if self._apart else [slice(0, len(mean))]:
            points += [
                [*mean[: scope.start], *other[scope], *mean[scope.stop :]]
                for other in (self.previous, self.end)
            ]
        return points

    def go(self, point: Sequence[Tensor]) -> None:
        """Move the weights, in place."""
        with torch.no_grad():
            torch._foreach_copy_(self.weights, list(point))

    def displacements(self) -> list[float]:
        """‖m − p‖ / ‖p‖ of each scope, m being by now the mean over all replicas. Waits for the device."""
        if self._average is not None:
            self._average()
        found = []
        for scope in self.scopes:
            m, p = self.mean.tensors[scope], self.previous[scope]
            if not p:  # a group of which nothing is trained
                found.append(0.0)
                continue
            # What began at zero counts with the size that it is usually given.
            size = math.hypot(float(get_total_norm(p)), *self._least[scope])
            found.append(float(get_total_norm(torch._foreach_sub(m, p))) / max(size, math.ulp(0.0)))
        return found

    def is_finite(self) -> bool:
        """Whether the weights are. Waits for the device."""
        return all(bool(torch.isfinite(weight).all()) for weight in self.weights)

    def bytes(self) -> int:
        """What the three copies take."""
        return sum(t.numel() * t.element_size() for t in (*self.mean.tensors, *self.previous, *self.end))

    def state_dict(self) -> dict[str, Any]:
        """The tensors without which a window in progress could not go on bit for bit."""
        previous = [t.clone() for t in self.previous]
        return {"mean": self.mean.state_dict(), "previous": previous, "least": list(self._least)}

    @torch.no_grad()
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off."""
        self.mean.load_state_dict(state["mean"])
        for mine, saved in zip(self.previous, state["previous"], strict=True):
            mine.copy_(saved)
        self._least = list(state["least"])


def _merged(groups: list[list[Tensor]], sizes: Sequence[int] | None) -> list[list[Tensor]]:
    """The parameters of each scope; without sizes, those of all groups, also of ones that were added late."""
    if sizes is None:
        return [[p for group in groups for p in group]]
    ends = list(accumulate(sizes))
    return [[p for g in groups[end - n : end] for p in g] for end, n in zip(ends, sizes, strict=True)]


def _usual_norm(weight: Tensor) -> float:
    """The norm that weights of this shape are usually given, for those that are zero; of any other, 0."""
    if weight.numel() == 0 or bool(weight.detach().any()):
        return 0.0
    each = 1 / math.sqrt(weight[0].numel()) if weight.dim() > 1 else _LEAST_SIZE
    return each * math.sqrt(weight.numel())
