"""A scalar that is read and written in one place or in several: a key of a parameter group, an attribute of a
module, anything of the user's own."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from hdet import rules
from hdet.hyperparameters.base import Axis, Rows
from hdet.hyperparameters.checks import check_spread
from hdet.hyperparameters.scales import Scale

__all__ = ["Place", "ScalarAxis", "refuse_shared_places"]

#: What a bfloat16 loses of a number.
_COARSEST = 4e-3


class Place:
    """One place that holds a scalar: how to read it and how to write it.

    Args:
        read: gives what stands there.
        write: puts a number there or, of replicas that are rows of one matrix, a tensor of each one's.
        on_rows: the place as it is for such replicas, where it is another for them.
        settle: lets them have again what stands there, whoever wrote it.
    """

    def __init__(
        self,
        read: Callable[[], object],
        write: Callable[[Any], object],
        *,
        on_rows: Callable[[Rows], Place] | None = None,
        settle: Callable[[], object] = lambda: None,
    ) -> None:
        self._read = read
        self.write = write
        self.on_rows = on_rows
        self.settle = settle

    def holds_tensor(self) -> bool:
        """Whether the value lies in a tensor, which is written in place."""
        return isinstance(self._read(), Tensor)

    def read(self, name: str = "Hyperparameter") -> float:
        """The value, if it is one."""
        value: Any = self._read()
        try:
            if isinstance(value, (str, bytes)):
                raise TypeError("text is no number")
            number = float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"{name}: the value must be a scalar, got {type(value).__name__} {_brief(value)}; explore "
                "one number, or several with one hyperparameter each"
            ) from error
        if isinstance(value, bool) or not math.isfinite(number):
            raise ValueError(f"{name}: the value must be a finite number, got {value!r}")
        return number


class ScalarAxis(Axis):
    """Any scalar that can be read and written, in one place or in several that hold the same value.

    Args:
        name: in errors, records and the key of its permutations.
        places: where it stands; all hold one value.
        scale: its coordinate and bounds.
        spread: in units of the coordinate.
        off: the value without effect, for a regulariser.
        doubt: what a user should know before training begins.
        acts_in_step: the optimizer reads it, nobody else.
        needs_own_gradients: it acts through the gradient alone.
        bends_state: it makes the optimizer's state differ.
        on_close: undoes what binding it took.
    """

    def __init__(
        self,
        name: str,
        places: Sequence[Place],
        scale: Scale,
        spread: float,
        *,
        off: float | None = None,
        doubt: str = "",
        acts_in_step: bool = False,
        needs_own_gradients: bool = False,
        bends_state: bool = False,
        on_close: Callable[[], object] | None = None,
    ) -> None:
        check_spread(name, spread)
        self.name = name
        self.spread = spread
        self.acts_in_step = acts_in_step
        self.doubt = doubt
        self.regulariser = off is not None
        if off is not None and not math.isfinite(off):
            raise ValueError(f"{name}: off must be a finite number, got {off!r}")
        self.needs_own_gradients = needs_own_gradients
        self.bends_state = bends_state
        self._places = list(places)
        self._scale = scale
        self._off = off
        self._on_close = on_close
        #: The base while another value stands in the places, and that other value.
        self._base: float | None = None
        self._standing: list[float | None] = []
        #: Where the base was put last; None before, and after a state was loaded.
        self._moved_to: float | None = None
        self._check_start()

    def _check_start(self) -> None:
        found = [place.read(self.name) for place in self._places]
        if len(set(found)) > 1:
            raise ValueError(
                f"{self.name}: one hyperparameter has one value, got {', '.join(f'{v:g}' for v in found[:6])}"
                f"{', …' if len(found) > 6 else ''}; set them equal, name those that are, or explore them "
                "one by one"
            )
        low, high = self._scale.lowest, self._scale.highest
        if not self._scale.contains(found[0]):
            raise ValueError(
                f"{self.name}: bounds must include the value to start from, got bounds=({low:g}, {high:g}) "
                f"and a value of {found[0]:g}; widen the bounds or start within them"
            )

    @property
    def bounds(self) -> tuple[float, float]:
        """Between which values it must stay."""
        return self._scale.lowest, self._scale.highest

    @property
    def base(self) -> float:
        return self._places[0].read(self.name) if self._base is None else self._base

    def values(self, levels: Sequence[float]) -> tuple[float, ...]:
        base = self.base
        return tuple(self._scale.moved(base, self.spread * level) for level in levels)

    def offsets(self, levels: Sequence[float]) -> tuple[float, ...]:
        base = self.base
        return tuple(self._scale.offset(base, value) for value in self.values(levels))

    def fan_out(self, level: float | Tensor) -> None:
        if isinstance(level, Tensor):
            self._let_all_stand(torch.tensor(self.values(level.tolist()), dtype=torch.float64))
        else:
            (value,) = self.values([level])
            self._let_stand(value)

    def silence(self) -> None:
        if self._off is not None:
            self._let_stand(self._off)

    def restore(self) -> None:
        if self._base is None:
            return
        base, self._base = self._base, None
        # Somebody else may have written there since: then that is the base. Not so in a tensor, which is
        # loaded, broadcast and averaged with the model that holds it.
        for place, standing in zip(self._places, self._standing, strict=True):
            place.settle()
            if place.holds_tensor() or place.read(self.name) == standing:
                place.write(base)

    def shift(self, by: float) -> None:
        self.restore()
        moved = self._scale.moved(self.base, by)
        if moved != self.base:
            self._write(moved)
            self._moved_to = self.base

    def stack(self, caller: str, rows: Rows) -> None:
        makers = [place.on_rows for place in self._places if place.on_rows is not None]
        if len(makers) < len(self._places):
            super().stack(caller, rows)
        self._places = [make(rows) for make in makers]

    @property
    def overwritten(self) -> bool:
        return self._moved_to is not None and self.base != self._moved_to

    def close(self) -> None:
        self.restore()
        if self._on_close is not None:
            self._on_close()

    def try_another_value(self, caller: str) -> None:
        """Let a value near the base stand, and see that it is read back; :meth:`restore` ends it."""
        base = self.base
        step = max(self.spread, 0.1) / 2
        # Away from the nearer bound: at one, a step towards it leads nowhere.
        tried = max(
            (self._scale.moved(base, by) for by in (step, -step)),
            key=lambda value: abs(self._scale.offset(base, value)),
        )
        self._let_stand(tried)
        slack = _COARSEST * abs(tried) + _COARSEST * abs(tried - base)
        for place in self._places:
            found = place.read(self.name)
            if found == base or abs(found - tried) > slack:
                self.restore()
                self._write(base)
                raise ValueError(
                    f"{caller}: {self.name}: what is written must be read back, wrote {tried:g} and read "
                    f"{found:g}{' as before' if found == base else ''}; check read and write, and that "
                    "nothing rounds the value or puts it back"
                )

    def readings(self) -> tuple[float, ...]:
        return tuple(place.read(self.name) for place in self._places)

    def state_dict(self) -> dict[str, Any]:
        return {"name": self.name, "base": self.base, "spread": self.spread}

    def check_state(self, caller: str, state: Mapping[str, Any]) -> None:
        super().check_state(caller, state)
        rules.number(caller, f"the base of {self.name}", state["base"])

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.restore()
        self._moved_to = None
        self.spread = state["spread"]
        self._write(self._scale.clip(state["base"]))

    def _let_stand(self, value: float) -> None:
        self.restore()
        base = self.base
        if value == base:
            return
        try:
            self._write(value)
            # A place may round what it is given, as a float32 tensor does.
            self._standing = [place.read(self.name) for place in self._places]
        except BaseException:
            for place in self._places:
                with suppress(Exception):
                    place.write(base)
            raise
        self._base = base

    def _let_all_stand(self, values: Tensor) -> None:
        self.restore()
        base = self.base
        for place in self._places:
            place.write(values)
        # A group holds the rows' values now, a module still the base.
        self._standing = [None if place.holds_tensor() else place.read(self.name) for place in self._places]
        self._base = base

    def _write(self, value: float) -> None:
        for place in self._places:
            place.write(value)


def refuse_shared_places(caller: str, axes: Sequence[Axis]) -> None:
    """Write each in turn and see that it is read back, and that nobody else's value changes with it.

    Places are closures, of the user's own making even; only trying tells whether two of them are one.
    """
    for axis in axes:
        if not isinstance(axis, ScalarAxis):
            continue  # a learning rate: whoever writes there as well is found by their own trial
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


def _brief(value: object) -> str:
    shape = getattr(value, "shape", None)
    return repr(value)[:40] if shape is None else f"of shape {tuple(shape)}"
