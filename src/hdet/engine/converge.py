"""Converge (Eq. 3): the weights become their mean over the replicas, and their distance is taken.

The plan of the mean follows what is trained: it is made once, and again where parameters are frozen, freed
or moved to other memory.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hdet.engine.divergence import Divergence, Measured
from hdet.replicas import Mean, Replicas, give_up_gathered, local, state_of
from hdet.replicas.averaging import distinct_tensors, elements
from hdet.replicas.norms import norm_of
from hdet.weights.given import GivenBuffers
from hdet.weights.mirrors import Mirrors
from hdet.weights.outer import OuterStep
from hdet.weights.parameters import trained_parameters

__all__ = ["Converge"]


class Converge:
    """The mean of an optimizer's parameters and a model's buffers.

    Args:
        replicas: who takes part.
        optimizer: its parameters are averaged.
        model: its buffers are averaged too.
        with_state: so is what the optimizer remembers of the gradients, where replicas see different ones.
        outer: steps from the mean, or makes it of displacements, at the end of every round.
    """

    def __init__(
        self,
        replicas: Replicas,
        optimizer: Optimizer,
        model: nn.Module | None,
        *,
        with_state: bool = False,
        outer: OuterStep | None = None,
    ) -> None:
        self._with_state = with_state
        #: An optimizer makes its state in the first step: the second one finds what cannot be averaged.
        self._looks_left = 2 if with_state else 0
        self.outer = outer
        self._replicas = replicas
        self._optimizer = optimizer
        self._model = model
        self._groups = len(optimizer.param_groups)
        self._mean: Mean | None = None
        self._mean_key: list[int] = []
        self._home: list[int] = []
        self._averaged: list[Tensor] = []
        self._counters: list[Tensor] = []
        self._parameters: list[Tensor] = []
        self._trained: dict[int, Tensor] = {}
        self._gauge: Divergence | None = None
        self._mirrors = Mirrors(optimizer, replicas)
        self._given = GivenBuffers()
        self._judged_buffers()  # as they are before training

    @property
    def begun(self) -> bool:
        """Whether displacements are being counted."""
        begun = self._gauge is not None and (self.outer is None or self.outer.begun)
        return begun and self._looks_left == 0

    def begin(self) -> Divergence:
        """Count displacements from the present weights, unless that has begun already."""
        if self._looks_left:
            self._looks_left -= 1
            self._refuse_quantised([p for group in trained_parameters(self._optimizer) for p in group])
        if self.outer is not None and not self.outer.begun:
            self.outer.begin()
            self._mirrors.follow_()
        return self._begin_gauge()

    def _begin_gauge(self) -> Divergence:
        if self._gauge is None:
            # A group added later is averaged, but not explored.
            self._gauge = Divergence(trained_parameters(self._optimizer)[: self._groups], self._replicas)
        return self._gauge

    def forget(self) -> None:
        """The weights will be others: count displacements anew from the next :meth:`begin`."""
        self._gauge = None
        if self.outer is not None:
            self.outer.forget()

    def went_back(self, *, diverges: bool) -> None:
        """The weights are older ones, the same everywhere; buffers were each rank's own when they were kept,
        by one forward pass."""
        if diverges:
            self(ends_round=False)
        self.forget()

    def __call__(
        self, lost: Sequence[int] = (), *, ends_round: bool = True
    ) -> tuple[Measured, tuple[str, ...]]:
        """Average; how far this replica was from the mean, and what was odd. Every rank must call it.

        Args:
            lost: replicas that have no part in the mean, and take the others'.
            ends_round: whether an outer optimizer steps from there. Within a round the exact mean is all.
        """
        if not self._with_state or self.outer is not None:  # else all state is averaged anyway
            self._mirrors.find()
        outer = self.outer if ends_round else None
        if outer is not None:
            outer.begin()
            outer.check_start()
        packed = outer is not None and outer.packs
        # Who was left out takes the others' state with their weights, also where all have the same.
        mean = self.plan(with_weights=not packed, with_state=self._with_state or bool(lost))
        gauge = self._begin_gauge()
        before = gauge.read()
        self._replicas.keep([*self._averaged, *self._counters])
        if lost:
            self._leave_out(lost)
        events = mean()
        if outer is not None and packed:
            events += outer.mean_(self._parameters, lost)
        measured = gauge.measure(before)
        if outer is not None:
            events += outer.step_(self._parameters)
            self._mirrors.follow_()
            self._gauge = None  # the next round begins elsewhere
        give_up_gathered(self._model)
        return measured, events

    @torch.no_grad()
    def _leave_out(self, lost: Sequence[int]) -> None:
        """The mean of N of which some are 0 and the others N/n times themselves is the mean of those n."""
        size = self._replicas.size
        for tensor in self._averaged:
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
        return [name for name, buffer in self._model.named_buffers() if local(buffer).data_ptr() in lost]

    def _judged_buffers(self) -> list[Tensor]:
        floating, _ = _sorted(self._replicas.buffers_of(self._model))
        return self._given.judged(floating)

    def plan(self, *, with_weights: bool = True, with_state: bool | None = None) -> Mean:
        """The plan of the mean, made again only where the tensors are others than before.

        Without the weights it is of all else: they go another way. What was trained at the last sync is
        averaged once more: it may have been frozen in between.
        """
        with_state = self._with_state if with_state is None else with_state
        now = self._now()
        self._parameters = list({**now, **self._trained}.values())
        self._trained = now
        weights = [local(p) for p in self._parameters]
        buffers = self._replicas.buffers_of(self._model)
        if with_state:
            self._refuse_quantised(self._parameters)
            self._compare(self._parameters)
        state = self._state(self._parameters, with_state)
        if (home := [weight.data_ptr() for weight in weights]) != self._home:
            self._home = home
            self._gauge = None
        floating, self._counters = _sorted(buffers)
        tensors = [*weights, *state] if with_weights else state
        self._averaged = distinct_tensors([*tensors, *floating])
        key = [tensor.data_ptr() for tensor in (*tensors, *buffers)]
        if self._mean is None or key != self._mean_key:
            self._mean = self._replicas.plan_mean(tensors, buffers)
            self._mean_key = key
        return self._mean

    def _now(self) -> dict[int, Tensor]:
        return {id(p): p for group in trained_parameters(self._optimizer) for p in group}

    def _state(self, parameters: Sequence[Tensor], with_state: bool) -> list[Tensor]:
        if not with_state:  # a copy of the weights is where the next step begins
            return self._mirrors.tensors(parameters)
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
        if any(row[0] != rows[r % self._replicas.parts][0] for r, row in enumerate(rows)):
            seen = ", ".join(f"rank {r} for {int(row[2])} of {int(row[1])}" for r, row in enumerate(rows))
            raise RuntimeError(
                "converge: the optimizer must keep the same state for the same parameters on all ranks, and "
                f"keeps it on {seen}; some rank's gradient has not reached all parameters: let every layer "
                "take part in every round, or freeze it everywhere"
            )


def _sorted(buffers: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Floating ones, each element once, and counters."""
    floating = [elements(b) for b in buffers if b.is_floating_point() or b.is_complex()]
    return floating, [b for b in buffers if not (b.is_floating_point() or b.is_complex())]


def _quantised(value: Tensor) -> str:
    """In what form, if a value is kept as codes: a tensor made of others, or one of so few bits."""
    if hasattr(value, "__tensor_flatten__"):
        return type(value).__name__
    few = value.element_size() == 1 and value.dtype != torch.bool
    return f"a tensor of {value.dtype}" if few and value.numel() > 1 else ""
