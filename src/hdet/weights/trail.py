"""What the weights leave behind: their mean over the window, how far it is from the one before, and where
one of its points has to be stood on, the point itself.

It follows what is trained: layers that are frozen or freed during a run leave it, and join it. Weights are
moved to a point of it, and back, in place.
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

from hdet.replicas import Mean, Replicas, SoloReplica, local
from hdet.replicas.norms import norm_of
from hdet.weights.alarm import Alarm
from hdet.weights.parameters import trained_parameters
from hdet.weights.parcel import Piece
from hdet.weights.sketch import sketch, sketch_of_shards
from hdet.weights.window_mean import WindowMean

__all__ = ["PointsTrail", "Trail"]

#: A sketch of weights, and their norm.
_Sketch = tuple[Tensor, float]

#: Tensors by the share with which their squares count.
_Shared = dict[float, list[Tensor]]

#: A vector that begins at zero has no norm; it counts as if each of its values were this large.
_LEAST_SIZE = 0.1
#: So many times the weights that all replicas have become, a window's mean is of one that was lost.
_EXPLODED = 1e3


class Trail:
    """The mean m of a window, of all weights together, in one copy; of the mean p before it a sketch is left.

    Args:
        optimizer: whose trained parameters are followed.
        groups: how many parameter groups each scope holds, whose displacement is its own; None looks at all
            weights together.
        replicas: whose weights they are; of one in parts, norms are taken over all of them.
        diverges: whether replicas differ within a window, and share its mean.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        groups: Sequence[int] | None = None,
        replicas: Replicas | None = None,
        *,
        diverges: bool = False,
    ) -> None:
        self._optimizer = optimizer
        self._sizes = groups
        self._replicas: Replicas = SoloReplica() if replicas is None else replicas
        self._diverges = diverges
        self._average: Mean | None = None
        self._trained: list[int] = []
        self._least: list[float] = []
        self.weights: list[Tensor] = []
        #: Sketch and norm of p in each scope, and of m once it has been measured.
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
        #: The weights that have a displacement of their own.
        self.scopes = [slice(end - len(group), end) for end, group in zip(ends, groups, strict=True)]
        self.stand()
        return True

    def start(self) -> None:
        """The weights as they stand are what the first window is compared with."""
        self._least = self._usual_norms()
        self.stand()

    def stand(self) -> None:
        """The weights as they stand become p."""
        self._before = self._sketched(self.weights)

    def keep(self, scope: int) -> None:
        """m becomes p."""
        self._before[scope] = self._now[scope]

    def _usual_norms(self) -> list[float]:
        """The norm that weights of their shape are usually given, of those that are zero; of any other, 0."""
        replicas = self._replicas
        some = replicas.whole_norms([float(w.detach().any()) if w.numel() else 0.0 for w in self.weights])
        roots = replicas.whole_norms(
            [math.sqrt(s * w.numel()) for w, s in zip(self.weights, self._shares, strict=True)]
        )
        return [
            0.0 if seen else _usual_size(p) * root
            for p, seen, root in zip(self._parameters, some, roots, strict=True)
        ]

    @property
    def _in_parts(self) -> bool:
        """Whether sketches are of the whole replica, of which this rank knows which part it holds."""
        return self._replicas.parts > 1 and self._replicas.reshards

    def _sketched(self, weights: Sequence[Tensor]) -> list[_Sketch]:
        every = [weight.detach() for weight in weights]
        now = [self._by_share(every, scope) for scope in self.scopes]
        norms = self._replicas.whole_norms([_norm(part) for part in now])
        if not self._in_parts:
            return list(zip(map(_sketch, now), norms, strict=True))
        seen = [self._of_shards(every[scope], scope) for scope in self.scopes]
        return list(zip(seen, norms, strict=True))

    def _of_shards(self, shards: Sequence[Tensor], scope: slice) -> Tensor:
        """The sketch of a scope, the same on all parts and for all ways to cut it."""
        if not shards:
            return torch.zeros(1)
        own = sketch_of_shards(shards, self._parameters[scope], self._shares[scope])
        return self._replicas.whole_sum(own)

    def _by_share(self, tensors: Sequence[Tensor], scope: slice) -> _Shared:
        """Those of a scope, together where their squares count alike: what all parts of a replica hold counts
        once in the sum over them."""
        found: _Shared = {}
        for tensor, share in zip(tensors[scope], self._shares[scope], strict=True):
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
        now, size = self._replicas.whole_norms([norm_of(tensors) for tensors in both])
        if not math.isfinite(now) or now > _EXPLODED * size > 0:
            torch._foreach_copy_(self.mean.tensors, [weight.detach() for weight in self.weights])
        self._average()

    def displacements(self) -> list[float]:
        """‖m − p‖ / ‖p‖ of each scope. Waits for the device."""
        self._now = self._sketched(self.mean.tensors)
        moved = [
            float(torch.linalg.vector_norm(now - before, dtype=_wide(now)))
            for (now, _), (before, _) in zip(self._now, self._before, strict=True)
        ]
        if not self._in_parts:
            moved = self._replicas.whole_norms(moved)
        return self._relative(moved, [norm for _, norm in self._before])

    def _relative(self, moved: Sequence[float], before: Sequence[float]) -> list[float]:
        """How far each scope moved, of the norm that it had before."""
        every = zip(moved, before, self.scopes, strict=True)
        return [far / self._size(norm, scope) for far, norm, scope in every]

    def _size(self, norm: float, scope: slice) -> float:
        # What began at zero counts with the size that it is usually given.
        return max(math.hypot(norm, *self._least[scope]), math.ulp(0.0))

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
        """Whether the weights are. Waits for the device, and for the other parts of this replica."""
        lost = not all(bool(torch.isfinite(weight).all()) for weight in self.weights)
        return not self._replicas.anywhere(lost)

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
        self._load_mean(state)
        if "before" in state:
            here = [seen.device for seen, _ in self._before]
            saved = zip(state["before"], here, strict=True)
            self._before = [(seen.to(device, copy=True), float(norm)) for (seen, norm), device in saved]
        else:  # saved when p was kept whole
            self._before = self._sketched(state["previous"])
        self._alarm = None
        if state.get("alarm") is not None and self._replicas.ranks == 1:
            steps, *rest = state["alarm"]
            self._alarm = self._new_alarm(steps)
            if self._alarm is not None:
                self._alarm.load(*rest)

    def _numbered(self, tensors: Sequence[Tensor]) -> dict[int, Piece]:
        every = zip(self.numbers, tensors, self._parameters, strict=True)
        return {number: Piece(tensor, parameter) for number, tensor, parameter in every}

    def _in_order(self, saved: Mapping[int, Tensor] | Sequence[Tensor]) -> list[Tensor]:
        """Tensors of what is trained here; those before had no numbers."""
        if not isinstance(saved, Mapping):
            return list(saved)
        if sorted(saved) != sorted(self.numbers):
            raise ValueError(
                f"load_state_dict: the state must be of a run that trains the same parameters, got those "
                f"numbered {sorted(saved)} for {sorted(self.numbers)}; freeze what was frozen then"
            )
        return [saved[number] for number in self.numbers]

    def _load_mean(self, state: Mapping[str, Any]) -> None:
        if state["mean"] is not None:  # a compact state has none
            self.mean.load_state_dict({**state["mean"], "mean": self._in_order(state["mean"]["mean"])})
        self._least = list(state["least"])


class PointsTrail(Trail):
    """The points p, m and e of a window, each a copy: where groups are judged by themselves, or replicas are.

    Args:
        optimizer: whose trained parameters are followed.
        groups, replicas, diverges: as for a :class:`Trail`.
        apart: whether each scope has points of its own.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        groups: Sequence[int] | None = None,
        replicas: Replicas | None = None,
        *,
        diverges: bool = False,
        apart: bool = False,
    ) -> None:
        self._apart = apart
        self.previous: list[Tensor] = []
        super().__init__(optimizer, groups, replicas, diverges=diverges)

    def follow(self) -> bool:
        before = dict(zip(self._trained, self.previous, strict=True))
        self.previous = []
        if not super().follow():
            self.previous = list(before.values())
            return False
        self.end = [torch.empty_like(weight) for weight in self.weights]
        self.previous = [
            before[number] if number in before else mine.clone()
            for number, mine in zip(self._trained, self.mean.tensors, strict=True)
        ]
        return True

    def stand(self) -> None:
        if self.previous:
            torch._foreach_copy_(self.previous, [w.detach() for w in self.weights])

    def keep(self, scope: int) -> None:
        part = self.scopes[scope]
        if self.weights[part]:
            torch._foreach_copy_(self.previous[part], self.mean.tensors[part])

    @contextmanager
    def at_mean(self) -> Iterator[None]:
        with self.visited():
            self.go(self.mean.tensors)
            yield

    @contextmanager
    def visited(self) -> Iterator[None]:
        """Within, the weights may :meth:`go` to other points; then they return to where they are."""
        torch._foreach_copy_(self.end, [w.detach() for w in self.weights])
        try:
            yield
        finally:
            self.go(self.end)

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
        moved, before = [], []
        for scope in self.scopes:
            m, p = self._by_share(self.mean.tensors, scope), self._by_share(self.previous, scope)
            moved.append(_norm({share: list(torch._foreach_sub(m[share], p[share])) for share in p}))
            before.append(_norm(p))
        whole = self._replicas.whole_norms
        return self._relative(whole(moved), whole(before))

    def bytes(self) -> int:
        return _bytes([*self.mean.tensors, *self.previous, *self.end])

    def state_dict(self) -> dict[str, Any]:
        return {
            "mean": {**self.mean.state_dict(), "mean": self._numbered(self.mean.tensors)},
            "previous": self._numbered(self.previous),
            "least": list(self._least),
        }

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._load_mean(state)
        for mine, saved in zip(self.previous, self._in_order(state["previous"]), strict=True):
            mine.copy_(saved)


def _merged(groups: list[list[Tensor]], sizes: Sequence[int] | None) -> list[list[Tensor]]:
    """The parameters of each scope; without sizes, those of all groups, also of ones that were added late."""
    if sizes is None:
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
