"""The end of a round by what replicas have moved since it began: the outer optimizer of islands, and the mean
of displacements where they travel in fewer bits. What is kept from one sync to the next, and when it acts.

A round begins with the first optimizer step after a sync: there θ is copied, and, where the outer learning
rate or momentum is explored, each replica moves to its own start (by a gradient, that first one, taken at θ).
So between a sync and that step all ranks hold the same weights, and whoever evaluates or saves there sees the
one model. A round ends with the next sync.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from hdet.replicas import Replicas, local
from hdet.replicas.averaging import distinct_tensors, flat_pieces
from hdet.replicas.compressed import CompressedMean, Post, Wire, check_wire
from hdet.weights.nesterov import apart, nesterov_, outer_gradient, wide
from hdet.weights.parameters import checksum, every_parameter, trained_parameters
from hdet.weights.parcel import Piece
from hdet.weights.room import copy_into, room_for, settled

__all__ = ["Outer", "OuterStep"]

#: A displacement above it is no step of any training; no momentum below 1 makes it infinite.
_LARGEST = 1e30
#: What every arm has of one hyperparameter, by name; None where it is not explored.
Values = Callable[[str], tuple[float, ...] | None]


@dataclass(frozen=True, slots=True)
class Outer:
    """An outer optimizer for replicas that train by themselves between syncs, as in DiLoCo.

    With θ the weights that all replicas began the round with and θ̄ the mean of their ends, the outer gradient
    is g = θ − θ̄, and at every sync v ← μ v + g, θ ← θ − η (g + μ v). At ``lr=1, momentum=0`` it is the mean
    itself, bit for bit. Buffers and the optimizer's own state become their mean, as without it.

    Args:
        lr: η. :class:`~hdet.OuterLR` explores it.
        momentum: μ. :class:`~hdet.OuterMomentum` explores it.
        keep: where θ and v lie, ``"host"`` or ``"device"``.

    It takes two copies of the weights, θ as they are and v in float32 (without momentum, θ alone).

    Example::

        ensemble = hdet.Ensemble(optimizer, [], gradients="none", outer=hdet.Outer(), sync_every=100,
                                 model=model)
    """

    lr: float = 0.7
    momentum: float = 0.9
    keep: Literal["host", "device"] = "host"

    def __post_init__(self) -> None:
        if not _is_number(self.lr) or not 0 < self.lr < math.inf:
            raise ValueError(f"Outer: lr must be a number above 0, got {self.lr!r}; 0.7 is usual")
        if not _is_number(self.momentum) or not 0 <= self.momentum < 1:
            raise ValueError(f"Outer: momentum must lie in [0, 1), got {self.momentum!r}; 0.9 is usual")
        if self.keep not in ("host", "device"):
            raise ValueError(f"Outer: keep must be 'host' or 'device', got {self.keep!r}")


class OuterStep:
    """Takes the outer steps of one run, or ends its rounds at the mean.

    Args:
        caller: begins the errors.
        outer: the settings; None where a round ends at the mean itself.
        wire: what displacements are rounded to on their way to others; None sends weights as they are.
    """

    def __init__(self, caller: str, outer: Outer | None, wire: Wire | None = None) -> None:
        check_wire(caller, wire)
        #: Whether the mean is where an outer optimizer steps from.
        self.steps = outer is not None
        self.wire = wire
        self._word = "outer" if self.steps else "wire"
        outer = Outer(lr=1.0, momentum=0.0) if outer is None else outer
        if not isinstance(outer, Outer):
            got = f"the class {outer.__name__}" if isinstance(outer, type) else type(outer).__name__
            raise TypeError(f"outer must be an hdet.Outer, got {got}; write hdet.Outer()")
        self.settings = outer
        #: The base values, where whoever explores them finds and moves them.
        self.group = {"lr": outer.lr, "momentum": outer.momentum}
        #: θ; before a round has begun, room for it. By number of parameter and piece.
        self._start: dict[str, Tensor] = {}
        self._velocity: dict[str, Tensor] = {}
        #: g of the last step, from a sync to the round's first step, where replicas then part.
        self._gradient: dict[str, Tensor] = {}
        self._packed: CompressedMean | None = None
        self._unsent: dict[str, Any] | None = None
        #: Whether θ was copied, and whether all ranks are known to have the same one.
        self.begun = self._alike = False

    def __repr__(self) -> str:
        return f"{self.settings!r} over {self.wire}" if self.steps else f"the mean over {self.wire}"

    @property
    def packs(self) -> bool:
        """Whether :meth:`mean_` takes the place of the mean of the weights at this round's end."""
        return self.wire is not None and self._replicas.size > 1 and self._alike

    def bind(self, caller: str, optimizer: Optimizer, replicas: Replicas, values: Values, arm: int) -> None:
        """Where it acts; ``values`` tells what is explored, ``arm`` whose are this replica's."""
        if self.wire is not None and replicas.size > 1 and not isinstance(replicas, Post):
            raise TypeError(
                f"{caller}: wire={self.wire!r} is for replicas in processes of their own, got "
                f"{type(replicas).__name__}, between which nothing travels; leave wire out"
            )
        self._caller = caller
        self._optimizer = optimizer
        self._replicas = replicas
        self._values = values
        self._arm = arm
        self._parts = values("outer_lr") is not None or values("outer_momentum") is not None
        self._heavy = self.settings.momentum > 0 or self._parts

    def forget(self) -> None:
        """The weights will be others: nothing is owed to those before, and θ is taken anew."""
        self._start.clear()
        self._velocity.clear()
        self._gradient.clear()
        self._packed = self._unsent = None
        self.begun = self._alike = False

    # ------------------------------------------------------------------ a round begins

    @torch.no_grad()
    def begin(self) -> None:
        """Copy θ, unless that has been done; then move to this replica's own start. No collective."""
        if self.begun:
            return
        a, b = self._apart()
        pieces = self._pieces(_trained(self._optimizer))
        for gone in self._start.keys() - pieces.keys():
            del self._start[gone]  # frozen since
        for key, weight in pieces.items():
            room = self._start.get(key)
            if room is None or room.shape != weight.shape or room.dtype != weight.dtype:
                room = self._start[key] = room_for(weight, self.settings.keep)
            copy_into(room, weight)
            gradient = self._gradient.pop(key, None)
            if gradient is not None and (a or b):
                moved = wide(weight).sub(gradient.to(weight.device), alpha=a)
                weight.copy_(moved.sub_(self._velocity[key].to(weight.device), alpha=b))
        self._gradient.clear()
        self.begun = True

    def _apart(self) -> tuple[float, float]:
        lrs, momenta = self._values("outer_lr"), self._values("outer_momentum")
        arms = len(lrs or momenta or (0.0,))
        own = self._arm if arms > 1 else 0
        return apart(lrs or [self.group["lr"]] * arms, momenta or [self.group["momentum"]] * arms, own)

    # ------------------------------------------------------------------ a round ends

    def check_start(self) -> None:
        """All ranks began the round with the same weights, but for what they explore. A collective, once.

        Where no outer optimizer steps they may have begun apart (a warm noisy start): that round's mean is
        exact, and from its end on all are alike.
        """
        if self._alike or self._replicas.size == self._replicas.here:
            return
        settled()
        if odd := self._replicas.unlike([checksum(self._start.values())]):
            if not self.steps:
                return
            raise RuntimeError(
                f"{self._caller}: with outer= all replicas must begin with the same weights, and rank "
                f"{odd[0]} began with others than rank 0; let them start alike: Arms.wrap(model) does it, or "
                "one seed or one checkpoint on all ranks"
            )
        self._alike = True

    def mean_(self, parameters: Sequence[Tensor], lost: Sequence[int]) -> tuple[str, ...]:
        """The mean of the weights, by what replicas have moved since θ, compressed. A collective.

        Tells once what that saves.
        """
        pieces, starts = self._moved(parameters)
        lengths = [piece.numel() for piece in pieces.values()]
        first = self._packed is None and self._unsent is None
        if self._packed is None or self._packed.lengths != lengths:
            device = next(iter(pieces.values())).device if pieces else torch.device("cpu")
            assert isinstance(self._replicas, Post), "bind has refused any other"
            assert self.wire is not None, "packs has said so"
            self._packed = CompressedMean(lengths, device, self._replicas, wire=self.wire)
            if self._unsent is not None:
                self._packed.load_state_dict(self._unsent)
            self._unsent = None
        before = self._replicas.sent_bytes
        self._packed(list(pieces.values()), starts, lost)
        sent, others = self._replicas.sent_bytes - before, self._replicas.size - 1
        exact = 8 * sum(lengths) * others // (others + 1)
        return (_saves(self.wire, sum(lengths), sent, exact),) if first and exact else ()

    @torch.no_grad()
    def step_(self, parameters: Sequence[Tensor]) -> tuple[str, ...]:
        """From the mean of the weights, where they stand, to the next θ; what was odd about it."""
        if not self.steps:
            self.begun = False
            return ()
        pieces, starts = self._moved(parameters)
        self.begun = False
        both = list(zip(pieces.items(), starts, strict=True))
        largest = [outer_gradient(s.to(w.device), w).abs().amax().double().cpu() for (_, w), s in both]
        if self._replicas.anywhere(bool(largest) and not bool((torch.stack(largest) < _LARGEST).all())):
            return ("the outer optimizer did not step: the mean of the weights is lost",)
        for (key, weight), start in both:
            gradient = outer_gradient(start.to(weight.device), weight)
            velocity = self._velocity_of(key, gradient)
            weight.copy_(nesterov_(weight, gradient, velocity, **self.group))
            if velocity is not None and velocity is not self._velocity[key]:
                copy_into(self._velocity[key], velocity)
            if self._parts:  # g takes the place of θ until replicas part
                del self._start[key]
                copy_into(self._gradient.setdefault(key, room_for(gradient, self.settings.keep)), gradient)
        return ()

    def _velocity_of(self, key: str, gradient: Tensor) -> Tensor | None:
        """v, where the gradient lies; it has room of its own from the first step on."""
        if not self._heavy:
            return None
        if key not in self._velocity:
            self._velocity[key] = room_for(gradient, self.settings.keep).zero_()
        return self._velocity[key].to(gradient.device)

    def _moved(self, parameters: Sequence[Tensor]) -> tuple[dict[str, Tensor], list[Tensor]]:
        """What was trained in this round, and where it began. What was frozen all along stays where it is."""
        now = self._pieces([p for p in parameters if p.requires_grad])
        every = self._pieces(parameters)
        pieces = {key: piece for key, piece in every.items() if key in self._start or key in now}
        unknown = [key for key in pieces if key not in self._start]
        if unknown:
            raise RuntimeError(
                f"{self._caller}: with {self._word}= the weights with which a round began must be known, and "
                f"those of parameter {unknown[0].split('.')[0]} are not: it was unfrozen, or added, within "
                "a round; do that directly after a sync"
            )
        return pieces, [self._start[key] for key in pieces]

    # ------------------------------------------------------------------ state

    def state_dict(self) -> dict[str, Any]:
        """v, θ within a round, g where replicas will part, and, this rank's own, what was not sent yet."""
        settled()
        unsent = self._unsent if self._packed is None else self._packed.state_dict()
        return {
            "rank": self._replicas.place,
            "size": self._replicas.ranks,
            "begun": self.begun,
            "start": self._shaped(self._start, held=self.begun, room=lambda weight: weight),
            "velocity": self._shaped(self._velocity, room=wide if self._heavy else None),
            "gradient": self._shaped(self._gradient, room=wide if self._parts else None),
            "unsent": unsent,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up where :meth:`state_dict` left off. What was not sent counts for the rank that owes it."""
        self.forget()
        begun: bool = state.get("begun", state["start"] is not None)  # one of before had no θ then
        for number, weight, views in self._memory(_trained(self._optimizer)):
            for k, view in enumerate(views):
                for mine, saved in (
                    (self._velocity, state["velocity"]),
                    (self._gradient, state["gradient"]),
                    (self._start, state["start"] if begun else {}),
                ):
                    if (tensor := saved.get(f"{number}.{k}")) is not None:
                        placed = _flat(tensor.to(view.device), weight, view)
                        mine[f"{number}.{k}"] = room_for(placed, self.settings.keep).copy_(placed)
        self.begun = self._alike = begun
        if (state["rank"], state["size"]) == (self._replicas.place, self._replicas.ranks):
            self._unsent = state["unsent"]

    def _shaped(
        self, flat: Mapping[str, Tensor], *, held: bool = True, room: Callable[[Tensor], Tensor] | None
    ) -> dict[str, Piece]:
        """Tensors of one kind, each in the shape of its parameter; and ``room`` for those that are not there
        yet. Of a shard without values there is nothing; that it has its part is known from the others."""
        parameters, found = every_parameter(self._optimizer), {}
        for number, weight, views in self._memory(parameters):
            for k, view in enumerate(views or [weight]):
                key = f"{number}.{k}"
                known = held and (key in flat or (not views and bool(flat)))
                if not known and (room is None or not parameters[number].requires_grad):
                    continue
                tensor = flat[key] if key in flat else room_for((room or wide)(view), self.settings.keep)
                if tensor.shape != weight.shape and tensor.numel() == weight.numel():
                    tensor = tensor.as_strided(weight.size(), weight.stride())
                found[key] = Piece(tensor, parameters[number], spare=not known)
        return found

    def _pieces(self, parameters: Sequence[Tensor]) -> dict[str, Tensor]:
        """Flat views of the weights, each memory once, by number of parameter and piece."""
        return {
            f"{number}.{k}": piece
            for number, _, views in self._memory(parameters)
            for k, piece in enumerate(views)
        }

    def _memory(self, parameters: Sequence[Tensor]) -> list[tuple[int, Tensor, list[Tensor]]]:
        """Number, weight and flat views of every parameter, each memory once."""
        numbers = {id(p): i for i, p in enumerate(every_parameter(self._optimizer))}
        known = sorted((p for p in parameters if id(p) in numbers), key=lambda p: numbers[id(p)])
        ordered = [(numbers[id(p)], local(p).detach()) for p in known]
        distinct = {id(tensor) for tensor in distinct_tensors([tensor for _, tensor in ordered])}
        return [(i, w, flat_pieces(w)) for i, w in ordered if id(w) in distinct or not w.numel()]


def _flat(tensor: Tensor, weight: Tensor, view: Tensor) -> Tensor:
    """A tensor that is shaped as a weight is, in the order in which that one lies in memory."""
    if tensor.shape == view.shape:
        return tensor
    shaped = torch.empty_strided(weight.size(), weight.stride(), dtype=tensor.dtype, device=tensor.device)
    (flat,) = flat_pieces(shaped.copy_(tensor))
    return flat


def _saves(wire: str | None, weights: int, sent: int, exact: int) -> str:
    return (
        f"{weights} weights travel in {wire}: a rank sends {sent} bytes for them at a sync, "
        f"{sent / exact:.2f} of the {exact} of float32"
    )


def _trained(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in trained_parameters(optimizer) for parameter in group]


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
