"""What an optimizer keeps as a copy of its weights: masters in float32 beside parameters in bfloat16, say.

Its next step begins from them: a mean, or a way back, that left them alone would be undone by it. They are
known by their values alone, which are the parameter's up to its rounding.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from hdet.loop.parameters import trained_parameters
from hdet.replicas import Replicas, local, state_of

__all__ = ["Mirrors"]

#: So many parameters, and values of each, are compared.
_PARAMETERS, _VALUES = 16, 64
#: A row has places for so many names, so that all ranks' are of one length whatever they keep.
_NAMES = 16
#: So often it looks for them in vain: plain SGD keeps nothing.
_LOOKS = 3


class Mirrors:
    """Copies of the weights in an optimizer's state.

    Args:
        optimizer: whose state it is.
        replicas: who must find the same.
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
        """The copies of these parameters, of those parts of them that lie here."""
        return [copy for parameter in parameters for _, copy in self._of(parameter) if copy.numel()]

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
        """Whether what stands under a name mirrors its parameter wherever both can be compared."""
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
                    found[name] &= _mirrors(local(value).detach(), weight)
        return found if compared else {}

    def _names(self) -> set[str]:
        return {
            name
            for kept in state_of(self._optimizer).values()
            if isinstance(kept, dict)  # some keep a number there that is of no parameter
            for name, value in kept.items()
            if isinstance(name, str) and isinstance(value, Tensor) and value.is_floating_point()
        }


def _mirrors(copy: Tensor, weight: Tensor) -> bool:
    if copy.shape != weight.shape or is_traceable_wrapper_subclass(copy):  # codes mirror nothing exactly
        return False
    a, b = (tensor.reshape(-1)[:_VALUES].cpu().double() for tensor in (copy, weight))
    rounding = 2 * torch.finfo(weight.dtype).eps
    return bool(((a - b).abs() <= rounding * b.abs()).all())
