"""One explored scalar: a *base* value that all replicas share, and each replica's own value around it.

One location holds the value, or several (a key of a parameter group, an attribute of a module, anything that
can be read and written). A location holds the base value; the replica's own value replaces it only while it
acts: during the optimizer's step or, for what the forward pass reads, from one sync to the next.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.optim import Optimizer

from hdet.hyperparameters.scales import Scale

__all__ = ["Axis", "Explorable", "Location", "Rows", "ScalarAxis", "refuse_shared_locations"]

#: The relative rounding error of bfloat16.
_COARSEST = 4e-3


@runtime_checkable
class Explorable(Protocol):
    """What ``explore=`` is a list of."""

    def bind(self, optimizer: Optimizer) -> Sequence[Axis]:
        """The scalars to explore, one or several, bound to the locations that hold them."""


class ReplicaValues(Protocol):
    """All replicas' values of a number that their one forward pass reads."""

    def set_(self, values: Tensor) -> None:
        """Give each replica its own value, until :meth:`reset_`."""

    def reset_(self) -> None:
        """Give all replicas the number that the attribute holds."""


@runtime_checkable
class Rows(Protocol):
    """What a hyperparameter asks of replicas that are rows of one matrix."""

    def values_of(self, owner: Any, attribute: str) -> ReplicaValues:
        """For a number that the forward pass reads as an attribute."""

    def clip_grad_norm_(self, max_norm: float | Tensor) -> Tensor:
        """Clip the norm of every replica's gradient, at one norm or each at its own."""


class Axis(ABC):
    """One explored scalar.

    A replica with level z in [−1, 1] has the value ``spread · z`` away from the base, measured along the
    hyperparameter's coordinate and clipped at its bounds.
    """

    name: str
    #: Half the width over which replicas are spread, in units of the coordinate.
    spread: float
    #: The largest value that an adaptive spread may reach.
    widest: float = math.inf
    #: Whether the replica's value acts only during the optimizer's step.
    acts_in_step = False
    #: Whether the training loss is lowest when it is off.
    regulariser = False
    #: Whether it acts through the gradient only, so that replicas which share gradients never differ by it.
    needs_own_gradients = False
    #: Whether it makes the optimizer's state differ although the gradient is shared.
    bends_state = False
    #: A warning to log before training begins, if any.
    warning = ""

    @property
    @abstractmethod
    def base(self) -> float:
        """The value that all replicas share."""

    def readings(self) -> tuple[float, ...]:
        """What its locations hold now."""
        return (self.base,)

    @abstractmethod
    def values(self, levels: Sequence[float]) -> tuple[float, ...]:
        """Every replica's value."""

    @abstractmethod
    def offsets(self, levels: Sequence[float]) -> tuple[float, ...]:
        """How far each replica's value is from the base along the coordinate, bounds included."""

    @abstractmethod
    def fan_out(self, level: float | Tensor) -> None:
        """Write this replica's own value until :meth:`restore`; for several replicas in one process, all of
        theirs as a tensor."""

    @abstractmethod
    def restore(self) -> None:
        """Write the base value back."""

    @abstractmethod
    def shift(self, by: float) -> None:
        """Move the base along the coordinate, within its bounds. Call :meth:`restore` first."""

    def stack(self, caller: str, rows: Rows) -> None:
        """Prepare for replicas that are rows of one matrix. Not needed for what acts in the optimizer's step:
        a group takes a tensor of all values as it is."""
        raise TypeError(
            f"{caller}: replicas stacked in one process must differ in what the optimizer reads from its "
            f"groups or the forward pass from an attribute, got {self.name}, whose value is written by a "
            "function and so acts on all of them at once; name the attribute, as "
            "hdet.Temperature(model, attribute=...) does for any module's, or use one process per replica"
        )

    @property
    def overwritten(self) -> bool:
        """Whether someone else has written the base since it was last moved."""
        return False

    def silence(self) -> None:  # noqa: B027 — only regularisers do something here
        """Turn a regulariser off until :meth:`restore` or :meth:`fan_out`: a probe measures without it."""

    def close(self) -> None:
        """End of the run: the base value stays."""
        self.restore()

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""


@dataclass(frozen=True, slots=True)
class Location:
    """One location that holds a scalar.

    Args:
        read: returns what it holds.
        write: writes a number or, for replicas that are rows of one matrix, a tensor of all their values.
        on_rows: the location for such replicas, if it is another one.
    """

    read: Callable[[], Any]
    write: Callable[[Any], object]
    on_rows: Callable[[Rows], Location] | None = None

    def number(self, name: str) -> float:
        """What it holds, if it is a finite number."""
        value = self.read()
        try:
            if isinstance(value, (str, bytes)):
                raise TypeError("text is no number")
            number = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            shape = getattr(value, "shape", None)
            got = f"{value!r:.40}" if shape is None else f"of shape {tuple(shape)}"
            raise TypeError(
                f"{name}: the value must be a scalar, got {type(value).__name__} {got}; explore one number, "
                "or several with one hyperparameter each"
            ) from error
        if isinstance(value, bool) or not math.isfinite(number):
            raise ValueError(f"{name}: the value must be a finite number, got {value!r}")
        return number

    @property
    def holds_tensor(self) -> bool:
        """Whether the value is in a tensor, which is written in place."""
        return isinstance(self.read(), Tensor)


class ScalarAxis(Axis):
    """A scalar in one location, or in several that hold the same value.

    Args:
        name: in errors, in records, and as the key of its permutations.
        locations: what holds it.
        scale: its coordinate and bounds.
        spread: in units of the coordinate.
        off: for a regulariser, the value without effect.
        warning, acts_in_step, needs_own_gradients, bends_state: as in :class:`Axis`.
    """

    #: Called by :meth:`close`.
    on_close: Callable[[], object] | None = None

    def __init__(
        self,
        name: str,
        locations: Sequence[Location],
        scale: Scale,
        spread: float,
        *,
        off: float | None = None,
        warning: str = "",
        acts_in_step: bool = False,
        needs_own_gradients: bool = False,
        bends_state: bool = False,
    ) -> None:
        numeric = isinstance(spread, (int, float)) and not isinstance(spread, bool)
        if not (numeric and math.isfinite(spread) and spread >= 0):
            raise ValueError(f"{name}: spread must be a finite number of at least 0, got {spread!r}")
        if off is not None and not math.isfinite(off):
            raise ValueError(f"{name}: off must be a finite number, got {off!r}")
        found = [location.number(name) for location in locations]
        if len(set(found)) > 1:
            raise ValueError(
                f"{name}: one hyperparameter has one value, got {', '.join(f'{v:g}' for v in found[:6])}"
                f"{', …' if len(found) > 6 else ''}; set them equal, name those that are, or explore them "
                "one by one"
            )
        if not scale.contains(found[0]):
            raise ValueError(
                f"{name}: bounds must include the value to start from, got bounds=({scale.lowest:g}, "
                f"{scale.highest:g}) and a value of {found[0]:g}; widen the bounds or start within them"
            )
        self.name = name
        self.spread = spread
        self.regulariser = off is not None
        self.warning = warning
        self.acts_in_step = acts_in_step
        self.needs_own_gradients = needs_own_gradients
        self.bends_state = bends_state
        self._locations = list(locations)
        self._scale = scale
        self._off = off
        #: The base while the locations hold something else, and that, as numbers.
        self._base: float | None = None
        self._written: list[float | None] = []
        #: The base after the last move; None before one, and after a state was loaded.
        self._moved_to: float | None = None

    @property
    def bounds(self) -> tuple[float, float]:
        """The lowest and the highest value allowed."""
        return self._scale.lowest, self._scale.highest

    @property
    def base(self) -> float:
        return self._locations[0].number(self.name) if self._base is None else self._base

    def readings(self) -> tuple[float, ...]:
        return tuple(location.number(self.name) for location in self._locations)

    def values(self, levels: Sequence[float]) -> tuple[float, ...]:
        base = self.base
        return tuple(self._scale.moved(base, self.spread * level) for level in levels)

    def offsets(self, levels: Sequence[float]) -> tuple[float, ...]:
        base = self.base
        return tuple(self._scale.offset(base, value) for value in self.values(levels))

    def fan_out(self, level: float | Tensor) -> None:
        if isinstance(level, Tensor):
            self._replace(torch.tensor(self.values(level.tolist()), dtype=torch.float64))
        else:
            self._replace(*self.values([level]))

    def silence(self) -> None:
        if self._off is not None:
            self._replace(self._off)

    def restore(self) -> None:
        if self._base is None:
            return
        base, self._base = self._base, None
        for location, written in zip(self._locations, self._written, strict=True):
            # What someone else has written since is the new base; but a tensor is loaded, broadcast and
            # averaged with its model, so it says nothing.
            unchanged = location.holds_tensor or location.number(self.name) == written
            location.write(base if unchanged else location.read())

    def shift(self, by: float) -> None:
        self.restore()
        moved = self._scale.moved(self.base, by)
        if moved != self.base:
            self._write(moved)
            self._moved_to = self.base

    def stack(self, caller: str, rows: Rows) -> None:
        makers = [location.on_rows for location in self._locations if location.on_rows is not None]
        if len(makers) < len(self._locations):
            super().stack(caller, rows)
        self._locations = [make(rows) for make in makers]

    @property
    def overwritten(self) -> bool:
        return self._moved_to is not None and self.base != self._moved_to

    def close(self) -> None:
        self.restore()
        if self.on_close is not None:
            self.on_close()

    def state_dict(self) -> dict[str, Any]:
        return {"name": self.name, "base": self.base, "spread": self.spread}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.restore()
        self._moved_to = None
        self.spread = state["spread"]
        self._write(self._scale.clip(state["base"]))

    def try_another_value(self, caller: str) -> None:
        """Write a value near the base, until :meth:`restore`; raise ValueError if it is not read back."""
        base = self.base
        step = max(self.spread, 0.1) / 2
        # Away from the nearer bound, where a step may lead nowhere.
        tried = max(
            (self._scale.moved(base, by) for by in (step, -step)),
            key=lambda value: abs(self._scale.offset(base, value)),
        )
        self._replace(tried)
        slack = _COARSEST * (abs(tried) + abs(tried - base))
        for found in self.readings():
            if found == base or abs(found - tried) > slack:
                self.restore()
                self._write(base)
                raise ValueError(
                    f"{caller}: {self.name}: what is written must be read back, wrote {tried:g} and read "
                    f"{found:g}{' as before' if found == base else ''}; check read and write, and that "
                    "nothing rounds the value or puts it back"
                )

    def _replace(self, value: float | Tensor) -> None:
        """Write another value than the base; the base is remembered."""
        self.restore()
        base = self.base
        if not isinstance(value, Tensor) and value == base:
            return
        try:
            self._write(value)
            # Read back: a location may round. With a tensor for all rows, a module still holds the base.
            self._written = [
                None if location.holds_tensor else location.number(self.name) for location in self._locations
            ]
        except BaseException:
            for location in self._locations:
                with suppress(Exception):
                    location.write(base)
            raise
        self._base = base

    def _write(self, value: float | Tensor) -> None:
        for location in self._locations:
            location.write(value)


def refuse_shared_locations(caller: str, axes: Sequence[Axis]) -> None:
    """Raise ValueError if a value that is written is not read back, or changes another hyperparameter's.

    Places are functions, which may be the user's own: only trying shows whether two of them are the same.
    """
    for axis in axes:
        if not isinstance(axis, ScalarAxis):
            continue  # a learning rate: another writer is found by its own trial
        before = [other.readings() for other in axes]
        axis.try_another_value(caller)
        try:
            after = [other.readings() for other in axes]
        finally:
            axis.restore()
        for other, was, now in zip(axes, before, after, strict=True):
            if other is not axis and was != now:
                raise ValueError(
                    f"{caller}: two hyperparameters must not write to one place, got {axis.name} and "
                    f"{other.name}: writing the one changed the other from {was[0]:g} to {now[0]:g}; leave "
                    "one out"
                )
