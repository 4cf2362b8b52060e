"""The window in progress: when it ends, the mean of the weights over it, and weights that diverge within it.

:class:`WindowLoop` is the one loop over windows: AutoLR, BestMean and Guard step it. :class:`WeightPath` adds
what AutoLR's rule reads: how far a window's mean is from the mean of the window before, by linear sketches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate, islice, pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from hdet.autolr.clock import Clock
from hdet.autolr.snapshot import copy_into, empty_copy, uninterrupted
from hdet.autolr.trained import was_trained
from hdet.loop.policy import Context
from hdet.loop.state import pieces_of
from hdet.replicas import Mean, local, shard_offset, shard_positions
from hdet.replicas.norms import norm_of, norms_of

__all__ = ["Alarm", "WeightPath", "WindowLoop", "WindowMean", "as_mean", "sketch", "sketch_of_shards"]

T = TypeVar("T")

#: So many iterates, and fewer than twice as many, make up the mean of a longer window. More cost time, and 16
#: and 32 change nothing that is seen (docs/log.md).
_ITERATES = 8
#: Weights are converted to the type of their mean, or change places with it, so many bytes at a time.
_PIECE_BYTES = 64 << 20
#: Of a tensor whose mean is in float16, which ends at 65,504 and has steps of 6e-8 next to zero, the largest
#: value lies between 1 / this and this.
_LARGEST = 2.0**12
#: How often the alarm reads the norm of the weights in a window, and how many times its usual size means that
#: they diverge.
_LOOKS, _FAR = 4, 100.0
#: The size that a vector's values are usually given; a matrix's are 1/√(values in a row).
_USUAL_SIZE = 0.1
#: A tensor that begins at zero counts as if it had this size, another as at least this share of it.
_LEAST_SHARE = 0.1
#: A mean so many times as large as the weights of all replicas is that of a replica that diverged.
_EXPLODED = 1e3

_BINS = 1 << 16
#: Where in the signs, and in the bins, the k-th piece begins: odd, so that all positions come up in turn.
_SIGN_STRIDE, _BIN_STRIDE = 40_503, 24_571
#: So many pieces of a GPU's tensor are added at once: a billion weights are sixteen thousand of them, and to
#: begin each by itself would take longer than to add it.
_PIECES = 64
#: Values whose positions in the whole are computed together.
_AT_ONCE = 1 << 20

#: A sketch of weights, and their norm.
_Sketch = tuple[Tensor, float]
#: What a tensor is multiplied by: a number, or one for each of its columns.
_Scale = float | Tensor


class WindowLoop:
    """Follows the weights through one window after the other.

    The clock plans a window, :meth:`open` opens it at its first step, and :meth:`add` says after every
    step whether it is over.

    Args:
        clock: when windows end.
        caller: prefix for error messages.
    """

    def __init__(self, clock: Clock, caller: str) -> None:
        self.clock = clock
        self._caller = caller
        self.weights: list[Tensor] = []
        #: Which of the parameters they are.
        self.numbers: list[int] = []
        self.mean = WindowMean(())
        self.alarm: Alarm | None = None
        #: Steps to the window's end.
        self.left = 1
        self._trained: list[int] = []

    def follow(self, parameters: Sequence[Tensor], numbers: Sequence[int] | None = None) -> bool:
        """Average those of them that are trained now, or have these ``numbers``; whether that has changed."""
        if numbers is None:
            numbers = [i for i, parameter in enumerate(parameters) if parameter.requires_grad]
        trained = [id(parameters[i]) for i in numbers]
        if trained == self._trained and trained:
            return False
        self._trained, self.numbers = trained, list(numbers)
        self.weights = [local(parameters[i]) for i in numbers]
        self.mean = WindowMean(self.weights)
        return True

    def by_number(self, tensors: Sequence[Tensor]) -> dict[int, Tensor]:
        """Tensors of the weights, or of their mean, by the numbers of the parameters."""
        return dict(zip(self.numbers, tensors, strict=True))

    def open(self, size: float = 0.0) -> None:
        """The window's first step follows. With the ``size`` of the weights, an alarm may end it early."""
        self.mean.check_types(self._caller)
        self.left = self.clock.length
        self.mean.widen()
        self.mean.begin(self.left)
        self.alarm = Alarm(self.weights, size, self.left) if size > 0 else None

    def add(self) -> bool:
        """After every step; whether the window is over, at its last step or because the weights diverge."""
        self.left -= 1
        self.mean.add(self.left)
        if self.left > 0:
            if self.alarm is None or not self.alarm.rings():
                return False
            assert self.clock.end is not None
            self.clock.end -= self.left
        return True

    def at_mean(self, measure: Callable[[], T]) -> T:
        """What it measures while the model holds the window's mean. Not a context manager: one of these does
        not see what is raised, by Ctrl-C, between its block and its end."""
        self.mean.check_types(self._caller)
        try:
            try:
                self.mean.swap_()
                return measure()
            finally:
                self.mean.restore_()
        finally:  # Ctrl-C may have come before that began
            self.mean.restore_()

    def state_dict(self, parameters: Sequence[Tensor]) -> dict[str, Any]:
        """Everything that the window in progress consists of; the tensors are not copied."""
        mean = pieces_of(self.by_number(self.mean.tensors), parameters)
        return {"mean": mean, "count": self.mean.count, "left": self.left, "stride": self.mean.stride}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a window in progress."""
        self.mean.load([state["mean"][number] for number in self.numbers])
        self.mean.count, self.left, self.mean.stride = state["count"], state["left"], state["stride"]


class WindowMean:
    """Running mean of the weights over a window: in place, on their device. See :func:`as_mean` for its type.

    Args:
        weights: what is averaged. They may be pointed to other memory between two windows, not within one.
    """

    def __init__(self, weights: Sequence[Tensor]) -> None:
        self._weights = list(weights)
        self._made_for = [(weight.dtype, weight.device) for weight in weights]
        self.tensors = [as_mean(weight) for weight in weights]
        self._converts = any(w.dtype != m.dtype for w, m in zip(self._weights, self.tensors, strict=True))
        self._aside: list[list[Tensor]] = []
        self._swapped = False
        self.begin(1)

    def check_types(self, caller: str) -> None:
        """Raise TypeError where the weights were cast or moved to another device since: the mean, copies of
        them and what the optimizer keeps are as they were."""
        for weight, made in zip(self._weights, self._made_for, strict=True):
            if (now := (weight.dtype, weight.device)) != made:
                raise TypeError(
                    f"{caller}.step: the weights must keep their type and device, and some were {made[0]} on "
                    f"{made[1]} when {caller} was made, and are {now[0]} on {now[1]}; call model.to(...) "
                    f"first, then make the optimizer and {caller}"
                )

    def begin(self, steps: int) -> None:
        """A window of so many steps."""
        self.stride = max(1, steps // _ITERATES)
        self.count = 0
        # Views without a graph, made once a window: a list of fifty takes longer than averaging them.
        self._seen = [weight.detach() for weight in self._weights]
        pairs = list(zip(self.tensors, self._seen, strict=True))
        wider = [pair for pair in pairs if _is_wider(*pair)] if self._converts else []
        alike = [pair for pair in pairs if not _is_wider(*pair)] if wider else pairs
        self._pieces = [*_pieces(alike), *_pieces(wider)]

    def widen(self) -> None:
        """Between two windows: where weights have become large, a mean in float16 changes to float32."""
        pairs = list(zip(self._weights, self.tensors, strict=True))
        narrow = [weight.detach() for weight, mean in pairs if mean.dtype == torch.float16 and mean.numel()]
        if narrow and float(get_total_norm(narrow, norm_type=math.inf)) > _LARGEST:
            self.tensors = [
                as_mean(weight) if mean.dtype == torch.float16 and _largest(weight) > _LARGEST else mean
                for weight, mean in pairs
            ]

    def load(self, saved: Sequence[Tensor]) -> None:
        """Go on from these. Of bfloat16 weights in the types that these have, so that a resumed run is the
        unbroken one: earlier versions kept all in float32."""
        self.tensors = [
            mean
            if weight.dtype != torch.bfloat16 or mean.dtype == tensor.dtype
            else torch.empty_like(mean, dtype=tensor.dtype)
            for weight, mean, tensor in zip(self._weights, self.tensors, saved, strict=True)
        ]
        for mean, tensor in zip(self.tensors, saved, strict=True):
            mean.copy_(tensor)
        self.begin(1)

    def add(self, left: int) -> None:
        """Once a step, with the steps that are left: every k-th iterate counts, and always the last."""
        if left % self.stride or not self.tensors:
            return
        # Nothing here has a graph, so no_grad, which costs as much as the rest, is not needed. The foreach
        # functions have no public name: see replicas/averaging.py.
        if not self.count:  # written over, not averaged in: what a window before left may not be finite
            torch._foreach_copy_(self.tensors, self._seen)
        elif self._converts:  # piece by piece: no converted copy of all weights
            for means, now in self._pieces:
                _lerp_converted(means, now, 1 / (self.count + 1))
        else:
            torch._foreach_lerp_(self.tensors, self._seen, 1 / (self.count + 1))
        self.count += 1

    @torch.no_grad()
    def swap_(self) -> None:
        """Write the mean into the model, and store the weights in its memory; once more swaps back.

        In place, piece by piece. What comes back is the mean as the model held it, rounded to the type of the
        weights. A mean of twice their size comes back as it was: such weights are stored in a copy.
        """
        with uninterrupted():
            for means, weights in self._pieces:
                if not _is_wider(means[0], weights[0]):
                    _exchange(means, weights, back=self._swapped)
                elif self._swapped:
                    torch._foreach_copy_(weights, self._aside.pop(0))
                else:
                    self._aside.append([weight.clone() for weight in weights])
                    torch._foreach_copy_(weights, means)
            self._swapped = not self._swapped

    def restore_(self) -> None:
        """The weights are in the model again, if they were not."""
        if self._swapped:
            self.swap_()


def _is_wider(mean: Tensor, weight: Tensor) -> bool:
    """Whether its memory cannot hold the weight's own bits in its place."""
    return mean.dtype.itemsize != weight.dtype.itemsize


def _pieces(pairs: Sequence[tuple[Tensor, Tensor]]) -> Iterator[tuple[list[Tensor], list[Tensor]]]:
    """Means and their weights, as many at a time as take little memory together, or one that takes more."""
    means, weights, size = list[Tensor](), list[Tensor](), 0
    for mean, weight in pairs:
        if means and size + mean.nbytes > _PIECE_BYTES:
            yield means, weights
            means, weights, size = [], [], 0
        means.append(mean)
        weights.append(weight)
        size += mean.nbytes
    if means:
        yield means, weights


def _exchange(means: list[Tensor], weights: list[Tensor], *, back: bool) -> None:
    """In a few calls for all; the memory of the means holds the weights' own bits in between."""
    as_weights = [mean.view(weight.dtype) for mean, weight in zip(means, weights, strict=True)]
    kept = [torch.empty_like(weight) for weight in weights]
    torch._foreach_copy_(kept, weights)
    torch._foreach_copy_(weights, as_weights if back else means)
    torch._foreach_copy_(means if back else as_weights, kept)


def _lerp_converted(means: list[Tensor], weights: list[Tensor], share: float) -> None:
    """In two calls for all."""
    converted = [torch.empty_like(mean) for mean in means]
    torch._foreach_copy_(converted, weights)
    torch._foreach_lerp_(means, converted, share)


def as_mean(weight: Tensor) -> Tensor:
    """A copy in the type that a running mean of such weights is kept in.

    Of bfloat16 that is float16: as small, with three bits more, so that a move by the last bit counts in a
    mean of 15 iterates. Its range is smaller: very large and very small weights take float32, and so does
    float16 itself, whose mean would need more bits than it has.
    """
    wanted = weight.dtype
    if wanted == torch.bfloat16:
        size = _largest(weight)
        wanted = torch.float16 if size == 0 or 1 / _LARGEST <= size <= _LARGEST else torch.float32
    elif wanted == torch.float16:
        wanted = torch.float32
    return weight.detach().to(wanted, copy=True)


def _largest(weight: Tensor) -> float:
    """Waits for the device."""
    return float(torch.linalg.vector_norm(weight.detach(), math.inf)) if weight.numel() else 0.0


class Alarm:
    """Reads the norm of the weights a few times in a window, each time a look later, when the device has long
    computed it: it never waits.

    Args:
        weights: the iterates.
        size: their norm when the window began.
        steps: of the window.
    """

    def __init__(self, weights: Sequence[Tensor], size: float, steps: int) -> None:
        self._weights = [weight.detach() for weight in weights]  # once a window, as the mean's are
        self._size, self._steps = size, steps
        self._stride = max(2, steps // _LOOKS)
        self._taken = 0
        self._seen: tuple[Tensor, torch.cuda.Event | None] | None = None

    def rings(self) -> bool:
        """After every step: whether the weights had diverged at the look before."""
        self._taken += 1
        if self._taken % self._stride:
            return False
        lost = self._diverged()
        norms = torch._foreach_norm(self._weights)
        norm = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
        seen, event = norm, None
        if norm.device.type == "cuda":
            seen = empty_copy(norm, offload=True)
            copy_into(seen, norm)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(norm.device))
        self._seen = seen, event
        return lost or (event is None and self._diverged())

    def state(self) -> list[float | None]:
        """The norm and the steps it was made for, those taken, and the norm seen last."""
        return [self._size, self._steps, self._taken, self._norm()]

    def load(self, taken: int, seen: float | None) -> None:
        """Continue within a window."""
        self._taken = taken
        self._seen = None if seen is None else (torch.tensor(seen), None)

    def _diverged(self) -> bool:
        norm = self._norm()
        return norm is not None and not norm <= _FAR * self._size  # or not a number

    def _norm(self) -> float | None:
        if self._seen is None:
            return None
        norm, event = self._seen
        if event is not None:
            event.synchronize()
        return float(norm)


class WeightPath:
    """The mean m of a window, and a sketch of the mean p of the window before.

    It follows what is trained: layers that are frozen during a run leave it, and unfrozen ones join.

    Args:
        context: the optimizer whose trained parameters are followed; and the replicas, which share the mean
            of a window if they differ within it. Norms are taken over all ranks of a replica.
        sizes: how many parameter groups each of several optimizers has: each has a displacement of its own.
            Empty for one optimizer.
        clock: when windows end.
    """

    def __init__(self, context: Context, sizes: Sequence[int], clock: Clock) -> None:
        self._optimizer, self._replicas, self._diverges = (
            context.optimizer,
            context.replicas,
            context.diverges,
        )
        self._sizes = sizes
        self.window = WindowLoop(clock, context.caller)
        #: The plan of the replicas' mean, and what it is of.
        self._average: tuple[Mean, list[Tensor]] | None = None
        self._parameters: list[Tensor] = []
        #: Of each parameter's parts, when it began to be followed.
        self._first_sizes: list[list[float]] = []
        #: Sketch and norm of p of each optimizer, and of m once it has been measured.
        self._before: list[_Sketch] = []
        self._now: list[_Sketch] = []
        self.follow()

    @property
    def _every(self) -> list[list[Tensor]]:
        """The parameters of each optimizer; without sizes those of all groups, also of groups added late."""
        groups = [group["params"] for group in self._optimizer.param_groups]
        ends = [0, *accumulate(self._sizes or [len(groups)])]
        return [[p for group in groups[start:end] for p in group] for start, end in pairwise(ends)]

    def follow(self) -> bool:
        """Follow what is trained now; whether that has changed. If so, the present weights are p."""
        groups = self._every
        known = dict(zip(map(id, self._parameters), self._first_sizes, strict=True))
        if not self.window.follow([p for group in groups for p in group]):
            return False
        trained = [[p for p in group if p.requires_grad] for group in groups]
        self._parameters = [p for group in trained for p in group]
        self._shares = [self._replicas.share_of(p) for p in self._parameters]
        narrow = {p.dtype for p in self._parameters} & {torch.float16, torch.bfloat16}
        #: Of weights with less than float32's precision.
        self.rounding = max((torch.finfo(dtype).eps for dtype in narrow), default=0.0)
        sizes = zip(self._parameters, self._measured_sizes(), strict=True)
        self._first_sizes = [known.get(id(p), now) for p, now in sizes]
        #: Which of the weights each optimizer trains.
        self.spans = [slice(*ends) for ends in pairwise(accumulate(map(len, trained), initial=0))]
        own = zip(self._parameters, self._shares, strict=True)
        roots = self._replicas.replica_norms([math.sqrt(s * local(p).numel()) for p, s in own])
        #: The norm that each optimizer's weights, scaled, began with: √ of how many values they have.
        self._least = [math.hypot(*roots[span]) for span in self.spans]
        self._set_scales()
        self.restart()
        return True

    def start(self) -> None:
        """The first window is compared with the present weights."""
        self._first_sizes = self._measured_sizes()
        self._set_scales()
        self.restart()

    def trained(self) -> list[tuple[float, float]]:
        """Of each optimizer's weights how many lie in matrices that were trained before, and which share of
        those in matrices that is. Of a matrix on several ranks each judges its own shard; FSDP1's flat
        parameters have none, and count as new."""
        found: list[float] = []
        for span in self.spans:
            matrices = [
                (share * own.numel(), own)
                for parameter, share in zip(self._parameters[span], self._shares[span], strict=True)
                for part in self._replicas.parts_of(parameter)
                if (own := local(part).detach()).dim() > 1
            ]
            trained = math.fsum(count for count, own in matrices if was_trained(own))
            found += math.sqrt(trained), math.sqrt(math.fsum(count for count, _ in matrices))
        # Sums over the ranks of this replica: as squares of norms.
        sums = [norm * norm for norm in self._replicas.replica_norms(found)]
        return [(part, part / max(whole, 1.0)) for part, whole in zip(sums[::2], sums[1::2], strict=True)]

    def restart(self) -> None:
        """The present weights become p, rounded as a mean of them is: what does not move has moved by 0. No
        window is in progress, so the mean's memory is free."""
        means = self.window.mean.tensors
        if means:
            torch._foreach_copy_(means, [weight.detach() for weight in self.window.weights])
        self._before = self._sketched(means)

    def keep(self, optimizer: int) -> None:
        """m becomes p."""
        self._before[optimizer] = self._now[optimizer]

    def _measured_sizes(self) -> list[list[float]]:
        """How large the values of each parameter are, of all its parts: their root mean square."""
        norms = self._replicas.replica_norms
        pairs = [
            (part, share)
            for parameter, share in zip(self._parameters, self._shares, strict=True)
            for part in self._replicas.parts_of(parameter)
        ]
        own = norms_of([local(part).detach() for part, _ in pairs])
        here = norms([math.sqrt(share) * norm for norm, (_, share) in zip(own, pairs, strict=True)])
        roots = norms([math.sqrt(share * local(part).numel()) for part, share in pairs])
        sizes = iter(
            max(norm / root if norm else _usual_size(part), _LEAST_SHARE * _usual_size(part))
            for norm, root, (part, _) in zip(here, roots, pairs, strict=True)
        )
        return [list(islice(sizes, len(self._replicas.parts_of(p)))) for p in self._parameters]

    def _set_scales(self) -> None:
        """Every tensor counts by how many values it has and how far they move relative to their size."""
        self._scales = [
            1 / sizes[0]
            if len(sizes) == 1
            else _by_column(local(parameter), self._replicas.parts_of(parameter), sizes)
            for parameter, sizes in zip(self._parameters, self._first_sizes, strict=True)
        ]

    @property
    def _in_parts(self) -> bool:
        """Whether sketches are of the whole replica, of which this rank knows which part it holds."""
        return self._replicas.ranks_per_replica > 1 and self._replicas.can_reshard

    def _sketched(self, weights: Sequence[Tensor]) -> list[_Sketch]:
        every = [weight.detach() for weight in weights]
        norms = self._replicas.replica_norms([self._norm(every, span) for span in self.spans])
        seen = self._of_shards if self._in_parts else self._of_all
        return [(seen(every[span], span), norm) for span, norm in zip(self.spans, norms, strict=True)]

    def _norm(self, weights: Sequence[Tensor], span: slice) -> float:
        """Of one optimizer's weights, scaled: this rank's part in that of the replica."""
        scaled = [
            (w, scale) if isinstance(scale, float) else (w * scale, 1.0)
            for w, scale in zip(weights[span], self._scales[span], strict=True)
        ]
        norms = norms_of([w for w, _ in scaled])
        return math.hypot(
            *(
                norm * scale * math.sqrt(share)
                for norm, (_, scale), share in zip(norms, scaled, self._shares[span], strict=True)
            )
        )

    def _of_all(self, weights: Sequence[Tensor], span: slice) -> Tensor:
        """The sketch of one optimizer's weights; what all ranks of a replica hold counts once in the sum of
        squares over them."""
        if not weights:
            return torch.zeros(1)
        own = zip(self._scales[span], self._shares[span], strict=True)
        return sketch(weights, [scale * math.sqrt(share) for scale, share in own])

    def _of_shards(self, shards: Sequence[Tensor], span: slice) -> Tensor:
        """The sketch of one optimizer's weights, the same on all ranks and for all ways to cut it."""
        if not shards:
            return torch.zeros(1)
        own = [scale * share for scale, share in zip(self._scales[span], self._shares[span], strict=True)]
        return self._replicas.replica_sum(sketch_of_shards(shards, self._parameters[span], own))

    def converge(self) -> None:
        """m becomes the mean over all replicas. A replica that diverged has the weights of the others by now,
        and adds those instead of its mean. Waits for the device."""
        if not self._diverges:
            return
        if self._average is None or self._average[1] is not self.window.mean.tensors:
            self._average = self._replicas.plan_mean(self.window.mean.tensors), self.window.mean.tensors
        mean, weights = self.window.mean.tensors, [weight.detach() for weight in self.window.weights]
        rows = (zip(*map(self._replicas.rows_of, tensors), strict=True) for tensors in (mean, weights))
        for own, others in zip(*rows, strict=True):
            now, size = self._replicas.replica_norms([norm_of(own), norm_of(others)])
            if not math.isfinite(now) or now > _EXPLODED * size > 0:
                torch._foreach_copy_(own, others)
        self._average[0]()

    def displacements(self) -> list[float]:
        """‖m − p‖ / ‖p‖ of each optimizer's weights, scaled. Waits for the device."""
        self._now = self._sketched(self.window.mean.tensors)
        moved = [
            float(torch.linalg.vector_norm(now - before, dtype=_wide(now)))
            for (now, _), (before, _) in zip(self._now, self._before, strict=True)
        ]
        if not self._in_parts:
            moved = self._replicas.replica_norms(moved)
        # What began at next to nothing counts with the size that it is usually given.
        sizes = (max(norm, least) for (_, norm), least in zip(self._before, self._least, strict=True))
        return [far / max(size, math.ulp(0.0)) for far, size in zip(moved, sizes, strict=True)]

    def is_finite(self) -> bool:
        """Whether the weights are. Waits for the device, and for the other ranks of this replica."""
        lost = not all(bool(torch.isfinite(weight).all()) for weight in self.window.weights)
        return self._replicas.replica_norms([float(lost)]) == [0.0]

    def bytes(self) -> int:
        """What the copies take."""
        sketches = {id(seen): seen for seen, _ in (*self._before, *self._now)}
        return sum(t.numel() * t.element_size() for t in (*self.window.mean.tensors, *sketches.values()))

    def state_dict(self) -> dict[str, Any]:
        """The tensors without which a window in progress could not go on bit for bit; they are not copied."""
        alarm = self.window.alarm
        return {
            "mean": self.window.state_dict([p for group in self._every for p in group]),
            "before": [[seen, norm] for seen, norm in self._before],
            "sizes": [list(sizes) for sizes in self._first_sizes],
            "alarm": None if alarm is None else alarm.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.window.load_state_dict(state["mean"])
        self._first_sizes = [list(sizes) for sizes in state["sizes"]]
        self._set_scales()
        saved = zip(state["before"], [seen.device for seen, _ in self._before], strict=True)
        self._before = [(seen.to(device, copy=True), float(norm)) for (seen, norm), device in saved]
        self.window.alarm = None
        if state["alarm"] is not None and self._replicas.world_size == 1:
            size, steps, *rest = state["alarm"]
            self.window.alarm = Alarm(self.window.weights, size, steps)
            self.window.alarm.load(*rest)


def _usual_size(parameter: Tensor) -> float:
    """The size that each value of such a parameter is usually given."""
    rows = parameter.numel() // parameter.shape[0] if parameter.dim() > 1 and parameter.shape[0] else 0
    return 1 / math.sqrt(rows) if rows else _USUAL_SIZE


def _by_column(tensor: Tensor, parts: Sequence[Tensor], sizes: Sequence[float]) -> Tensor:
    """The scale of every column of a tensor that these parts lie in, side by side."""
    scale, base = tensor.new_ones(tensor.shape[-1]), tensor.storage_offset()
    for part, size in zip(parts, sizes, strict=True):
        start = local(part).storage_offset() - base
        scale[start : start + part.numel()] = 1 / size
    return scale


# ---------------------------------------------------------------------- sketches
#
# Every value gets a sign and is added to one of 65,536 bins. The signs are as good as random, so in the norm
# of the bins the products of different values cancel, and the norm of the vector remains but for half a per
# cent. The map is linear: the difference of two sketches is the sketch of the difference. A vector of no more
# values than there are bins is its own sketch. Where a vector lies on several ranks, each adds its own values
# to the bins they have in the whole, and the sum over the ranks is the sketch that one rank alone would have
# made.


@torch.no_grad()
def sketch(tensors: Sequence[Tensor], scales: Sequence[_Scale] | None = None) -> Tensor:
    """A vector of at most 65,536 values, on the device of the first tensor: sums in double precision, or the
    values themselves. With ``scales`` that of the tensors times these.

    >>> a, b = torch.randn(2, 300_000, generator=torch.Generator().manual_seed(0))
    >>> near = (sketch([a]) - sketch([b])).norm() / (a - b).norm()
    >>> 0.98 < near < 1.02
    tensor(True)
    """
    tensors = [torch.view_as_real(t) if t.is_complex() else t for t in tensors]
    scales = [1.0] * len(tensors) if scales is None else scales
    first = tensors[0]
    if sum(tensor.numel() for tensor in tensors) <= _BINS:
        return torch.cat(
            [_times(t, s).reshape(-1).to(first.device) for t, s in zip(tensors, scales, strict=True)]
        )
    bins = _Bins(first, gathers=first.device.type == "cuda")
    for tensor, scale in zip(tensors, scales, strict=True):
        if isinstance(scale, Tensor):
            tensor, scale = _times(tensor, scale), 1.0
        bins.add(tensor.reshape(-1).to(first.device), scale)
    return bins.total()


class _Bins:
    """The sums so far, twice as many as there are bins: what goes beyond the last one is added to the first
    in the end. A tensor is added in pieces of as many values as there are bins, and a rest.

    ``gathers``: many pieces at once, as a GPU does; one after the other is the slow twin.
    """

    def __init__(self, like: Tensor, *, gathers: bool) -> None:
        self._sums = torch.zeros(2 * _BINS, dtype=_wide(like), device=like.device)
        self._gathers = gathers
        self._signs = _signs(like.device)
        self._turned: Tensor | None = None
        self._count = 0
        #: What is to be added at once: a piece, its number, and what it is multiplied by.
        self._waiting: list[tuple[Tensor, int, float]] = []

    def add(self, values: Tensor, scale: float = 1.0) -> None:
        """A tensor of one dimension. Pieces of a large one are added as they lie."""
        whole = len(values) // _BINS
        if self._gathers and whole >= _PIECES // 2:
            for pieces in torch.split(values[: whole * _BINS].view(whole, _BINS), _PIECES):
                self._add_successive(pieces, scale)
            values = values[whole * _BINS :]
            if not len(values):
                return
        for piece in torch.split(values, _BINS):
            if self._gathers:
                self._waiting.append((piece, self._count, scale))
            else:
                sign, at = self._count * _SIGN_STRIDE % _BINS, self._count * _BIN_STRIDE % _BINS
                self._sums[at : at + len(piece)] += piece * (scale * self._signs[sign : sign + len(piece)])
            self._count += 1
            if len(self._waiting) == _PIECES:
                self._add_waiting()

    def total(self) -> Tensor:
        """The bins."""
        if self._waiting:
            self._add_waiting()
        return self._sums[:_BINS] + self._sums[_BINS:]

    def _add_waiting(self) -> None:
        """As a matrix, with zeros behind what is shorter."""
        pieces, numbers, scales = (list(each) for each in zip(*self._waiting, strict=True))
        self._waiting = []
        matrix = torch.zeros(len(pieces), _BINS, dtype=self._sums.dtype, device=self._sums.device)
        rows = [row[: len(piece)] for row, piece in zip(matrix.unbind(), pieces, strict=True)]
        torch._foreach_copy_(rows, pieces)
        torch._foreach_mul_(rows, scales)
        at = torch.tensor(numbers, device=matrix.device)
        self._sums[:_BINS] += self._due(matrix, at, self._turn(at))

    def _add_successive(self, pieces: Tensor, scale: float) -> None:
        at = torch.arange(len(pieces), device=pieces.device)
        if self._turned is None or len(self._turned) < len(pieces):
            # Seen from the first one's bins: the same ones do for all that follow.
            self._turned = self._turn(at)
        begin = self._count * _BIN_STRIDE % _BINS
        due = self._due(pieces, at + self._count, self._turned[: len(pieces)])
        self._sums[begin : begin + _BINS] += scale * due
        self._count += len(pieces)

    def _turn(self, numbers: Tensor) -> Tensor:
        """Which value of each piece every bin is due."""
        return (torch.arange(_BINS, device=numbers.device) - numbers[:, None] * _BIN_STRIDE) % _BINS

    def _due(self, pieces: Tensor, numbers: Tensor, turned: Tensor) -> Tensor:
        """Their sum, each with its signs. No bin is written to by two, so it is the same every time."""
        signed = pieces * self._signs.unfold(0, _BINS, 1).index_select(0, numbers * _SIGN_STRIDE % _BINS)
        return signed.gather(1, turned).sum(0, dtype=self._sums.dtype)


@torch.no_grad()
def sketch_of_shards(
    shards: Sequence[Tensor], parameters: Sequence[Tensor], scales: Sequence[_Scale]
) -> Tensor:
    """What this rank adds to the sketch of whole parameters, in double precision.

    Args:
        shards: what it has of each.
        parameters: what they are shards of.
        scales: what they are multiplied by; those of all ranks that hold the same values add up to the
            whole's.
    """
    device, wide = shards[0].device, _wide(shards[0])
    few = sum(parameter.numel() for parameter in parameters) <= _BINS
    bins = torch.zeros(sum(p.numel() for p in parameters) if few else _BINS, dtype=wide, device=device)
    signs = None if few else _signs(device)
    before = 0  # values of the parameters before this one; or pieces of so many values as there are bins
    for shard, parameter, scale in zip(shards, parameters, scales, strict=True):
        flat, start = shard.reshape(-1), shard_offset(parameter)
        at = 0
        while at < flat.numel():
            # In one run of the whole no bin comes up twice. Else they are looked up one by one.
            left = _BINS - (start + at) % _BINS if start is not None else _AT_ONCE
            piece = flat[at : at + left].to(device, wide) * scale
            if start is None:
                where = shard_positions(parameter, at, at + len(piece), device)
            else:
                where = torch.arange(start + at, start + at + len(piece), device=device)
            if signs is None:
                bins.index_add_(0, where + before, piece)
            else:
                k, j = where // _BINS + before, where % _BINS
                bins.index_add_(0, (k * _BIN_STRIDE + j) % _BINS, piece * signs[k * _SIGN_STRIDE % _BINS + j])
            at += len(piece)
        before += parameter.numel() if few else max(1, -(-parameter.numel() // _BINS))
    return bins


def _times(tensor: Tensor, scale: _Scale) -> Tensor:
    """In float32 at least: rounded to less, weights that hardly moved would have moved."""
    return (tensor.float() if tensor.element_size() < 4 else tensor) * scale


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.float32 if tensor.device.type == "mps" else torch.float64


@cache
def _signs(device: torch.device) -> Tensor:
    """The same on every device and in every process; kept, since to draw them takes milliseconds."""
    coins = torch.randint(0, 2, (2 * _BINS,), generator=torch.Generator().manual_seed(0))
    return (2.0 * coins - 1.0).to(device, torch.float32)
