"""Schedules of the learning rate: shapes of a run, a shape written into the optimizer, and the rates that a
run found, saved as JSON and replayed.

A shape is a multiplier of the peak, a pure function of the step; the controller finds the peak. A found
schedule stores what changed, not every step: constant values, a linear decay by its ends, and 8 bytes a step
where each has a value of its own (a cosine, a scheduler of torch's). Every value reads back bit for bit.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import accumulate, pairwise
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple, overload

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

__all__ = [
    "SHAPES",
    "Cosine",
    "Decay",
    "DrawnShape",
    "End",
    "FoundSchedule",
    "OneCycle",
    "Shape",
    "WarmStableDecay",
    "end_of",
    "replay",
    "set_lr",
]

#: The share of a run in which warmup-stable-decay decays.
_DECAY_SHARE = 0.25
_FORMAT = "hdet schedule 3"


@dataclass(frozen=True, slots=True)
class WarmStableDecay:
    """Constant, then linearly to zero from step ``decay_from`` to ``total_steps``; without an end, constant.

    The controller's climb is its warm-up. ``height`` is the constant.

    >>> shape = WarmStableDecay.of(100)
    >>> [shape(step) for step in (0, 75, 85, 99, 100)]
    [1.0, 1.0, 0.6, 0.04, 0.0]
    """

    total_steps: int | None = None
    decay_from: int | None = None
    height: float = 1.0

    @classmethod
    def of(cls, total_steps: int | None) -> WarmStableDecay:
        """The usual proportions."""
        if total_steps is None:
            return cls()
        return cls(total_steps, total_steps - round(_DECAY_SHARE * total_steps))

    def __call__(self, step: int) -> float:
        if self.total_steps is None or self.decay_from is None or step < self.decay_from:
            return self.height
        return self.height * max(0.0, (self.total_steps - step) / (self.total_steps - self.decay_from))


@dataclass(frozen=True, slots=True)
class Cosine:
    """Half a cosine from 1 to 0."""

    total_steps: int

    def __call__(self, step: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * min(step / self.total_steps, 1.0)))


@dataclass(frozen=True, slots=True)
class OneCycle:
    """OneCycleLR's curve with its defaults: up from 1/25 over 30 % of the steps, then down to nothing."""

    total_steps: int

    def __call__(self, step: int) -> float:
        top, low, end = 0.3 * self.total_steps - 1, 1 / 25, 1 / 25 / 1e4
        if step <= top:
            return low + (1 - low) * 0.5 * (1 - math.cos(math.pi * step / max(top, 1.0)))
        along = min((step - top) / max(self.total_steps - 1 - top, 1.0), 1.0)
        return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * along))


Shape = WarmStableDecay | Cosine | OneCycle

SHAPES: dict[str, Callable[[int], Shape]] = {
    "wsd": WarmStableDecay.of,
    "cosine": Cosine,
    "onecycle": OneCycle,
}


class End(NamedTuple):
    """How a resumed run ends: its shape, whether that is a new plan, and whether the search is over."""

    shape: WarmStableDecay
    new: bool = False
    over: bool = False


def end_of(
    caller: str, saved: WarmStableDecay, planned: int | None, total_steps: int | None, steps: int
) -> End:
    """How a run ends that was planned for ``planned`` steps, has taken ``steps``, and is resumed with
    ``total_steps``.

    The new end counts. During the search, the decay moves to where a run of the new length has it; after it,
    the rest of the decay begins now. A cooldown that was asked for stays, if it ends in time.

    >>> end_of("AutoLR", WarmStableDecay.of(400), 400, 800, 100)
    End(shape=WarmStableDecay(total_steps=800, decay_from=600, height=1.0), new=True, over=False)
    >>> end_of("AutoLR", WarmStableDecay.of(400), 400, 200, 170)
    End(shape=WarmStableDecay(total_steps=200, decay_from=170, height=1.0), new=True, over=True)
    """
    if total_steps == planned:
        return End(saved)
    cooled = saved != WarmStableDecay.of(planned)
    if cooled and saved.total_steps is not None and saved.total_steps <= (total_steps or saved.total_steps):
        return End(saved)
    if total_steps is None or steps >= total_steps:
        raise ValueError(
            f"{caller}.load_state_dict: total_steps must be above the {steps} steps taken so far, "
            f"got {total_steps}; the run was planned for {planned}: give as many, more, or fewer that leave "
            "steps to decay in"
        )
    new = WarmStableDecay.of(total_steps)
    assert new.decay_from is not None
    if not cooled and steps < min(new.decay_from, saved.decay_from or steps + 1):
        return End(new, new=True)
    return End(WarmStableDecay(total_steps, steps, saved(steps)), new=True, over=True)


def set_lr(group: dict[str, Any], lr: float | Tensor) -> None:
    """Set the learning rate of a group; a tensor stays the same tensor."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(lr)
    else:
        group["lr"] = lr


class DrawnShape:
    """Writes a shape into the optimizer's groups, step by step, with the groups' own ratios.

    Args:
        optimizer: of its learning rates only the ratios between groups count.
        shape: from a step to a multiplier.
        sizes: how many groups each of several optimizers has: ratios count within each.
    """

    def __init__(self, optimizer: Optimizer, shape: Shape, sizes: Sequence[int] = ()) -> None:
        self._optimizer = optimizer
        self.shape = shape
        lrs = [float(group["lr"]) for group in optimizer.param_groups]
        parts = [lrs[start:end] for start, end in pairwise([0, *accumulate(sizes or [len(lrs)])])]
        #: Of each group to the first one of its optimizer.
        self.ratios = [lr / part[0] for part in parts for lr in part]
        #: Tensors are covered as those of any other schedule are.
        self.covers_itself = not any(isinstance(group["lr"], Tensor) for group in optimizer.param_groups)
        #: From the schedule's values to those that the optimizer reads; the loop sets it.
        self.cover: Callable[[list[float | Tensor]], list[float | Tensor]] = list
        self.at = -1
        self.step()

    def step(self) -> None:
        """On to the next step."""
        self.at += 1
        value = self.shape(self.at)
        values: list[float | Tensor] = [ratio * value for ratio in self.ratios]
        groups = self._optimizer.param_groups
        if self.covers_itself:
            for group, lr in zip(groups, self.cover(values), strict=False):
                group["lr"] = lr
        else:
            for group, lr in zip(groups, values, strict=False):
                set_lr(group, lr)

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return {"at": self.at, "ratios": self.ratios}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from :meth:`state_dict`."""
        self.at, self.ratios = state["at"], list(state["ratios"])


@dataclass(frozen=True, slots=True)
class Decay:
    """A group's rates in a linear decay: ``factor · (ratio · shape(step))``, as training computes them.

    Args:
        factor: what the controller found.
        ratio: of this group to the first.
        shape: the decay.
    """

    factor: float
    ratio: float
    shape: WarmStableDecay

    def __call__(self, step: int) -> float:
        return self.factor * (self.ratio * self.shape(step))


@dataclass(slots=True)
class _Constant:
    """One value for so many steps."""

    count: int
    lr: float

    def at(self, k: int) -> float:
        return self.lr

    def to_json(self) -> Any:
        return [self.count, self.lr]


@dataclass(slots=True)
class _Decays:
    """A decay from the step ``first`` on."""

    count: int
    first: int
    decay: Decay

    def at(self, k: int) -> float:
        return self.decay(self.first + k)

    def to_json(self) -> Any:
        saved = [self.decay.factor, self.decay.ratio, *astuple(self.decay.shape)]
        return {"count": self.count, "first": self.first, "descent": saved}


@dataclass(slots=True)
class _Values:
    """A value for every step."""

    lrs: array[float]

    @property
    def count(self) -> int:
        return len(self.lrs)

    def at(self, k: int) -> float:
        return self.lrs[k]

    def to_json(self) -> Any:
        little = self.lrs[:]
        if sys.byteorder == "big":
            little.byteswap()
        return {"doubles": base64.b64encode(little.tobytes()).decode("ascii")}


_Piece = _Constant | _Decays | _Values


class FoundSchedule:
    """The learning rate of every step and group, in pieces."""

    def __init__(self, groups: int) -> None:
        self._groups: list[list[_Piece]] = [[] for _ in range(groups)]
        #: How many steps are known.
        self.steps = 0

    def add(self, lrs: Sequence[float], decays: Sequence[Decay] | None = None) -> None:
        """One more step; where the schedule decays, with the decay that each value should follow. A value
        that does not follow it is stored as it is."""
        for i, (pieces, lr) in enumerate(zip(self._groups, lrs, strict=True)):
            _add(pieces, self.steps, lr, None if decays is None else decays[i])
        self.steps += 1

    def drop(self, ago: Sequence[int]) -> None:
        """Forget steps that turned out not to have been taken; 0 is the last one."""
        for pieces in self._groups:
            for k in sorted(ago):  # the last one first: the others keep their positions
                _drop(pieces, self.steps - 1 - k)
        self.steps -= len(ago)

    def to_json(self) -> str:
        """Everything, exactly: Python writes floats so that they read back the same."""
        groups = [{"pieces": [piece.to_json() for piece in pieces]} for pieces in self._groups]
        raw = {"format": _FORMAT, "steps": self.steps, "groups": groups}
        return json.dumps({**raw, "checksum": _checksum(raw)})

    @classmethod
    def from_json(cls, text: str, caller: str = "replay") -> FoundSchedule:
        """What :meth:`to_json` wrote. Raises ValueError for anything else."""
        try:
            raw = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{caller}: the file must hold a schedule, got no JSON: {error}") from error
        known = raw.get("format") if isinstance(raw, dict) else type(raw).__name__
        if known != _FORMAT:
            raise ValueError(f"{caller}: the file must hold a schedule of format {_FORMAT!r}, got {known!r}")
        found, said = _checksum(raw), raw.get("checksum")
        if found != said:  # else everything is as it was written
            raise ValueError(
                f"{caller}: the schedule is damaged: its checksum must be {said}, got {found}; export it "
                "again, or take another copy"
            )
        schedule = cls(0)
        schedule.steps = raw["steps"]
        schedule._groups = [[_piece(saved) for saved in group["pieces"]] for group in raw["groups"]]
        return schedule

    def lambdas(self) -> list[Callable[[int], float]]:
        """For each group, the learning rate of a step; beyond the last one, that of the last."""
        return [_lookup(pieces) for pieces in self._groups]


def _add(pieces: list[_Piece], step: int, lr: float, decay: Decay | None) -> None:
    last = pieces[-1] if pieces else None
    if isinstance(last, _Constant) and last.lr == lr:
        last.count += 1
    elif decay is not None and decay(step) == lr:
        if isinstance(last, _Decays) and last.decay == decay and last.first + last.count == step:
            last.count += 1
        else:
            pieces.append(_Decays(1, step, decay))
    elif isinstance(last, _Values):
        if last.lrs[-1] == lr:
            last.lrs.pop()
            pieces.append(_Constant(2, lr))
        else:
            last.lrs.append(lr)
    elif isinstance(last, _Constant) and last.count == 1:
        pieces[-1] = _Values(array("d", [last.lr, lr]))
    else:
        pieces.append(_Constant(1, lr))


def _drop(pieces: list[_Piece], step: int) -> None:
    i = 0
    while step >= pieces[i].count:
        step -= pieces[i].count
        i += 1
    piece = pieces[i]
    if isinstance(piece, _Values):
        del piece.lrs[step]
        left: list[_Piece] = [piece]
    elif isinstance(piece, _Constant):
        left = [_Constant(piece.count - 1, piece.lr)]
    else:
        rest = piece.count - step - 1
        left = [
            _Decays(step, piece.first, piece.decay),
            _Decays(rest, piece.first + step + 1, piece.decay),
        ]
    pieces[i : i + 1] = [part for part in left if part.count]


def _piece(saved: Any) -> _Piece:
    if isinstance(saved, list):
        return _Constant(*saved)
    if "doubles" in saved:
        lrs = array("d", base64.b64decode(saved["doubles"]))
        if sys.byteorder == "big":
            lrs.byteswap()
        return _Values(lrs)
    factor, ratio, *shape = saved["descent"]
    return _Decays(saved["count"], saved["first"], Decay(factor, ratio, WarmStableDecay(*shape)))


def _checksum(raw: dict[str, Any]) -> str:
    """Of everything else, as Python writes it: it reads the same numbers, and writes them the same."""
    text = json.dumps({k: v for k, v in raw.items() if k != "checksum"}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _lookup(pieces: Sequence[_Piece]) -> Callable[[int], float]:
    ends = list(accumulate(piece.count for piece in pieces))

    def value(step: int) -> float:
        i = min(bisect_right(ends, step), len(pieces) - 1)
        piece = pieces[i]
        return piece.at(min(step - (ends[i] - piece.count), piece.count - 1))

    return value


@overload
def replay(optimizer: Optimizer, path: str | PathLike[str]) -> LambdaLR: ...


@overload
def replay(optimizer: Sequence[Optimizer], path: str | PathLike[str]) -> list[LambdaLR]: ...


def replay(
    optimizer: Optimizer | Sequence[Optimizer], path: str | PathLike[str]
) -> LambdaLR | list[LambdaLR]:
    """A plain ``LambdaLR`` that gives every step the learning rate which :meth:`AutoLR.export` wrote down.

    The optimizer's own learning rates are set to 1, so that the file's values are used to the last bit. Of
    several optimizers, in the order in which AutoLR had them, one ``LambdaLR`` for each: step all of them.
    """
    optimizers = list(optimizer) if isinstance(optimizer, Sequence) else [optimizer]
    schedule = FoundSchedule.from_json(Path(path).read_text(encoding="utf-8"))
    lambdas = schedule.lambdas()
    if not schedule.steps:
        raise ValueError(f"replay: the schedule must hold at least one step, got none in {str(path)!r}")
    groups = [group for one in optimizers for group in one.param_groups]
    if len(lambdas) != len(groups):
        raise ValueError(
            f"replay: the optimizer must have as many parameter groups as the schedule, {len(lambdas)}, got "
            f"{len(groups)}; where AutoLR had several optimizers, give them all, in the same order"
        )
    for group in groups:
        group.pop("initial_lr", None)
        set_lr(group, 1.0)
    starts = accumulate((len(one.param_groups) for one in optimizers), initial=0)
    made = [
        LambdaLR(one, lambdas[at : at + len(one.param_groups)])
        for at, one in zip(starts, optimizers, strict=False)
    ]
    return made if isinstance(optimizer, Sequence) else made[0]
