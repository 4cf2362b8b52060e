"""A schedule that was found, kept as JSON and run again by a plain ``LambdaLR``: no probe, no controller.

What changed is kept, not every step: values that stay, a linear descent by its ends, and where each step has
a value of its own (a cosine, a scheduler of torch's) eight bytes a step. Every value reads back bit for bit.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import Any, overload

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from hdet.autolr.shapes import WarmStableDecay

__all__ = ["Descent", "FoundSchedule", "replay"]

_FORMAT = "hdet schedule 3"


@dataclass(frozen=True, slots=True)
class Descent:
    """A group's part of a linear descent: ``factor · (ratio · shape(step))``, as it is computed in training.

    Args:
        factor: what the controller found.
        ratio: of this group to the first.
        shape: what comes down.
    """

    factor: float
    ratio: float
    shape: WarmStableDecay

    def __call__(self, step: int) -> float:
        return self.factor * (self.ratio * self.shape(step))


@dataclass(slots=True)
class _Stays:
    """One value for so many steps."""

    count: int
    lr: float

    def at(self, k: int) -> float:
        return self.lr

    def to_json(self) -> Any:
        return [self.count, self.lr]


@dataclass(slots=True)
class _Falls:
    """A descent from the step ``first`` on."""

    count: int
    first: int
    descent: Descent

    def at(self, k: int) -> float:
        return self.descent(self.first + k)

    def to_json(self) -> Any:
        shape = list(astuple(self.descent.shape))
        return {
            "count": self.count,
            "first": self.first,
            "descent": [self.descent.factor, self.descent.ratio, *shape],
        }


@dataclass(slots=True)
class _Varies:
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


_Piece = _Stays | _Falls | _Varies


class FoundSchedule:
    """The learning rate of every step and group, in pieces."""

    def __init__(self, groups: int) -> None:
        self._groups: list[list[_Piece]] = [[] for _ in range(groups)]
        #: How many steps are known.
        self.steps = 0

    def add(self, lrs: Sequence[float], descents: Sequence[Descent] | None = None) -> None:
        """The values of one more step; where a schedule comes down, of which descent each should be a part.
        One that is not is kept as it is."""
        for i, (pieces, lr) in enumerate(zip(self._groups, lrs, strict=True)):
            _add(pieces, self.steps, lr, None if descents is None else descents[i])
        self.steps += 1

    def drop(self, ago: Sequence[int]) -> None:
        """Forget steps that turned out not to have been taken; 0 is the last one."""
        for pieces in self._groups:
            for k in sorted(ago):  # the last one first, which leaves the places of those before it
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
            known = raw.get("format") if isinstance(raw, dict) else type(raw).__name__
            if known != _FORMAT:
                raise ValueError(f"the file must hold a schedule of format {_FORMAT!r}, got {known!r}")
            found, said = _checksum(raw), raw.get("checksum")
            if found != said:
                raise ValueError(
                    f"the schedule is damaged: its checksum must be {said}, got {found}; export it again, or "
                    "take another copy"
                )
            return cls._read(raw)
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ValueError(
                f"{caller}: the file must hold a whole schedule, got one in which something is missing or of "
                f"another kind ({type(error).__name__}: {error}); export it again"
            ) from error
        except ValueError as error:
            raise ValueError(f"{caller}: {error}") from error

    @classmethod
    def _read(cls, raw: dict[str, Any]) -> FoundSchedule:
        schedule = cls(0)
        schedule._groups = [[_piece(saved) for saved in group["pieces"]] for group in raw["groups"]]
        schedule.steps = _whole("steps", raw["steps"], least=0)
        for i, pieces in enumerate(schedule._groups):
            if (known := sum(piece.count for piece in pieces)) != schedule.steps:
                raise ValueError(
                    f"every group must have a learning rate for each of steps={schedule.steps}, group {i} "
                    f"has {known}; export it again"
                )
        return schedule

    def lambdas(self) -> list[Callable[[int], float]]:
        """For each group, the learning rate of a step; beyond the last one, that of the last."""
        return [_lookup(pieces) for pieces in self._groups]


def _add(pieces: list[_Piece], step: int, lr: float, descent: Descent | None) -> None:
    last = pieces[-1] if pieces else None
    if isinstance(last, _Stays) and last.lr == lr:
        last.count += 1
    elif descent is not None and descent(step) == lr:
        if isinstance(last, _Falls) and last.descent == descent and last.first + last.count == step:
            last.count += 1
        else:
            pieces.append(_Falls(1, step, descent))
    elif isinstance(last, _Varies):
        if last.lrs[-1] == lr:
            last.lrs.pop()
            pieces.append(_Stays(2, lr))
        else:
            last.lrs.append(lr)
    elif isinstance(last, _Stays) and last.count == 1:
        pieces[-1] = _Varies(array("d", [last.lr, lr]))
    else:
        pieces.append(_Stays(1, lr))


def _drop(pieces: list[_Piece], step: int) -> None:
    i = 0
    while step >= pieces[i].count:
        step -= pieces[i].count
        i += 1
    piece = pieces[i]
    if isinstance(piece, _Varies):
        del piece.lrs[step]
        left: list[_Piece] = [piece]
    elif isinstance(piece, _Stays):
        left = [_Stays(piece.count - 1, piece.lr)]
    else:
        rest = piece.count - step - 1
        left = [
            _Falls(step, piece.first, piece.descent),
            _Falls(rest, piece.first + step + 1, piece.descent),
        ]
    pieces[i : i + 1] = [part for part in left if part.count]


def _piece(saved: Any) -> _Piece:
    if isinstance(saved, list):
        count, lr = saved
        return _Stays(_whole("count", count), _rate(lr))
    if "doubles" in saved:
        lrs = array("d", base64.b64decode(saved["doubles"], validate=True))
        if sys.byteorder == "big":
            lrs.byteswap()
        for lr in lrs:
            _rate(lr)
        return _Varies(lrs)
    factor, ratio, *shape = saved["descent"]
    total_steps, decay_from, height = shape
    drawn = WarmStableDecay(_whole("total_steps", total_steps), _whole("decay_from", decay_from, least=0))
    descent = Descent(_rate(factor), _rate(ratio), replace(drawn, height=_rate(height)))
    return _Falls(_whole("count", saved["count"]), _whole("first", saved["first"], least=0), descent)


def _whole(name: str, value: Any, *, least: int = 1) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}; export it again")
    return value


def _rate(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise ValueError(f"a learning rate must be finite and not below 0, got {value!r}; export it again")
    return float(value)


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
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(1.0)
        else:
            group["lr"] = 1.0
    ends = accumulate(len(one.param_groups) for one in optimizers)
    made = [
        LambdaLR(one, lambdas[end - len(one.param_groups) : end])
        for one, end in zip(optimizers, ends, strict=True)
    ]
    return made if isinstance(optimizer, Sequence) else made[0]
