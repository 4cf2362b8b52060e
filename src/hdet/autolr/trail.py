"""The mean of the weights over a window, and how far it is from the mean of the window before.

It follows what is trained: layers that are frozen or freed during a run leave it, and join it. Weights are
moved to the mean, and back, in place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer

from hdet.autolr.alarm import Alarm
from hdet.autolr.sketch import sketch, sketch_of_shards
from hdet.autolr.window_mean import WindowMean
from hdet.loop.optimizers import trained_parameters
from hdet.loop.state import Piece
from hdet.replicas import Mean, Replicas, local
from hdet.replicas.norms import norm_of

__all__ = ["Trail"]

#: A sketch of weights, and their norm.
_Sketch = tuple[Tensor, float]

#: Tensors by the share with which their squares count.
_Shared = dict[float, list[Tensor]]

#: A vector that begins at zero has no norm; it counts as if each of its values were this large.
_LEAST_SIZE = 0.1
#: So many times the weights that all replicas have become, a window's mean is of one that was lost.
_EXPLODED = 1e3


class Trail:
    """The mean m of a window in one copy, and a sketch of the mean p of the window before.

    Args:
        optimizer: whose trained parameters are followed.
        sizes: how many parameter groups each of several optimizers has: each has a displacement of its own.
            Empty for one optimizer.
        replicas: whose weights they are; of one in parts, norms are taken over all of them.
        diverges: whether replicas differ within a window, and share its mean.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        sizes: Sequence[int],
        replicas: Replicas,
        *,
        diverges: bool,
    ) -> None:
        self._optimizer = optimizer
        self._sizes = sizes
        self._replicas = replicas
        self._diverges = diverges
        self._average: Mean | None = None
        self._trained: list[int] = []
        self._least: list[float] = []
        self.weights: list[Tensor] = []
        #: Sketch and norm of p of each optimizer, and of m once it has been measured.
        self._before: list[_Sketch] = []
        self._alarm: Alarm | None = None
        self._now: list[_Sketch] = []
        self.follow()

    def follow(self) -> bool:
        """Take up what is trained now; whether that has changed. If so, the weights as they stand are p."""
        groups = _merged(trained_parameters(self._optimizer), self._sizes)
        parameters = [p for group in groups for p in group]
        if [id(p) for p in parameters] == self._trained and self.weights:
            return False
        least = dict(zip(self._trained, self._least, strict=True))
        self._trained = [id(p) for p in parameters]
        every = (p for group in self._optimizer.param_groups for p in group["params"])
        number = {id(p): i for i, p in enumerate(every)}
        #: Which of the optimizer's parameters they are.
        self.numbers = [number[id(p)] for p in parameters]
        self._parameters = parameters
        self.weights = [local(p) for p in parameters]
        self._shares = [self._replicas.share_of(p) for p in parameters]
        self.mean = WindowMean(self.weights)
        if self._diverges:
            self._average = self._replicas.plan_mean(self.mean.tensors)
        usual = self._usual_norms()
        self._least = [least.get(id(p), norm) for p, norm in zip(parameters, usual, strict=True)]
        ends = list(accumulate(len(group) for group in groups))
        #: Which of the weights each optimizer trains.
        self.spans = [slice(end - len(group), end) for end, group in zip(ends, groups, strict=True)]
        self.stand()
        return True

    def start(self) -> None:
        """The weights as they stand are what the first window is compared with."""
        self._least = self._usual_norms()
        self.stand()

    def stand(self) -> None:
        """The weights as they stand become p."""
        self._before = self._sketched(self.weights)

    def keep(self, optimizer: int) -> None:
        """m becomes p."""
        self._before[optimizer] = self._now[optimizer]

    def _usual_norms(self) -> list[float]:
        """The norm that weights of their shape are usually given, of those that are zero; of any other, 0."""
        replicas = self._replicas
        some = replicas.replica_norms([float(w.detach().any()) if w.numel() else 0.0 for w in self.weights])
        roots = replicas.replica_norms(
            [math.sqrt(s * w.numel()) for w, s in zip(self.weights, self._shares, strict=True)]
        )
        return [
            0.0 if seen else _usual_size(p) * root
            for p, seen, root in zip(self._parameters, some, roots, strict=True)
        ]

    @property
    def _in_parts(self) -> bool:
        """Whether sketches are of the whole replica, of which this rank knows which part it holds."""
        return self._replicas.ranks_per_replica > 1 and self._replicas.can_reshard

    def _sketched(self, weights: Sequence[Tensor]) -> list[_Sketch]:
        every = [weight.detach() for weight in weights]
        now = [self._by_share(every, span) for span in self.spans]
        norms = self._replicas.replica_norms([_norm(part) for part in now])
        if not self._in_parts:
            return list(zip(map(_sketch, now), norms, strict=True))
        seen = [self._of_shards(every[span], span) for span in self.spans]
        return list(zip(seen, norms, strict=True))

    def _of_shards(self, shards: Sequence[Tensor], span: slice) -> Tensor:
        """The sketch of one optimizer's weights, the same on all parts and for all ways to cut it."""
        if not shards:
            return torch.zeros(1)
        own = sketch_of_shards(shards, self._parameters[span], self._shares[span])
        return self._replicas.replica_sum(own)

    def _by_share(self, tensors: Sequence[Tensor], span: slice) -> _Shared:
        """Tensors of one optimizer, together where their squares count alike: what all parts of a replica
        hold counts once in the sum over them."""
        found: _Shared = {}
        for tensor, share in zip(tensors[span], self._shares[span], strict=True):
            found.setdefault(share, []).append(tensor)
        return found

    @contextmanager
    def at_mean(self) -> Iterator[None]:
        """Within, the weights stand at m."""
        self.mean.swap_()
        try:
            yield
        finally:
            self.mean.swap_()

    def converge(self) -> None:
        """m becomes the mean over all replicas. One that was lost stands by now where the others are, and has
        no other part in it. Waits for the device."""
        if self._average is None:
            return
        both = self.mean.tensors, [weight.detach() for weight in self.weights]
        now, size = self._replicas.replica_norms([norm_of(tensors) for tensors in both])
        if not math.isfinite(now) or now > _EXPLODED * size > 0:
            torch._foreach_copy_(self.mean.tensors, [weight.detach() for weight in self.weights])
        self._average()

    def displacements(self) -> list[float]:
        """‖m − p‖ / ‖p‖ of each optimizer's weights. Waits for the device."""
        self._now = self._sketched(self.mean.tensors)
        moved = [
            float(torch.linalg.vector_norm(now - before, dtype=_wide(now)))
            for (now, _), (before, _) in zip(self._now, self._before, strict=True)
        ]
        if not self._in_parts:
            moved = self._replicas.replica_norms(moved)
        every = zip(moved, self._before, self.spans, strict=True)
        return [far / self._size(norm, span) for far, (_, norm), span in every]

    def _size(self, norm: float, span: slice) -> float:
        # What began at zero counts with the size that it is usually given.
        return max(math.hypot(norm, *self._least[span]), math.ulp(0.0))

    def begin(self, steps: int, *, alone: bool) -> None:
        """A window of so many steps; lost weights can end it early if no other rank has to know."""
        self.mean.begin(steps)
        self._alarm = self._new_alarm(steps) if alone else None

    def _new_alarm(self, steps: int) -> Alarm | None:
        size = math.hypot(*self._least, *(norm for _, norm in self._before))
        return Alarm(self.weights, size, steps) if size > 0 else None

    def add(self) -> bool:
        """An iterate more; whether the weights are lost before the window's end."""
        self.mean.add()
        return self.mean.left > 0 and self._alarm is not None and self._alarm.rings()

    def is_finite(self) -> bool:
        """Whether the weights are. Waits for the device, and for the other ranks of this replica."""
        lost = not all(bool(torch.isfinite(weight).all()) for weight in self.weights)
        return self._replicas.replica_norms([float(lost)]) == [0.0]

    def bytes(self) -> int:
        """What the copies take."""
        sketches = {id(seen): seen for seen, _ in (*self._before, *self._now)}
        return _bytes(self.mean.tensors) + _bytes(list(sketches.values()))

    def state_dict(self) -> dict[str, Any]:
        """The tensors without which a window in progress could not go on bit for bit; they are not copied."""
        return {
            "mean": {**self.mean.state_dict(), "mean": self._numbered(self.mean.tensors)},
            "before": [[seen, norm] for seen, norm in self._before],
            "least": list(self._least),
            "alarm": None if self._alarm is None else self._alarm.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off."""
        mean = state["mean"]
        self.mean.load_state_dict({**mean, "mean": [mean["mean"][number] for number in self.numbers]})
        self._least = list(state["least"])
        saved = zip(state["before"], [seen.device for seen, _ in self._before], strict=True)
        self._before = [(seen.to(device, copy=True), float(norm)) for (seen, norm), device in saved]
        self._alarm = None
        if state["alarm"] is not None and self._replicas.world_size == 1:
            steps, *rest = state["alarm"]
            self._alarm = self._new_alarm(steps)
            if self._alarm is not None:
                self._alarm.load(*rest)

    def _numbered(self, tensors: Sequence[Tensor]) -> dict[int, Piece]:
        every = zip(self.numbers, tensors, self._parameters, strict=True)
        return {number: Piece(tensor, parameter) for number, tensor, parameter in every}


def _merged(groups: list[list[Tensor]], sizes: Sequence[int]) -> list[list[Tensor]]:
    """The parameters of each optimizer; without sizes, of all groups, also of those that were added late."""
    if not sizes:
        return [[p for group in groups for p in group]]
    ends = list(accumulate(sizes))
    return [[p for g in groups[end - n : end] for p in g] for end, n in zip(ends, sizes, strict=True)]


def _norm(tensors: _Shared) -> float:
    """Of nothing that is trained, 0."""
    return math.hypot(*(math.sqrt(share) * float(get_total_norm(part)) for share, part in tensors.items()))


def _sketch(tensors: _Shared) -> Tensor:
    """One after the other, each with the weight of its share."""
    seen = [(sketch(part), share) for share, part in tensors.items()]
    if len(seen) == 1 and seen[0][1] == 1:
        return seen[0][0]
    return torch.cat([part.to(_wide(part)) * math.sqrt(share) for part, share in seen] or [torch.zeros(1)])


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float32 if tensor.device.type == "mps" else torch.float64


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _usual_size(parameter: Tensor) -> float:
    """The size that each value of such a parameter is usually given."""
    rows = parameter.numel() // parameter.shape[0] if parameter.dim() > 1 and parameter.shape[0] else 0
    return 1 / math.sqrt(rows) if rows else _LEAST_SIZE
