"""Converge (Eq. 3): the weights become their mean over the replicas, and their distance is taken.

The plan of the mean follows what is trained: it is made once, and again where parameters are frozen, freed
or moved to other memory.

On a shared gradient the replicas of a round lie on one line, θ_r = θ₀ + ρ_r·D, so replica r is at distance
|ρ_r − 1|·‖D‖ from the mean. Both sides are measured over the same fixed sample of the weights, at a cost that
does not grow with the model: a distance of 0 where one is predicted shows that something undoes the fan-out.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from hdet.loop.optimizers import trained_parameters
from hdet.replicas import Mean, Replicas, drop_gathered, local, state_of
from hdet.replicas.averaging import distinct_tensors, elements, flat_pieces
from hdet.replicas.norms import norm_of

__all__ = ["Converge", "Divergence", "FiniteBuffers", "Measured", "WeightCopies", "predicted_distances"]


class Converge:
    """The mean of an optimizer's parameters and a model's buffers.

    Args:
        with_state: so is what the optimizer remembers of the gradients, where replicas see different ones.
    """

    def __init__(
        self,
        replicas: Replicas,
        optimizer: Optimizer,
        model: nn.Module | None,
        *,
        with_state: bool,
    ) -> None:
        self._with_state = with_state
        #: An optimizer makes its state in the first step: the second one finds what cannot be averaged.
        self._looks_left = 2 if with_state else 0
        self._replicas = replicas
        self._optimizer = optimizer
        self._model = model
        self._groups = len(optimizer.param_groups)
        self._mean: Mean | None = None
        self._averaged: list[Tensor] = []
        #: Where all that is averaged lies, and the weights.
        self._places: list[int] = []
        self._home: list[int] = []
        self._trained: dict[int, Tensor] = {}
        self._gauge: Divergence | None = None
        self._copies = WeightCopies(optimizer, replicas)
        self._buffers = FiniteBuffers()
        self._judged_buffers()  # as they are before training

    @property
    def begun(self) -> bool:
        """Whether displacements are being counted."""
        return self._gauge is not None and self._looks_left == 0

    def begin(self) -> None:
        """Count displacements from the present weights, unless that has begun already."""
        if self._looks_left:
            self._looks_left -= 1
            self._refuse_quantised([p for group in trained_parameters(self._optimizer) for p in group])
        self._begin_gauge()

    def _begin_gauge(self) -> Divergence:
        if self._gauge is None:
            # A group added later is averaged, but not explored.
            self._gauge = Divergence(trained_parameters(self._optimizer)[: self._groups], self._replicas)
        return self._gauge

    def forget(self) -> None:
        """The weights are about to be replaced: count displacements again from the next :meth:`begin`."""
        self._gauge = None

    def __call__(self, lost: Callable[[], Collection[int]] = tuple) -> tuple[Measured, tuple[str, ...]]:
        """Average; how far this replica was from the mean, and what to log. Every rank must call it.

        ``lost`` is asked once, before anything is written: replicas that have no part in the mean, and take
        the others'. If there are any, the mean is taken again without them.
        """
        if not self._with_state:  # else all state is averaged anyway
            self._copies.find()
        mean = self.plan()
        counted = self._gauge is not None
        gauge = self._begin_gauge()
        before = gauge.read()
        left_out: list[int] = []

        def sound() -> bool:
            left_out.extend(lost())
            return not left_out

        events = mean(sound)
        if left_out:
            # They take the others' state with their weights, also where all have the same.
            mean = self.plan(with_state=True)
            self._leave_out(left_out)
            events = mean()
        measured = gauge.measure(before)
        if not counted:  # other tensors than when the round began: of these nothing is known until now
            measured = replace(measured, displacements=(math.nan,) * len(measured.displacements))
        drop_gathered(self._model)
        return measured, events

    @torch.no_grad()
    def _leave_out(self, lost: Sequence[int]) -> None:
        """The mean of N of which some are 0 and the others N/n times themselves is the mean of those n."""
        size = self._replicas.size
        for tensor in distinct_tensors(self._averaged):
            for rank, row in enumerate(self._replicas.rows_of(tensor), start=self._replicas.rank):
                if rank in lost:
                    row.zero_()  # not multiplied: it may not be finite
                else:
                    row.mul_(size / (size - len(lost)))

    def travels(self) -> tuple[list[Tensor], list[Tensor]]:
        """The weights that a mean would take now, and all else beside them that is to be finite. No
        collective."""
        parameters = list({**self._now(), **self._trained}.values())
        beside = [*self._state(parameters, self._with_state), *self._judged_buffers()]
        return [local(p) for p in parameters], beside

    def lost_buffers(self) -> list[str]:
        """Names of buffers that were finite before training and are not any more. Waits for the device."""
        judged = self._judged_buffers()
        if self._model is None or math.isfinite(norm_of(judged)):
            return []
        lost = {b.data_ptr() for b in judged if not math.isfinite(norm_of([b]))}
        buffers = self._replicas.buffers_of(self._model)
        return [name for name, buffer in buffers.items() if local(buffer).data_ptr() in lost]

    def _judged_buffers(self) -> list[Tensor]:
        return self._buffers.judged(_floating(self._replicas.buffers_of(self._model).values()))

    def plan(self, *, with_state: bool | None = None) -> Mean:
        """The plan of the mean, made again only where the tensors are others than before.

        What was trained at the last sync is averaged once more: it may have been frozen in between.
        """
        with_state = self._with_state if with_state is None else with_state
        now = self._now()
        parameters = list({**now, **self._trained}.values())
        self._trained = now
        weights = [local(p) for p in parameters]
        buffers = [*self._replicas.buffers_of(self._model).values()]
        if with_state:
            self._refuse_quantised(parameters)
            self._compare(parameters)
        tensors = [*weights, *self._state(parameters, with_state)]
        places = [tensor.data_ptr() for tensor in (*tensors, *buffers)]
        if self._mean is None or places != self._places:
            if (home := places[: len(weights)]) != self._home:
                self._home, self._gauge = home, None
            self._mean, self._places = self._replicas.plan_mean(tensors, buffers), places
            self._averaged = [*tensors, *_floating(buffers)]
        return self._mean

    def _now(self) -> dict[int, Tensor]:
        return {id(p): p for group in trained_parameters(self._optimizer) for p in group}

    def _state(self, parameters: Sequence[Tensor], with_state: bool) -> list[Tensor]:
        if not with_state:  # a copy of the weights is where the next step begins
            return self._copies.tensors(parameters)
        return [value for parameter in parameters for _, value in self._kept(parameter)]

    def _kept(self, parameter: Tensor) -> list[tuple[str, Tensor]]:
        """Floating tensors that the optimizer keeps for a parameter; a counter of steps is none."""
        return [
            (name, local(value))
            for name, value in sorted(state_of(self._optimizer).get(parameter, {}).items())
            if isinstance(value, Tensor)
            and (value.is_floating_point() or value.is_complex())
            and name != "step"
        ]

    def _refuse_quantised(self, parameters: Sequence[Tensor]) -> None:
        """The mean of codes is no mean, and scales that are averaged belong to no codes."""
        for parameter in parameters:
            for name, value in sorted(self._optimizer.state.get(parameter, {}).items()):
                if isinstance(value, Tensor) and (what := _quantised(local(value))):
                    raise RuntimeError(
                        "converge: what the optimizer remembers must be plain floating tensors where it is "
                        f"averaged with the weights, and {name!r} is kept as {what}; use an optimizer with "
                        "state of 16 or 32 bits, or share gradients among all replicas (gradients='all') and "
                        "explore nothing that acts on the state, such as momentum, betas or clipping"
                    )

    def _compare(self, parameters: Sequence[Tensor]) -> None:
        """On gradients of their own, one rank may have trained a layer, and keep state for it, alone."""
        kept = [
            [(name, tuple(value.shape)) for name, value in self._kept(parameter)] for parameter in parameters
        ]
        digest = zlib.crc32(repr([tuple(local(p).shape) for p in parameters] + kept).encode())
        having = sum(bool(names) for names in kept)
        rows = self._replicas.gather_ranks([float(digest), float(len(parameters)), float(having)])
        if any(row[0] != rows[r % self._replicas.ranks_per_replica][0] for r, row in enumerate(rows)):
            seen = ", ".join(f"rank {r} for {int(row[2])} of {int(row[1])}" for r, row in enumerate(rows))
            raise RuntimeError(
                "converge: the optimizer must keep the same state for the same parameters on all ranks, and "
                f"keeps it on {seen}; some rank's gradient has not reached all parameters: let every layer "
                "take part in every round, or freeze it everywhere"
            )


def _floating(buffers: Iterable[Tensor]) -> list[Tensor]:
    """Those that are no counters, each element once."""
    return [elements(b) for b in buffers if b.is_floating_point() or b.is_complex()]


def _quantised(value: Tensor) -> str:
    """In what form, if a value is kept as codes: a tensor made of others, or one of so few bits."""
    if hasattr(value, "__tensor_flatten__"):
        return type(value).__name__
    few = value.element_size() == 1 and value.dtype != torch.bool
    return f"a tensor of {value.dtype}" if few and value.numel() > 1 else ""


# ---------------------------------------------------------------------- buffers, and copies of the weights


class FiniteBuffers:
    """Knows which buffers training must keep finite: those that were finite when they were first seen.

    A causal mask of −inf is no sign of a lost replica. A buffer is known by its index and its shape; one that
    comes later, or in another shape, is seen for the first time then.
    """

    def __init__(self) -> None:
        self._finite: dict[tuple[int, torch.Size], bool] = {}

    def judged(self, buffers: Sequence[Tensor]) -> list[Tensor]:
        """The buffers that must be finite. Waits for the device where some are new."""
        for i, buffer in enumerate(buffers):
            if (i, buffer.shape) not in self._finite:
                # Types of eight bits have no infinity, or no isfinite.
                wide = buffer.float() if buffer.element_size() == 1 else buffer
                self._finite[i, buffer.shape] = bool(torch.isfinite(wide).all())
        return [buffer for i, buffer in enumerate(buffers) if self._finite[i, buffer.shape]]


#: How many parameters, and values of each, are compared.
_PARAMETERS, _VALUES = 16, 64
#: How many names a row holds, so that the rows of all ranks are of one length.
_NAMES = 16
#: After how many searches without a find it stops: plain SGD keeps nothing.
_LOOKS = 3


class WeightCopies:
    """Copies of the weights in an optimizer's state: float32 masters of bfloat16 parameters, say.

    The next step begins from them, so a mean or a rollback must write them, too. They are known by their
    values alone, which are the parameter's up to its rounding.
    """

    def __init__(self, optimizer: Optimizer, replicas: Replicas) -> None:
        self._optimizer = optimizer
        self._replicas = replicas
        self._looks = 0
        #: Their names in the state.
        self.names: frozenset[str] = frozenset()

    @torch.no_grad()
    def find(self) -> None:
        """Look for them, unless that is done. A collective: every rank calls it after the same step."""
        if self._looks >= _LOOKS:
            return
        self._looks += 1
        found = self._found()
        known = sorted(found)[:_NAMES]
        verdicts = [1.0 if found[name] else -1.0 for name in known]
        digest = float(zlib.crc32(repr(known).encode())) if known else 0.0
        rows = self._replicas.gather_ranks([digest, *verdicts, *[0.0] * (_NAMES - len(known))])
        # A rank on which nothing can be compared, all of whose shards are empty, takes the others' word.
        heard = [row for row in rows if row[0]]
        if not heard:
            return
        self._looks = _LOOKS
        if all(row[0] == heard[0][0] for row in heard):
            every = sorted(self._names())[:_NAMES]
            columns = list(zip(*(row[1:] for row in heard), strict=True))
            self.names = frozenset(name for name, seen in zip(every, columns, strict=False) if min(seen) > 0)

    def tensors(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """The copies of these parameters, of the parts of them on this rank."""
        found = (copy for parameter in parameters for _, copy in self._of(parameter)) if self.names else ()
        return [copy for copy in found if copy.numel()]

    @contextmanager
    def following(self) -> Iterator[None]:
        """Within, the weights are moved, which the copies follow. A collective."""
        self.find()
        yield
        with torch.no_grad():
            for group in trained_parameters(self._optimizer) if self.names else ():
                for parameter in group:
                    for _, copy in self._of(parameter):
                        copy.copy_(local(parameter).detach())

    def _of(self, parameter: Tensor) -> list[tuple[str, Tensor]]:
        kept = state_of(self._optimizer).get(parameter, {})
        return [
            (name, local(kept[name])) for name in sorted(self.names) if isinstance(kept.get(name), Tensor)
        ]

    def _found(self) -> dict[str, bool]:
        """Whether what the state keeps under a name equals its parameter wherever both can be compared."""
        state = state_of(self._optimizer)
        every = [p for group in trained_parameters(self._optimizer) for p in group if p in state]
        found = dict.fromkeys(self._names(), True)
        compared = False
        for parameter in every[:: max(1, len(every) // _PARAMETERS)]:
            weight = local(parameter).detach()
            if not weight.is_floating_point() or not bool(weight.reshape(-1)[:_VALUES].any()):
                continue
            compared = True
            for name, value in state[parameter].items():
                if name in found:
                    found[name] &= _is_copy(local(value).detach(), weight)
        return found if compared else {}

    def _names(self) -> set[str]:
        return {
            name
            for kept in state_of(self._optimizer).values()
            if isinstance(kept, dict)  # some keep a number there that is of no parameter
            for name, value in kept.items()
            if isinstance(name, str) and isinstance(value, Tensor) and value.is_floating_point()
        }


def _is_copy(copy: Tensor, weight: Tensor) -> bool:
    if copy.shape != weight.shape or is_traceable_wrapper_subclass(
        copy
    ):  # quantised codes equal nothing exactly
        return False
    a, b = (tensor.reshape(-1)[:_VALUES].cpu().double() for tensor in (copy, weight))
    rounding = 2 * torch.finfo(weight.dtype).eps
    return bool(((a - b).abs() <= rounding * b.abs()).all())


# ---------------------------------------------------------------------- how far apart the replicas are

_TENSORS_PER_GROUP = 64
_VALUES_PER_TENSOR = 256


@dataclass(frozen=True, slots=True)
class Measured:
    """This replica's distance from the mean, ‖D‖ for each group (NaN where it was not counted from the
    round's beginning), and the size of rounding errors.

    Of several replicas in one process, the distance is each one's, and the rest the first one's.
    """

    distance: float | Tensor
    displacements: tuple[float, ...]
    rounding: float


class Divergence:
    """Samples the weights of each parameter group before and after every mean.

    Args:
        replicas: who holds them. Of several in this process, weights are matrices with a row for each; of one
            that lies on several ranks, each samples its own part.
    """

    def __init__(self, groups: Sequence[Sequence[Tensor]], replicas: Replicas) -> None:
        self._several = replicas.local_count > 1
        self._replica_norms = replicas.replica_norms
        self._nothing = torch.zeros(replicas.local_count, 1) if self._several else torch.zeros(1)
        weights = [[(local(p), replicas.share_of(p)) for p in group] for group in groups]
        sampled = [_sample_rows(group) if self._several else _sample(group) for group in weights]
        self._samples = [[view for view, _ in views] for views in sampled]
        self._roots = [_roots(views) for views in sampled]
        # Scales a sample's norm to that of the whole group, or of this rank's share of it.
        self._scales = [
            math.sqrt(_count(group) / (_count(views) or 1))
            for group, views in zip(weights, sampled, strict=True)
        ]
        self._epsilons = [
            max([torch.finfo(torch.float32).eps, *(torch.finfo(v.dtype).eps for v in views)])
            for views in self._samples
        ]
        self._start = self.read()

    @torch.no_grad()
    def read(self) -> list[Tensor]:
        """The sampled weights as they are now."""
        return [
            torch.cat([view.to(views[0].device, torch.float32) for view in views], dim=-1)
            if views
            else self._nothing
            for views in self._samples
        ]

    @torch.no_grad()
    def measure(self, before: Sequence[Tensor]) -> Measured:
        """Compare with the weights after the mean; then restart.

        ``before`` is what :meth:`read` gave before the mean.
        """
        after = self.read()
        groups = list(zip(after, before, self._start, strict=True))
        differences = [b - a for a, b, _ in groups] + [a - s for a, _, s in groups] + after
        weighed = [
            d if root is None else d * root for d, root in zip(differences, self._roots * 3, strict=True)
        ]
        norms = [torch.linalg.vector_norm(d, dim=-1).cpu() for d in weighed]
        distances = torch.stack([n * scale for n, scale in zip(norms, self._scales, strict=False)]).double()
        scaled = self._replica_norms(
            [float(norm.flatten()[0]) * scale for norm, scale in zip(norms, self._scales * 3, strict=True)]
        )
        self._start = after
        n = len(groups)
        return Measured(
            distance=distances.norm(dim=0) if self._several else math.hypot(*scaled[:n]),
            displacements=tuple(scaled[n : 2 * n]),
            rounding=math.hypot(*(e * w for e, w in zip(self._epsilons, scaled[2 * n :], strict=True))),
        )


def predicted_distances(
    multipliers: Sequence[Sequence[float]], displacements: Sequence[float]
) -> tuple[float, ...]:
    """|ρ_r − 1|·‖D‖ for every replica, where each group has multipliers and a displacement of its own.

    >>> predicted_distances([(0.5, 1.5), (1.25, 0.75)], [3.0, 8.0])
    (2.5, 2.5)
    """
    return tuple(
        math.hypot(*((rho - 1) * norm for rho, norm in zip(column, displacements, strict=True)))
        for column in zip(*multipliers, strict=True)
    )


#: Weights, and the share with which their squares count.
_Shared = tuple[Tensor, float]


def _count(weights: Sequence[_Shared]) -> float:
    return sum(share * weight.numel() for weight, share in weights)


def _roots(views: Sequence[_Shared]) -> Tensor | None:
    """By what the values of views are multiplied before they are squared; None if all count whole."""
    if all(share == 1 for _, share in views):
        return None
    parts = [
        torch.full((view.numel(),), math.sqrt(share), device=views[0][0].device) for view, share in views
    ]
    return torch.cat(parts)


def _sample_rows(matrices: Sequence[_Shared]) -> list[_Shared]:
    """Evenly spaced columns."""
    columns = _TENSORS_PER_GROUP * _VALUES_PER_TENSOR
    return [(matrix.detach()[:, :: max(1, matrix.shape[1] // columns)], share) for matrix, share in matrices]


def _sample(tensors: Sequence[_Shared]) -> list[_Shared]:
    """Evenly spaced values of evenly spaced tensors; the same choice on every replica."""
    pieces = [(piece, share) for tensor, share in tensors for piece in flat_pieces(tensor)]
    chosen = pieces[:: max(1, math.ceil(len(pieces) / _TENSORS_PER_GROUP))]
    return [(piece[:: max(1, piece.numel() // _VALUES_PER_TENSOR)], share) for piece, share in chosen]
